// One argument of a tool call: raw text as the model wrote it, turned into JSON by the type its schema declares.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <string>
#include <string_view>

namespace splash::chat {

// JSON types as a set. A schema that says nothing about the type allows any.
struct TypeSet {
  enum Bit : std::uint8_t { string = 1, integer = 2, number = 4, boolean = 8, null = 16, object = 32, array = 64 };
  static constexpr std::uint8_t any = 127;
  std::uint8_t bits = any;

  bool has(Bit bit) const { return (bits & bit) != 0; }
  bool only_string() const { return bits == string; }
  bool is_any() const { return bits == any; }
};

// Types that `parameters` (a JSON schema of an object) declares for its property `key`: its `type`, else the types of
// its enum or const, else the union of anyOf or oneOf, narrowed by allOf and local references.
TypeSet declared_types(const boost::json::object& parameters, std::string_view key);

// The JSON text of an argument. Text that is no value of a declared type becomes a string, so nothing is ever lost.
std::string argument_json(std::string_view text, TypeSet types);

// Appends `text` as the inside of a JSON string.
void append_json_escaped(std::string_view text, std::string& out);

}  // namespace splash::chat
