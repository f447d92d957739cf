#include "chat/prompt.h"

#include <algorithm>
#include <array>
#include <boost/json/parse.hpp>
#include <cmath>
#include <span>
#include <utility>

#include "base/check.h"

namespace splash::chat {
namespace {

namespace json = boost::json;

constexpr std::array<std::string_view, 7> known_efforts = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
constexpr int max_argument_depth = 64;  // of nested arrays and objects

std::string_view role_name(Role role) {
  switch (role) {
    case Role::system:
      return "system";
    case Role::user:
      return "user";
    case Role::assistant:
      return "assistant";
    case Role::tool:
      return "tool";
  }
  return "user";
}

bool is_finite(const json::value& value) {
  switch (value.kind()) {
    case json::kind::double_:
      return std::isfinite(value.get_double());
    case json::kind::array: {
      const json::array& items = value.get_array();
      return std::all_of(items.begin(), items.end(), is_finite);
    }
    case json::kind::object: {
      const json::object& members = value.get_object();
      return std::all_of(members.begin(), members.end(), [](const auto& member) { return is_finite(member.value()); });
    }
    default:
      return true;
  }
}

// Clients that know no reasoning field send it back inside the content. Only a leading block counts: anywhere else
// `</think>` is text like any other. With reasoning given apart, the content is left alone.
std::pair<std::string_view, std::string_view> reasoning_and_content(const Message& message) {
  const std::string_view content = message.content;
  constexpr std::string_view open = "<think>", close = "</think>";
  const std::size_t begin = std::min(content.find_first_not_of(" \t\r\n"), content.size());
  const std::size_t end = content.find(close, begin);
  if (!message.reasoning.empty() || !content.substr(begin).starts_with(open) || end == std::string_view::npos) {
    return {message.reasoning, content};
  }
  return {content.substr(begin + open.size(), end - begin - open.size()), content.substr(end + close.size())};
}

json::object template_message(const Message& message) {
  json::object object{{"role", role_name(message.role)}, {"content", message.content}};
  if (message.role == Role::tool && !message.tool_call_id.empty()) object["tool_call_id"] = message.tool_call_id;
  if (message.role != Role::assistant) return object;
  const auto [reasoning, content] = reasoning_and_content(message);
  object["content"] = content;
  // Always a string, even if empty: without it templates of 3.5 and 3.6 look for reasoning within the content.
  object["reasoning_content"] = reasoning;
  if (message.tool_calls.empty()) return object;
  json::array calls;
  for (const ToolCall& call : message.tool_calls) {
    json::object function{{"name", call.name}, {"arguments", call.arguments}};
    calls.push_back(json::object{{"id", call.id}, {"type", "function"}, {"function", std::move(function)}});
  }
  object["tool_calls"] = std::move(calls);
  return object;
}

// Results have no ids in the prompt, their place says which call they answer: they follow the order of the calls.
void order_results(std::span<const Message*> messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i]->role != Role::assistant) continue;
    const std::vector<ToolCall>& calls = messages[i]->tool_calls;
    const auto place = [&](const Message* result) {
      return std::find_if(calls.begin(), calls.end(),
                          [&](const ToolCall& call) { return call.id == result->tool_call_id; });
    };
    std::size_t end = i + 1;
    while (end < messages.size() && messages[end]->role == Role::tool && place(messages[end]) != calls.end()) ++end;
    std::stable_sort(messages.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                     messages.begin() + static_cast<std::ptrdiff_t>(end),
                     [&](const Message* a, const Message* b) { return place(a) < place(b); });
  }
}

json::array template_messages(const Conversation& conversation) {
  std::vector<const Message*> ordered;
  ordered.reserve(conversation.messages.size());
  for (const Message& message : conversation.messages) ordered.push_back(&message);
  order_results(ordered);
  json::array messages;
  for (const Message* message : ordered) messages.push_back(template_message(*message));
  return messages;
}

