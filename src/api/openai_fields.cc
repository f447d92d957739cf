#include "api/openai_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <set>

namespace splash::api {
namespace {

constexpr std::array<std::string_view, 7> efforts = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
// What the server itself hands to the template.
constexpr std::array<std::string_view, 9> reserved_variables = {
    "add_generation_prompt", "chat_template", "continue_final_message",
    "conversation",          "documents",     "messages",
    "return_dict",           "tokenize",      "tools"};

std::uint64_t random_seed() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

bool is_tool_name(std::string_view name) {
  return !name.empty() && name.size() <= max_tool_name_bytes &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
}

Status check_effort(const Fields& fields, std::string_view name) {
  SPLASH_TRY(const auto effort, fields.string(name));
  if (effort && std::find(efforts.begin(), efforts.end(), *effort) == efforts.end())
    return fail_parameter(ErrorKind::invalid, fields.path_of(name), "{} must be one of {}", fields.path_of(name),
                          fmt::join(efforts, ", "));
  return {};
}

}  // namespace

Answer<std::monostate> check_model(const Fields& fields, const Backend& backend) {
  const json::value* model = fields.find("model");
  if (!model) return std::monostate{};
  if (model->is_string()) {
    const std::string_view name = model->get_string();
    if (name == backend.model ||
        std::find(backend.aliases.begin(), backend.aliases.end(), name) != backend.aliases.end())
      return std::monostate{};
  }
  return tl::unexpected(ApiError(
      404, "model_not_found",
      fmt::format("this model is not served here; the served one is '{}' (GET /v1/models)", backend.model), "model"));
}

Result<link::Sampling> read_sampling(const Fields& fields, const SamplingDefaults& defaults) {
  link::Sampling out;
  SPLASH_TRY(const auto temperature, fields.number("temperature", {0.0, 2.0}));
  out.temperature = static_cast<float>(temperature.value_or(defaults.temperature));
  if (out.temperature > 0.0f)
    out.temperature = std::max(out.temperature, static_cast<float>(least_sampled_temperature));
  SPLASH_TRY(const auto top_p, fields.number("top_p", {0.0, 1.0, false}));
  // A value that is more than 0 only as a double still keeps the most probable token.
  out.top_p = std::max(static_cast<float>(top_p.value_or(defaults.top_p)), std::numeric_limits<float>::min());
  SPLASH_TRY(const auto top_k, fields.integer("top_k", {-1, std::numeric_limits<std::int64_t>::max()}));
  const std::int64_t k = top_k.value_or(defaults.top_k);
  out.top_k = k <= 0 ? 0 : static_cast<int>(std::min<std::int64_t>(k, std::numeric_limits<int>::max()));
  SPLASH_TRY(const auto min_p, fields.number("min_p", {0.0, 1.0}));
  out.min_p = std::min(static_cast<float>(min_p.value_or(defaults.min_p)), std::nextafter(1.0f, 0.0f));
  SPLASH_TRY(const auto seed, fields.seed("seed"));
  out.seed = seed ? *seed : random_seed();
  out.reproducible = seed.has_value();
  return out;
}

Result<std::vector<std::string>> read_stop(const Fields& fields) {
  const json::value* value = fields.find("stop");
  std::vector<std::string> out;
  if (!value) return out;
  const auto add = [&](const json::value& item, const std::string& path) -> Status {
    if (!item.is_string())
      return fail_parameter(ErrorKind::invalid, path, "{} must be a string, not {}", path, kind_name(item));
    const std::string_view text = item.get_string();
    if (text.empty()) return fail_parameter(ErrorKind::invalid, path, "{} must not be empty", path);
    if (text.size() > max_stop_bytes)
      return fail_parameter(ErrorKind::invalid, path, "{} has more than {} bytes", path, max_stop_bytes);
    out.emplace_back(text);
    return {};
  };
  const std::string path = fields.path_of("stop");
  if (!value->is_array()) {
    if (!value->is_string()) return fields.wrong_type("stop", "a string or an array of strings");
    SPLASH_TRY_STATUS(add(*value, path));
    return out;
  }
  const json::array& items = value->get_array();
  if (items.size() > max_stop_strings)
    return fail_parameter(ErrorKind::invalid, path, "{} takes at most {} strings", path, max_stop_strings);
  for (std::size_t i = 0; i < items.size(); ++i) SPLASH_TRY_STATUS(add(items[i], fmt::format("{}[{}]", path, i)));
  return out;
}

Result<std::optional<Duration>> read_time_limit(const Fields& fields) {
  SPLASH_TRY(const auto seconds, fields.number("timeout", {0.0, 1e6, false}));
  if (!seconds) return std::nullopt;
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*seconds));
}

