#include <fmt/format.h>

#include <boost/json/serialize.hpp>
#include <limits>

#include "api/openai_chat.h"
#include "api/openai_fields.h"
#include "chat/prompt.h"

namespace splash::api {
namespace {

Result<std::vector<chat::ToolCall>> read_tool_calls(const Fields& message) {
  std::vector<chat::ToolCall> out;
  SPLASH_TRY(const json::array* items, message.array("tool_calls"));
  if (!items) return out;
  for (std::size_t i = 0; i < items->size(); ++i) {
    const std::string path = fmt::format("{}[{}]", message.path_of("tool_calls"), i);
    const json::value& item = (*items)[i];
    if (!item.is_object())
      return fail_parameter(ErrorKind::invalid, path, "{} must be an object, not {}", path, kind_name(item));
    const Fields call(item.get_object(), path);
    SPLASH_TRY(const auto id, call.string("id"));
    SPLASH_TRY(const json::object* function, call.object("function"));
    if (!function) return call.wrong_type("function", "an object");
    const Fields inner(*function, call.path_of("function"));
    SPLASH_TRY(const auto name, inner.string("name"));
    if (!name || name->empty()) return inner.wrong_type("name", "a string that is not empty");
    const json::value* arguments = inner.find("arguments");
    if (arguments && !arguments->is_string() && !arguments->is_object())
      return inner.wrong_type("arguments", "a string of JSON");
    out.push_back({id.value_or(""), *name, chat::arguments_from_json(arguments ? *arguments : json::value())});
  }
  return out;
}

Result<chat::Message> read_message(const json::value& value, const std::string& path) {
  if (!value.is_object())
    return fail_parameter(ErrorKind::invalid, path, "{} must be an object, not {}", path, kind_name(value));
  const Fields fields(value.get_object(), path);
  SPLASH_TRY(const auto role, fields.string("role"));
  if (!role) return fields.wrong_type("role", "a string");
  chat::Message out;
  auto known = chat::role_from_name(*role);
  if (!known)
    return fail_parameter(ErrorKind::invalid, fields.path_of("role"), "{}: {}", fields.path_of("role"),
                          known.error().message);
  out.role = *known;
  SPLASH_TRY(out.content, read_text_content(fields, "content"));
  const bool has_content = fields.find("content") != nullptr;
  if (out.role == chat::Role::assistant) {
    // Two spellings are about: DeepSeek's and OpenRouter's.
    for (const char* name : {"reasoning", "reasoning_content"}) {
      SPLASH_TRY(const auto reasoning, fields.string(name));
      if (reasoning) out.reasoning = *reasoning;
    }
    SPLASH_TRY(out.tool_calls, read_tool_calls(fields));
  } else if (!has_content && out.role != chat::Role::tool) {
    return fields.wrong_type("content", "a string or an array of parts");
  }
  if (out.role == chat::Role::tool) {
    SPLASH_TRY(const auto id, fields.string("tool_call_id"));
    out.tool_call_id = id.value_or("");
  }
  return out;
}

Result<std::vector<chat::Message>> read_messages(const Fields& fields) {
  SPLASH_TRY(const json::array* items, fields.array("messages"));
  if (!items) return fields.wrong_type("messages", "an array");
  if (items->empty() || items->size() > max_messages)
    return fail_parameter(ErrorKind::invalid, "messages", "messages must hold 1 to {} messages", max_messages);
  std::vector<chat::Message> out;
  bool asks = false;
  for (std::size_t i = 0; i < items->size(); ++i) {
    SPLASH_TRY(chat::Message message, read_message((*items)[i], fmt::format("messages[{}]", i)));
    asks |= message.role == chat::Role::user;
    out.push_back(std::move(message));
  }
  if (!asks) return fail_parameter(ErrorKind::invalid, "messages", "messages must hold at least one of role user");
  return out;
}

Result<ReplyFormat> read_response_format(const Fields& fields) {
  SPLASH_TRY(const json::object* object, fields.object("response_format"));
  if (!object) return AnyText{};
  const Fields format(*object, "response_format");
  SPLASH_TRY(const auto type, format.string("type"));
  if (!type) return format.wrong_type("type", "a string");
  if (*type == "text") return AnyText{};
  if (*type == "json_object") return AnyJsonObject{};
  if (*type != "json_schema")
    return fail_parameter(ErrorKind::invalid, format.path_of("type"),
                          "response_format.type must be text, json_object or json_schema");
  SPLASH_TRY(const json::object* wrapper, format.object("json_schema"));
  if (!wrapper) return format.wrong_type("json_schema", "an object");
  const Fields schema(*wrapper, "response_format.json_schema");
  SPLASH_TRY_STATUS(schema.string("name"));
  SPLASH_TRY_STATUS(schema.boolean("strict"));
  const json::value* value = schema.find("schema");
  if (!value || !(value->is_object() || value->is_bool())) return schema.wrong_type("schema", "an object");
  return JsonSchema{json::serialize(*value)};
}

// What we do not do must not look as if it had been done.
Status refuse_unsupported(const Fields& fields) {
  const auto refuse = [&](std::string_view name, std::string_view instead) {
    return fail_parameter(ErrorKind::unsupported, std::string(name), "{} is not supported; {}", name, instead);
  };
  SPLASH_TRY(const auto n, fields.integer("n", {1, std::numeric_limits<std::int64_t>::max()}));
  if (n.value_or(1) != 1) return refuse("n", "only n = 1 is, send the request again for another answer");
  SPLASH_TRY(const auto logprobs, fields.boolean("logprobs"));
  if (logprobs.value_or(false)) return refuse("logprobs", "leave it out");
  SPLASH_TRY(const auto top_logprobs, fields.integer("top_logprobs", {0, 20}));
  if (top_logprobs.value_or(0) != 0) return refuse("top_logprobs", "leave it out");
  SPLASH_TRY(const json::object* bias, fields.object("logit_bias"));
  if (bias && !bias->empty()) return refuse("logit_bias", "leave it out");
  for (const char* name : {"presence_penalty", "frequency_penalty"}) {
    SPLASH_TRY(const auto penalty, fields.number(name, {-2.0, 2.0}));
    if (penalty.value_or(0.0) != 0.0) return refuse(name, "only 0 is");
  }
  SPLASH_TRY(const auto repetition, fields.number("repetition_penalty", {0.0, 1e6, false}));
  if (repetition.value_or(1.0) != 1.0) return refuse("repetition_penalty", "only 1 is");
  SPLASH_TRY(const auto ignore_eos, fields.boolean("ignore_eos"));
  if (ignore_eos.value_or(false)) return refuse("ignore_eos", "leave it out");
  SPLASH_TRY(const auto min_tokens, fields.integer("min_tokens", {0, std::numeric_limits<std::int64_t>::max()}));
  if (min_tokens.value_or(0) != 0) return refuse("min_tokens", "leave it out");
  SPLASH_TRY(const json::array* modalities, fields.array("modalities"));
  if (modalities)
    for (const json::value& modality : *modalities)
      if (!modality.is_string() || modality.get_string() != "text") return refuse("modalities", "only [\"text\"] is");
  for (const char* name : {"audio", "web_search_options"})
    if (fields.find(name)) return refuse(name, "leave it out");
  for (const char* name : {"functions", "function_call"})
    if (fields.find(name)) return refuse(name, "use tools and tool_choice");
  for (const char* name : {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "grammar", "json_schema"})
    if (fields.find(name)) return refuse(name, "use response_format");
  return {};
}

Status read_limits(const Fields& fields, GenerationRequest& out) {
  constexpr Fields::IntegerRange positive{1, std::numeric_limits<int>::max()};
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {  // the later one wins
    SPLASH_TRY(const auto limit, fields.integer(name, positive));
    if (!limit) continue;
    out.max_tokens = static_cast<int>(*limit);
    out.max_tokens_field = name;
  }
  SPLASH_TRY(out.time_limit, read_time_limit(fields));
  return {};
}

Status read_tool_fields(const Fields& fields, GenerationRequest& out) {
  SPLASH_TRY(out.conversation.tools, read_tools(fields));
  SPLASH_TRY(const ToolChoice choice, read_tool_choice(fields, !out.conversation.tools.empty()));
  out.allow_tool_calls = choice == ToolChoice::automatic;
  SPLASH_TRY(const auto parallel, fields.boolean("parallel_tool_calls"));
  out.parallel_tool_calls = parallel.value_or(true);
  SPLASH_TRY(out.format, read_response_format(fields));
  if (!std::holds_alternative<AnyText>(out.format) && out.allow_tool_calls && !out.conversation.tools.empty())
    return fail_parameter(ErrorKind::unsupported, "response_format",
                          "response_format together with callable tools is not supported yet; set tool_choice to none");
  return {};
}

Result<ChatRequest> read_fields(const Fields& fields, const Backend& backend) {
  ChatRequest out;
  SPLASH_TRY_STATUS(refuse_unsupported(fields));
  SPLASH_TRY(const auto stream, fields.boolean("stream"));
  out.stream = stream.value_or(false);
  SPLASH_TRY(const json::object* stream_options, fields.object("stream_options"));
  if (stream_options) {
    SPLASH_TRY(const auto include, Fields(*stream_options, "stream_options").boolean("include_usage"));
    out.include_usage = include.value_or(false);
  }
  GenerationRequest& generation = out.generation;
  generation.prompt_field = "messages";
  SPLASH_TRY_STATUS(read_limits(fields, generation));
  SPLASH_TRY(generation.sampling, read_sampling(fields, backend.sampling));
  SPLASH_TRY(generation.stop, read_stop(fields));
  SPLASH_TRY_STATUS(read_tool_fields(fields, generation));
  SPLASH_TRY(generation.conversation.template_variables, read_template_variables(fields, backend.reasoning_effort));
  SPLASH_TRY(generation.conversation.messages, read_messages(fields));
  return out;
}

}  // namespace

Answer<ChatRequest> read_chat_request(std::string body, const Backend& backend) {
  SPLASH_TRY(const json::object object, parse_object(std::move(body)));
  const Fields fields(object);
  SPLASH_TRY(const std::monostate known, check_model(fields, backend));
  static_cast<void>(known);
  SPLASH_TRY(ChatRequest request, read_fields(fields, backend));
  return request;
}

}  // namespace splash::api
