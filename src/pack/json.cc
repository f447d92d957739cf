#include "pack/json.h"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/parse.hpp>
#include <cmath>
#include <set>

namespace splash::pack {
namespace {

namespace json = boost::json;

constexpr double largest_whole_double = 9007199254740992.0;  // 2^53

// Boost.JSON keeps the last of two equal keys. A header that names a tensor twice would then pass unseen, so a first
// pass over the events of the parse collects the keys of every open object.
struct DuplicateKeys {
  static constexpr std::size_t max_object_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_array_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_key_size = 1 << 16;
  static constexpr std::size_t max_string_size = static_cast<std::size_t>(-1);

  std::vector<std::set<std::string, std::less<>>> open;
  std::string key;
  std::string duplicate;

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code&) { return open.emplace_back(), true; }
  bool on_object_end(std::size_t, json::error_code&) { return open.pop_back(), true; }
  bool on_array_begin(json::error_code&) { return true; }
  bool on_array_end(std::size_t, json::error_code&) { return true; }
  bool on_key_part(json::string_view part, std::size_t, json::error_code&) { return key.append(part), true; }
  bool on_key(json::string_view part, std::size_t, json::error_code& code) {
    key.append(part);
    if (open.back().insert(key).second) return key.clear(), true;
    duplicate = key;
    code = json::make_error_code(json::error::syntax);
    return false;
  }
  bool on_string_part(json::string_view, std::size_t, json::error_code&) { return true; }
  bool on_string(json::string_view, std::size_t, json::error_code&) { return true; }
  bool on_number_part(json::string_view, json::error_code&) { return true; }
  bool on_int64(std::int64_t, json::string_view, json::error_code&) { return true; }
  bool on_uint64(std::uint64_t, json::string_view, json::error_code&) { return true; }
  bool on_double(double, json::string_view, json::error_code&) { return true; }
  bool on_bool(bool, json::error_code&) { return true; }
  bool on_null(json::error_code&) { return true; }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }
};

}  // namespace

Result<json::value> parse_json(std::string_view text, std::string_view file) {
  json::basic_parser<DuplicateKeys> events{json::parse_options{}};
  json::error_code code;
  const std::size_t consumed = events.write_some(false, text.data(), text.size(), code);
  if (!events.handler().duplicate.empty()) {
    return fail_parameter(ErrorKind::corrupt, std::string(file), "{}: the key \"{}\" appears twice in one object", file,
                          events.handler().duplicate);
  }
  json::value value;
  if (!code && consumed <= text.size()) value = json::parse(json::string_view(text.data(), text.size()), code);
  if (code) {
    return fail_parameter(ErrorKind::corrupt, std::string(file), "{}: not valid JSON near byte {}: {}", file, consumed,
                          code.message());
  }
  return value;
}

std::string quote_json(std::string_view text) {
  return json::serialize(json::value(json::string_view(text.data(), text.size())));
}

std::string JsonNode::child_place(std::string_view key) const {
  const bool at_root = place_.ends_with(": ") || place_.empty();
  return place_ + (at_root ? "" : ".") + std::string(key);
}

tl::unexpected<Error> JsonNode::wrong(std::string_view wanted) const {
  std::string found = json::serialize(*value_);
  if (found.size() > 40) found = found.substr(0, 40) + "...";
  return fail(ErrorKind::corrupt, "{}: expected {}, found {}", place_, wanted, found);
}

Result<JsonNode> JsonNode::get(std::string_view key) const {
  if (!value_->is_object()) return wrong("an object");
  if (auto node = find(key)) return *node;
  return fail(ErrorKind::corrupt, "{}: missing", child_place(key));
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  if (!value_->is_object()) return std::nullopt;
  const json::value* member = value_->as_object().if_contains(json::string_view(key.data(), key.size()));
  if (member == nullptr || member->is_null()) return std::nullopt;
  return JsonNode(*member, child_place(key));
}

Result<std::int64_t> JsonNode::integer(std::int64_t least, std::int64_t most) const {
  const std::string wanted = fmt::format("a whole number between {} and {}", least, most);
  std::int64_t number = 0;
  if (value_->is_int64()) {
    number = value_->as_int64();
  } else if (value_->is_double() && std::abs(value_->as_double()) <= largest_whole_double &&
             value_->as_double() == std::floor(value_->as_double())) {
    number = static_cast<std::int64_t>(value_->as_double());
  } else {
    return wrong(wanted);  // also uint64: larger than any int64
  }
  if (number < least || number > most) return wrong(wanted);
  return number;
}

Result<double> JsonNode::number(double least, double most) const {
  double number = NAN;
  if (value_->is_int64()) number = static_cast<double>(value_->as_int64());
  if (value_->is_uint64()) number = static_cast<double>(value_->as_uint64());
  if (value_->is_double()) number = value_->as_double();
  if (number >= least && number <= most) return number;
  return wrong(fmt::format("a number between {} and {}", least, most));
}

Result<bool> JsonNode::boolean() const {
  if (value_->is_bool()) return value_->as_bool();
  return wrong("true or false");
}

Result<std::string> JsonNode::text() const {
  if (!value_->is_string()) return wrong("a string");
  return std::string(value_->as_string());
}

Result<std::vector<JsonNode>> JsonNode::items() const {
  if (!value_->is_array()) return wrong("an array");
  std::vector<JsonNode> nodes;
  for (const json::value& item : value_->as_array()) {
    nodes.emplace_back(item, fmt::format("{}[{}]", place_, nodes.size()));
  }
  return nodes;
}

Result<std::vector<std::pair<std::string, JsonNode>>> JsonNode::members() const {
  if (!value_->is_object()) return wrong("an object");
  std::vector<std::pair<std::string, JsonNode>> nodes;
  for (const auto& [key, item] : value_->as_object()) {
    nodes.emplace_back(std::string(key), JsonNode(item, child_place(std::string_view(key.data(), key.size()))));
  }
  return nodes;
}

}  // namespace splash::pack