Result<std::vector<chat::Tool>> read_tools(const Fields& fields) {
  std::vector<chat::Tool> out;
  SPLASH_TRY(const json::array* items, fields.array("tools"));
  if (!items) return out;
  if (items->size() > max_tools)
    return fail_parameter(ErrorKind::invalid, fields.path_of("tools"), "at most {} tools are taken", max_tools);
  std::set<std::string> names;
  for (std::size_t i = 0; i < items->size(); ++i) {
    const std::string path = fmt::format("{}[{}]", fields.path_of("tools"), i);
    const json::value& item = (*items)[i];
    if (!item.is_object())
      return fail_parameter(ErrorKind::invalid, path, "{} must be an object, not {}", path, kind_name(item));
    const Fields tool(item.get_object(), path);
    SPLASH_TRY(const auto type, tool.string("type"));
    if (type.value_or("function") != "function")
      return fail_parameter(ErrorKind::unsupported, tool.path_of("type"),
                            "tools of type '{}' are not supported, only 'function'", *type);
    SPLASH_TRY(const json::object* function, tool.object("function"));
    if (!function) return tool.wrong_type("function", "an object");
    const Fields inner(*function, tool.path_of("function"));
    SPLASH_TRY(const auto name, inner.string("name"));
    if (!name || !is_tool_name(*name))
      return fail_parameter(ErrorKind::invalid, inner.path_of("name"), "{} must be 1 to {} letters, digits, '_' or '-'",
                            inner.path_of("name"), max_tool_name_bytes);
    if (!names.insert(*name).second)
      return fail_parameter(ErrorKind::invalid, inner.path_of("name"), "{} repeats the name of an earlier tool",
                            inner.path_of("name"));
    SPLASH_TRY_STATUS(inner.string("description"));
    SPLASH_TRY_STATUS(inner.boolean("strict"));
    chat::Tool& read = out.emplace_back();
    read.name = *name;
    read.definition = item.get_object();
    read.definition["type"] = "function";
    const json::value* parameters = inner.find("parameters");
    if (parameters && parameters->is_object())
      read.parameters = parameters->get_object();
    else if (parameters && !parameters->is_bool())
      return inner.wrong_type("parameters", "an object");
  }
  return out;
}

Result<ToolChoice> read_tool_choice(const Fields& fields, bool has_tools) {
  const json::value* value = fields.find("tool_choice");
  if (!value) return ToolChoice::automatic;
  const std::string path = fields.path_of("tool_choice");
  if (value->is_string()) {
    const std::string_view choice = value->get_string();
    if (choice == "auto") return ToolChoice::automatic;
    if (choice == "none") return ToolChoice::none;
    if (choice != "required")
      return fail_parameter(ErrorKind::invalid, path, "{} must be auto, none, required or a named function", path);
  } else if (!value->is_object()) {
    return fields.wrong_type("tool_choice", "a string or an object");
  }
  if (!has_tools) return fail_parameter(ErrorKind::invalid, path, "{} needs tools, but the request has none", path);
  return fail_parameter(ErrorKind::unsupported, path,
                        "{}: a required or named call is not supported yet; use auto or none", path);
}

Result<json::object> read_template_variables(const Fields& fields, const std::optional<std::string>& default_effort) {
  json::object out;
  if (default_effort) out["reasoning_effort"] = *default_effort;
  SPLASH_TRY_STATUS(check_effort(fields, "reasoning_effort"));
  if (const json::value* effort = fields.find("reasoning_effort")) out["reasoning_effort"] = *effort;
  for (const char* name : {"enable_thinking", "preserve_thinking"}) {
    SPLASH_TRY(const auto flag, fields.boolean(name));
    if (flag) out[name] = *flag;
  }
  SPLASH_TRY(const json::object* variables, fields.object("chat_template_kwargs"));
  if (!variables) return out;
  const Fields inner(*variables, fields.path_of("chat_template_kwargs"));
  SPLASH_TRY_STATUS(inner.boolean("enable_thinking"));
  SPLASH_TRY_STATUS(check_effort(inner, "reasoning_effort"));
  for (const auto& [name, value] : *variables) {
    if (std::find(reserved_variables.begin(), reserved_variables.end(), name) != reserved_variables.end())
      return fail_parameter(ErrorKind::invalid, inner.path_of(name), "{} cannot be set by a request",
                            inner.path_of(name));
    if (!value.is_null()) out[name] = value;
  }
  return out;
}

Result<std::string> read_text_content(const Fields& fields, std::string_view name) {
  const json::value* value = fields.find(name);
  if (!value) return std::string();
  if (value->is_string()) return std::string(value->get_string());
  if (!value->is_array()) return fields.wrong_type(name, "a string or an array of parts");
  std::string out;
  const json::array& parts = value->get_array();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string path = fmt::format("{}[{}]", fields.path_of(name), i);
    if (!parts[i].is_object())
      return fail_parameter(ErrorKind::invalid, path, "{} must be an object, not {}", path, kind_name(parts[i]));
    const Fields part(parts[i].get_object(), path);
    SPLASH_TRY(const auto type, part.string("type"));
    if (!type) return part.wrong_type("type", "a string");
    const bool refusal = *type == "refusal";
    if (*type != "text" && *type != "input_text" && *type != "output_text" && !refusal)
      return fail_parameter(ErrorKind::unsupported, part.path_of("type"),
                            "{}: parts of type '{}' are not supported, only text", part.path_of("type"),
                            type->substr(0, 40));
    const char* key = refusal ? "refusal" : "text";
    SPLASH_TRY(const auto text, part.string(key));
    if (!text) return part.wrong_type(key, "a string");
    out += *text;
  }
  return out;
}

}  // namespace splash::api
