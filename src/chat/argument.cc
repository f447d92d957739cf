#include "chat/argument.h"

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <cmath>
#include <optional>

namespace splash::chat {
namespace {

namespace json = boost::json;

constexpr int max_schema_depth = 16;
constexpr int max_value_depth = 120;
constexpr std::string_view space = " \t\r\n";

std::uint8_t type_bit(std::string_view name) {
  if (name == "string") return TypeSet::string;
  if (name == "integer") return TypeSet::integer;
  if (name == "number") return TypeSet::number | TypeSet::integer;
  if (name == "boolean") return TypeSet::boolean;
  if (name == "null") return TypeSet::null;
  if (name == "object") return TypeSet::object;
  if (name == "array") return TypeSet::array;
  return 0;
}

std::uint8_t type_of(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return TypeSet::null;
    case json::kind::bool_:
      return TypeSet::boolean;
    case json::kind::int64:
    case json::kind::uint64:
      return TypeSet::integer;
    case json::kind::double_:
      return TypeSet::number;
    case json::kind::string:
      return TypeSet::string;
    case json::kind::array:
      return TypeSet::array;
    case json::kind::object:
      return TypeSet::object;
  }
  return TypeSet::any;
}

// `#/a/b` within the parameters' schema; anything else is not followed.
const json::value* local_reference(const json::object& root, std::string_view reference) {
  if (!reference.starts_with("#/")) return nullptr;
  const json::object* at = &root;
  const json::value* value = nullptr;
  std::string_view rest = reference.substr(2);
  while (true) {
    const std::size_t slash = rest.find('/');
    value = at->if_contains(rest.substr(0, slash));
    if (value == nullptr || slash == std::string_view::npos) return value;
    at = value->if_object();
    if (at == nullptr) return nullptr;
    rest = rest.substr(slash + 1);
  }
}

std::uint8_t schema_types(const json::object& root, const json::value& schema, int depth);

std::optional<std::uint8_t> union_of(const json::object& root, const json::value* list, int depth) {
  const json::array* schemas = list == nullptr ? nullptr : list->if_array();
  if (schemas == nullptr || schemas->empty()) return std::nullopt;
  std::uint8_t bits = 0;
  for (const json::value& schema : *schemas) bits |= schema_types(root, schema, depth);
  return bits;
}

std::uint8_t own_types(const json::object& root, const json::object& schema, int depth) {
  std::uint8_t bits = 0;
  if (const json::value* type = schema.if_contains("type")) {
    if (const json::string* name = type->if_string()) bits |= type_bit(*name);
    if (const json::array* names = type->if_array()) {
      for (const json::value& name : *names) {
        if (name.is_string()) bits |= type_bit(name.get_string());
      }
    }
  }
  if (bits != 0) {
    const json::value* nullable = schema.if_contains("nullable");
    if (nullable != nullptr && nullable->is_bool() && nullable->get_bool()) bits |= TypeSet::null;
    return bits;
  }
  if (const json::value* values = schema.if_contains("enum"); values && values->is_array()) {
    for (const json::value& value : values->get_array()) bits |= type_of(value);
    if (bits != 0) return bits;
  }
  if (const json::value* value = schema.if_contains("const")) return type_of(*value);
  if (const auto any_of = union_of(root, schema.if_contains("anyOf"), depth)) return *any_of;
  if (const auto one_of = union_of(root, schema.if_contains("oneOf"), depth)) return *one_of;
  return TypeSet::any;
}

std::uint8_t schema_types(const json::object& root, const json::value& schema, int depth) {
  const json::object* object = schema.if_object();
  if (object == nullptr || depth == 0) return TypeSet::any;
  std::uint8_t bits = own_types(root, *object, depth - 1);
  if (const json::value* all_of = object->if_contains("allOf"); all_of && all_of->is_array()) {
    for (const json::value& part : all_of->get_array()) bits &= schema_types(root, part, depth - 1);
  }
  if (const json::value* reference = object->if_contains("$ref"); reference && reference->is_string()) {
    const json::value* target = local_reference(root, reference->get_string());
    if (target != nullptr) bits &= schema_types(root, *target, depth - 1);
  }
  return bits == 0 ? TypeSet::any : bits;
}

std::string quoted(std::string_view text) {
  std::string json = "\"";
  append_json_escaped(text, json);
  return json + "\"";
}

bool equals_ignoring_case(std::string_view text, std::string_view lower) {
  if (text.size() != lower.size()) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((text[i] | 0x20) != lower[i]) return false;
  }
  return true;
}

// The scalars as Python writes them.
std::optional<std::string> python_scalar(std::string_view text, TypeSet types) {
  if (types.has(TypeSet::boolean) && equals_ignoring_case(text, "true")) return "true";
  if (types.has(TypeSet::boolean) && equals_ignoring_case(text, "false")) return "false";
  if (types.has(TypeSet::null) && (equals_ignoring_case(text, "none") || equals_ignoring_case(text, "null")))
    return "null";
  return std::nullopt;
}

bool overflows(const json::value& value) {
  if (const double* number = value.if_double()) return !std::isfinite(*number);
  if (const json::array* items = value.if_array()) {
    for (const json::value& item : *items) {
      if (overflows(item)) return true;
    }
  }
  if (const json::object* members = value.if_object()) {
    for (const auto& member : *members) {
      if (overflows(member.value())) return true;
    }
  }
  return false;
}

}  // namespace

TypeSet declared_types(const json::object& parameters, std::string_view key) {
  const json::value* properties = parameters.if_contains("properties");
  const json::object* object = properties == nullptr ? nullptr : properties->if_object();
  const json::value* schema = object == nullptr ? nullptr : object->if_contains(key);
  return schema == nullptr ? TypeSet{} : TypeSet{schema_types(parameters, *schema, max_schema_depth)};
}

std::string argument_json(std::string_view text, TypeSet types) {
  if (types.only_string()) return quoted(text);
  const std::size_t begin = text.find_first_not_of(space);
  if (begin == std::string_view::npos) return quoted(text);
  const std::string_view trimmed = text.substr(begin, text.find_last_not_of(space) - begin + 1);
  json::parse_options options;
  options.max_depth = max_value_depth;
  boost::system::error_code error;
  const json::value value = json::parse(trimmed, error, {}, options);
  const bool is_json = !error && !overflows(value);
  if (!types.has(TypeSet::string)) {
    if (is_json) return std::string(trimmed);
    if (auto scalar = python_scalar(trimmed, types)) return *scalar;
    return quoted(text);
  }
  // It may be a string: only a value of another declared type is taken for more than its text.
  const bool other = is_json && !value.is_string() && (types.bits & type_of(value)) != 0;
  return other ? std::string(trimmed) : quoted(text);
}

void append_json_escaped(std::string_view text, std::string& out) {
  constexpr std::string_view hex = "0123456789abcdef";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (const auto byte = static_cast<unsigned char>(c); byte < 0x20) {
          out += "\\u00";
          out += hex[byte >> 4];
          out += hex[byte & 15];
        } else {
          out += c;
        }
    }
  }
}

}  // namespace splash::chat