bool contains(std::span<const std::string> list, std::string_view item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

// Turns the request's reasoning effort into what the template understands (see PromptBuilder::build).
Result<json::object> normalise(json::object variables, std::span<const std::string> accepted_efforts) {
  for (const char* name : {"enable_thinking", "reasoning_effort"}) {
    const json::value* value = variables.if_contains(name);
    if (value != nullptr && value->is_null()) variables.erase(name);
  }
  if (const json::value* thinking = variables.if_contains("enable_thinking"); thinking && !thinking->is_bool()) {
    return fail_parameter(ErrorKind::invalid, "enable_thinking", "enable_thinking is true or false");
  }
  const json::value* value = variables.if_contains("reasoning_effort");
  if (value == nullptr) return variables;
  const std::string effort = value->is_string() ? std::string(value->get_string()) : std::string();
  if (std::find(known_efforts.begin(), known_efforts.end(), effort) == known_efforts.end()) {
    return fail_parameter(ErrorKind::invalid, "reasoning_effort", "reasoning_effort is one of {}",
                          fmt::join(known_efforts, ", "));
  }
  if (effort == "none" || effort == "minimal") {
    variables.erase("reasoning_effort");
    if (!variables.contains("enable_thinking")) variables["enable_thinking"] = false;
    return variables;
  }
  if (contains(accepted_efforts, effort)) return variables;
  if ((effort == "high" || effort == "max") && contains(accepted_efforts, "xhigh")) {
    variables["reasoning_effort"] = "xhigh";
    return variables;
  }
  return fail_parameter(ErrorKind::invalid, "reasoning_effort", "this model's template knows the efforts none, {}",
                        fmt::join(accepted_efforts, ", "));
}

// The ids of both halves are the ids of the whole if the second begins with a control token, for text is never joined
// across one. Any other template gets the longest prefix that the generation prompt leaves alone.
Prompt encode(const text::RenderedPrompt& rendered, const text::Tokenizer& tokenizer) {
  const std::span<const text::Segment> segments = rendered.segments;
  const auto head = segments.first(rendered.reply_boundary);
  const auto tail = segments.subspan(rendered.reply_boundary);
  Prompt prompt;
  prompt.starts_in_reasoning = rendered.starts_in_reasoning;
  prompt.tokens = tokenizer.encode(head);
  std::vector<Token> reply = tokenizer.encode(tail);
  const bool clean = reply.empty() || (tail.front().control && tokenizer.is_added(reply.front()) &&
                                       tail.front().text.starts_with(tokenizer.bytes_of(reply.front())));
  if (clean) {
    prompt.reply_boundary = static_cast<int>(prompt.tokens.size());
    prompt.tokens.insert(prompt.tokens.end(), reply.begin(), reply.end());
    return prompt;
  }
  const std::vector<Token> whole = tokenizer.encode(segments);
  const auto [left, right] = std::mismatch(prompt.tokens.begin(), prompt.tokens.end(), whole.begin(), whole.end());
  prompt.reply_boundary = static_cast<int>(left - prompt.tokens.begin());
  prompt.tokens = whole;
  return prompt;
}

}  // namespace

Result<Role> role_from_name(std::string_view name) {
  if (name == "system" || name == "developer") return Role::system;
  if (name == "user") return Role::user;
  if (name == "assistant") return Role::assistant;
  if (name == "tool") return Role::tool;
  return fail_parameter(ErrorKind::invalid, "role", "a role is one of system, developer, user, assistant, tool");
}

json::object arguments_from_json(const json::value& arguments) {
  if (const json::object* object = arguments.if_object(); object && is_finite(arguments)) return *object;
  if (arguments.is_null()) return {};
  const json::string* text = arguments.if_string();
  if (text == nullptr) return {{"arguments", arguments}};
  if (text->find_first_not_of(" \t\r\n") == json::string::npos) return {};
  json::parse_options options;
  options.max_depth = max_argument_depth;
  boost::system::error_code error;
  const json::value parsed = json::parse(*text, error, {}, options);
  if (!error && parsed.is_null()) return {};
  if (!error && parsed.is_object() && is_finite(parsed)) return parsed.get_object();
  return {{"arguments", *text}};
}

PromptBuilder::PromptBuilder(std::shared_ptr<const text::Tokenizer> tokenizer,
                             std::shared_ptr<const text::ChatTemplate> chat_template)
    : tokenizer_(std::move(tokenizer)), template_(std::move(chat_template)) {
  SPLASH_CHECK(tokenizer_ != nullptr && template_ != nullptr);
  const json::array probe{json::object{{"role", "user"}, {"content", "Hi"}}};
  for (const std::string_view effort : known_efforts) {
    if (effort == "none" || effort == "minimal") continue;
    if (template_->render(probe, {}, {{"reasoning_effort", effort}})) accepted_efforts_.emplace_back(effort);
  }
}

Result<Prompt> PromptBuilder::build(const Conversation& conversation) const {
  if (conversation.messages.empty()) {
    return fail_parameter(ErrorKind::invalid, "messages", "a conversation needs at least one message");
  }
  SPLASH_TRY(const json::object variables, normalise(conversation.template_variables, accepted_efforts_));
  json::array tools;
  for (const Tool& tool : conversation.tools) tools.push_back(tool.definition);
  SPLASH_TRY(const text::RenderedPrompt rendered, template_->render(template_messages(conversation), tools, variables));
  return encode(rendered, *tokenizer_);
}

}  // namespace splash::chat
