#include "api/openai_chat.h"

#include <boost/json/serialize.hpp>
#include <ctime>

#include "api/ids.h"
#include "http/wire.h"

namespace splash::api {
namespace {

const char* finish_name(ReplyFinish finish) {
  switch (finish) {
    case ReplyFinish::stop:
    case ReplyFinish::stop_string:
      return "stop";
    case ReplyFinish::length:
      return "length";
    case ReplyFinish::tool_calls:
      return "tool_calls";
  }
  return "stop";
}

json::object usage_object(const ReplyUsage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}}};
}

// Our own numbers: tokens per step = (accepted_tokens + decode_steps) / decode_steps.
json::object splash_object(const ReplyUsage& usage) {
  return {{"decode_steps", usage.decode_steps},
          {"drafted_tokens", usage.drafted_tokens},
          {"accepted_tokens", usage.accepted_tokens},
          {"decode_ms", usage.decode_ms}};
}

class ChatWriter : public ReplyWriter {
 public:
  ChatWriter(const Backend& backend, std::shared_ptr<http::Exchange> exchange)
      : exchange_(std::move(exchange)), model_(backend.model), fingerprint_(backend.fingerprint) {}

 protected:
  json::object frame(std::string_view object) const {
    return {{"id", id_},
            {"object", object},
            {"created", created_},
            {"model", model_},
            {"system_fingerprint", fingerprint_}};
  }

  std::shared_ptr<http::Exchange> exchange_;

 private:
  const std::string model_, fingerprint_;
  const std::string id_ = random_id("chatcmpl-");
  const std::int64_t created_ = std::time(nullptr);
};

class WholeWriter final : public ChatWriter {
 public:
  using ChatWriter::ChatWriter;

  void started() override {}
  void keep_alive() override {}

  void output(const chat::OutputEvent& event) override {
    if (const auto* text = std::get_if<chat::TextDelta>(&event)) content_ += text->text;
    if (const auto* reasoning = std::get_if<chat::ReasoningDelta>(&event)) reasoning_ += reasoning->text;
    if (const auto* start = std::get_if<chat::ToolCallStart>(&event)) call_ = {start->id, start->name, {}};
    if (const auto* arguments = std::get_if<chat::ToolCallArguments>(&event)) call_.arguments += arguments->json;
    // Only whole calls are listed: half a call, cut by the limit, must not be carried out.
    if (std::holds_alternative<chat::ToolCallEnd>(event))
      calls_.push_back({{"id", call_.id},
                        {"type", "function"},
                        {"function", {{"name", call_.name}, {"arguments", call_.arguments}}}});
  }

  void finished(ReplyFinish finish, const ReplyUsage& usage) override {
    json::object message{{"role", "assistant"}};
    message["content"] = content_.empty() && !calls_.empty() ? json::value(nullptr) : json::value(content_);
    if (!reasoning_.empty()) message["reasoning_content"] = reasoning_;
    if (!calls_.empty()) message["tool_calls"] = std::move(calls_);
    json::object answer = frame("chat.completion");
    answer["choices"] = {
        {{"index", 0}, {"message", std::move(message)}, {"logprobs", nullptr}, {"finish_reason", finish_name(finish)}}};
    answer["usage"] = usage_object(usage);
    answer["splash"] = splash_object(usage);
    exchange_->respond({.body = json::serialize(answer)});
  }

  void failed(const ApiError& error) override { exchange_->respond(openai_error_response(error)); }

 private:
  struct Call {
    std::string id, name, arguments;
  };
  std::string content_, reasoning_;
  Call call_;
  json::array calls_;
};

// The head of the stream is held back until the engine has started or the first keep-alive is due, so that an early
// failure still gets its real HTTP status.
class StreamWriter final : public ChatWriter {
 public:
  StreamWriter(const Backend& backend, bool include_usage, std::shared_ptr<http::Exchange> exchange)
      : ChatWriter(backend, std::move(exchange)), include_usage_(include_usage) {}

  void started() override {
    open();
    if (!std::exchange(role_sent_, true)) send_delta({{"role", "assistant"}, {"content", ""}});
  }

  // Clients with a timeout on data overlook comments, but a comment is all that may precede the role.
  void keep_alive() override {
    open();
    if (role_sent_)
      send_delta({});
    else
      exchange_->write(http::sse_comment("splash-keepalive"));
  }

  void output(const chat::OutputEvent& event) override {
    started();
    if (const auto* text = std::get_if<chat::TextDelta>(&event)) send_delta({{"content", text->text}});
    if (const auto* reasoning = std::get_if<chat::ReasoningDelta>(&event))
      send_delta({{"reasoning_content", reasoning->text}});
    if (const auto* start = std::get_if<chat::ToolCallStart>(&event))
      send_call({{"index", start->index},
                 {"id", start->id},
                 {"type", "function"},
                 {"function", {{"name", start->name}, {"arguments", ""}}}});
    if (const auto* arguments = std::get_if<chat::ToolCallArguments>(&event))
      send_call({{"index", arguments->index}, {"function", {{"arguments", arguments->json}}}});
  }

  void finished(ReplyFinish finish, const ReplyUsage& usage) override {
    started();
    json::object last = chunk({}, finish_name(finish));
    last["splash"] = splash_object(usage);
    send(last);
    if (include_usage_) {
      json::object counted = frame("chat.completion.chunk");
      counted["choices"] = json::array();
      counted["usage"] = usage_object(usage);
      send(counted);
    }
    exchange_->write(http::sse_data("[DONE]"));
    exchange_->finish();
  }

  // In the middle of a stream the status is gone: an error object takes the place of a chunk, and no [DONE] follows.
  void failed(const ApiError& error) override {
    if (!open_) return exchange_->respond(openai_error_response(error));
    exchange_->write(http::sse_data(json::serialize(openai_error(error))));
    exchange_->finish();
  }

 private:
  void open() {
    if (std::exchange(open_, true)) return;
    exchange_->start_stream({.content_type = "text/event-stream; charset=utf-8",
                             .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}});
  }

  json::object chunk(json::object delta, json::value finish) const {
    json::object out = frame("chat.completion.chunk");
    out["choices"] = {
        {{"index", 0}, {"delta", std::move(delta)}, {"logprobs", nullptr}, {"finish_reason", std::move(finish)}}};
    if (include_usage_) out["usage"] = nullptr;
    return out;
  }

  void send(const json::object& data) { exchange_->write(http::sse_data(json::serialize(data))); }
  void send_delta(json::object delta) { send(chunk(std::move(delta), nullptr)); }
  void send_call(json::object call) {
    json::array calls;
    calls.push_back(std::move(call));
    send_delta({{"tool_calls", std::move(calls)}});
  }

  const bool include_usage_;
  bool open_ = false;
  bool role_sent_ = false;
};

}  // namespace

std::unique_ptr<ReplyWriter> make_chat_writer(const Backend& backend, const ChatRequest& request,
                                              std::shared_ptr<http::Exchange> exchange) {
  if (request.stream) return std::make_unique<StreamWriter>(backend, request.include_usage, std::move(exchange));
  return std::make_unique<WholeWriter>(backend, std::move(exchange));
}

}  // namespace splash::api
