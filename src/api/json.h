// Reading JSON bodies: strict, bounded, and with errors that name the field.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace splash::api {

namespace json = boost::json;

// A body that must be one JSON object. Strict: UTF-8 only, no comments, no trailing commas, no byte order mark, nesting
// up to http::max_json_depth, finite numbers. Of equal keys the last one counts, as in the clients' own parsers. An
// escaped surrogate without its partner (JavaScript cuts strings in the middle of characters) becomes U+FFFD.
Result<json::object> parse_object(std::string body);

// The fields of one object of a request. Null counts as absent throughout. Errors carry the whole path of the field,
// e.g. messages[2].content[0].text.
class Fields {
 public:
  explicit Fields(const json::object& object, std::string path = {}) : object_(object), path_(std::move(path)) {}

  const json::value* find(std::string_view name) const;  // nullptr if absent or null
  std::string path_of(std::string_view name) const;

  Result<std::optional<bool>> boolean(std::string_view name) const;
  Result<std::optional<std::string>> string(std::string_view name) const;
  Result<const json::object*> object(std::string_view name) const;  // nullptr if absent
  Result<const json::array*> array(std::string_view name) const;

  struct IntegerRange {
    std::int64_t least, most;
  };
  Result<std::optional<std::int64_t>> integer(std::string_view name, IntegerRange range) const;
  struct NumberRange {
    double least, most;
    bool least_included = true;
  };
  Result<std::optional<double>> number(std::string_view name, NumberRange range) const;
  // 64 bits; negative numbers are taken modulo 2^64, as clients of either signedness mean them.
  Result<std::optional<std::uint64_t>> seed(std::string_view name) const;

  tl::unexpected<Error> wrong_type(std::string_view name, std::string_view wanted) const;

 private:
  const json::object& object_;
  std::string path_;
};

std::string_view kind_name(const json::value& value);  // "a string", "an array", ...

}  // namespace splash::api
