// JSON read with suspicion: size, depth and duplicate keys are checked, and an error names the file and the place in
// it.
#pragma once

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace splash::pack {

// One value of a document and where it stands: "config.json: text_config.hidden_size".
class JsonNode {
 public:
  // `value` must outlive the node.
  JsonNode(const boost::json::value& value, std::string place) : value_(&value), place_(std::move(place)) {}

  const std::string& place() const { return place_; }
  bool is_object() const { return value_->is_object(); }
  bool is_bool() const { return value_->is_bool(); }

  // A member of an object; `get` fails when it is absent, `find` takes absent and null for nothing.
  Result<JsonNode> get(std::string_view key) const;
  std::optional<JsonNode> find(std::string_view key) const;

  // A whole number in [least, most]; 1e7 and 10000000.0 count as whole.
  Result<std::int64_t> integer(std::int64_t least, std::int64_t most) const;
  Result<double> number(double least, double most) const;
  Result<bool> boolean() const;
  Result<std::string> text() const;
  Result<std::vector<JsonNode>> items() const;
  Result<std::vector<std::pair<std::string, JsonNode>>> members() const;

 private:
  std::string child_place(std::string_view key) const;
  tl::unexpected<Error> wrong(std::string_view wanted) const;

  const boost::json::value* value_;
  std::string place_;
};

// Fails on a syntax error, a nesting deeper than 32, or an object that names a key twice. `file` is for the message.
Result<boost::json::value> parse_json(std::string_view text, std::string_view file);

// Appends `text` as a JSON string.
std::string quote_json(std::string_view text);

}  // namespace splash::pack
