#include "api/json.h"

#include <boost/json/parse.hpp>
#include <boost/json/parser.hpp>
#include <cmath>
#include <limits>

#include "http/limits.h"

namespace splash::api {
namespace {

int hex4(const char* digits) {
  int value = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = digits[i];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

// Rewrites \ud800..\udfff escapes that form no pair to \ufffd, in place (the length stays).
void mend_lone_surrogates(std::string& text) {
  const auto escape_at = [&](std::size_t i) {
    return i + 6 <= text.size() && text[i] == '\\' && text[i + 1] == 'u' ? hex4(&text[i + 2]) : -1;
  };
  for (std::size_t i = text.find('\\'); i != std::string::npos; i = text.find('\\', i)) {
    const int unit = escape_at(i);
    if (unit < 0xD800 || unit > 0xDFFF) {
      i += 2;  // the escaped character is no escape itself
      continue;
    }
    const int next = unit <= 0xDBFF ? escape_at(i + 6) : -1;
    if (next >= 0xDC00 && next <= 0xDFFF) {
      i += 12;
    } else {
      text.replace(i + 2, 4, "fffd");
      i += 6;
    }
  }
}

// Numbers that overflow a double would silently become infinite.
bool all_finite(const json::value& value) {
  if (value.is_double()) return std::isfinite(value.get_double());
  if (value.is_array()) {
    for (const json::value& item : value.get_array())
      if (!all_finite(item)) return false;
  }
  if (value.is_object()) {
    for (const auto& item : value.get_object())
      if (!all_finite(item.value())) return false;
  }
  return true;
}

}  // namespace

std::string_view kind_name(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return "an object";
  }
  return "nothing";
}

Result<json::object> parse_object(std::string body) {
  if (body.empty()) return fail(ErrorKind::invalid, "the request has no body; a JSON object is wanted");
  mend_lone_surrogates(body);
  json::parse_options options;
  options.max_depth = http::max_json_depth;
  boost::system::error_code error;
  json::value value = json::parse(body, error, {}, options);
  if (error == json::error::too_deep)
    return fail(ErrorKind::invalid, "the JSON body is nested deeper than {} levels", http::max_json_depth);
  if (error) return fail(ErrorKind::invalid, "the body is not valid JSON: {}", error.message());
  if (!value.is_object()) return fail(ErrorKind::invalid, "the body must be a JSON object, not {}", kind_name(value));
  if (!all_finite(value)) return fail(ErrorKind::invalid, "the JSON body holds a number too large for a double");
  return std::move(value.get_object());
}

const json::value* Fields::find(std::string_view name) const {
  const json::value* value = object_.if_contains(name);
  return value && !value->is_null() ? value : nullptr;
}

std::string Fields::path_of(std::string_view name) const {
  return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
}

tl::unexpected<Error> Fields::wrong_type(std::string_view name, std::string_view wanted) const {
  const std::string path = path_of(name);
  const json::value* value = object_.if_contains(name);
  return fail_parameter(ErrorKind::invalid, path, "{} must be {}, not {}", path, wanted,
                        value ? kind_name(*value) : "absent");
}

Result<std::optional<bool>> Fields::boolean(std::string_view name) const {
  const json::value* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_bool()) return wrong_type(name, "a boolean");
  return value->get_bool();
}

Result<std::optional<std::string>> Fields::string(std::string_view name) const {
  const json::value* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_string()) return wrong_type(name, "a string");
  return std::string(value->get_string());
}

Result<const json::object*> Fields::object(std::string_view name) const {
  const json::value* value = find(name);
  if (!value) return nullptr;
  if (!value->is_object()) return wrong_type(name, "an object");
  return &value->get_object();
}

Result<const json::array*> Fields::array(std::string_view name) const {
  const json::value* value = find(name);
  if (!value) return nullptr;
  if (!value->is_array()) return wrong_type(name, "an array");
  return &value->get_array();
}

Result<std::optional<std::int64_t>> Fields::integer(std::string_view name, IntegerRange range) const {
  const json::value* value = find(name);
  if (!value) return std::nullopt;
  const std::string path = path_of(name);
  std::optional<std::int64_t> number;
  if (value->is_int64()) {
    number = value->get_int64();
  } else if (value->is_uint64()) {
    number = std::numeric_limits<std::int64_t>::max();
  } else if (value->is_double() && std::trunc(value->get_double()) == value->get_double() &&
             std::abs(value->get_double()) < 0x1p53) {
    number = static_cast<std::int64_t>(value->get_double());
  }
  if (!number) return wrong_type(name, "an integer");
  if (*number < range.least || *number > range.most)
    return range.most == std::numeric_limits<std::int64_t>::max()
               ? fail_parameter(ErrorKind::invalid, path, "{} must be at least {}", path, range.least)
               : fail_parameter(ErrorKind::invalid, path, "{} must be between {} and {}", path, range.least,
                                range.most);
  return number;
}

Result<std::optional<double>> Fields::number(std::string_view name, NumberRange range) const {
  const json::value* value = find(name);
  if (!value) return std::nullopt;
  const std::string path = path_of(name);
  if (!value->is_number()) return wrong_type(name, "a number");
  const double number = value->to_number<double>();
  if (number < range.least || number > range.most || (!range.least_included && number == range.least))
    return fail_parameter(ErrorKind::invalid, path, "{} must be {} {} and at most {}", path,
                          range.least_included ? "at least" : "more than", range.least, range.most);
  return number;
}

Result<std::optional<std::uint64_t>> Fields::seed(std::string_view name) const {
  const json::value* value = find(name);
  if (!value) return std::nullopt;
  if (value->is_uint64()) return value->get_uint64();
  if (value->is_int64()) return static_cast<std::uint64_t>(value->get_int64());
  return wrong_type(name, "an integer of 64 bits");
}

}  // namespace splash::api
