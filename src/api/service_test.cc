// The whole text half over a socket, with a scripted engine behind it.
#include "api/service.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>

#include "api/test_backend.h"
#include "http/server.h"
#include "http/test_client.h"

namespace splash::api {
namespace {

using namespace std::chrono_literals;
using http::status_of;
using http::TestClient;
using testing::HasSubstr;

struct Reply {
  int status = 0;
  std::string head, body;
  json::value value;                // of a JSON body
  std::vector<json::value> chunks;  // of an event stream
  bool done = false;                // it ended with [DONE]
};

class ServiceTest : public testing::Test {
 protected:
  void start(bool starts_in_reasoning = false, http::GuardOptions guard = {}) {
    server_ = *http::Server::bind({.port = 0, .guard = guard});
    service_ = std::make_shared<Service>(test_backend(engine_, starts_in_reasoning), server_->guard());
    ASSERT_TRUE(server_->start(service_));
  }
  void TearDown() override {
    engine_->stopping = true;
    for (int i = 0; i < 500 && engine_->running > 0; ++i) std::this_thread::sleep_for(10ms);
    server_->stop();
    engine_ = nullptr;
    service_ = nullptr;
    server_ = nullptr;
  }

  static std::string chat(const std::string& more) {
    const std::string body =
        R"({"messages":[{"role":"user","content":"hi there"}])" + (more.empty() ? "" : "," + more) + "}";
    return fmt::format(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        "{}\r\n\r\n{}",
        body.size(), body);
  }
  static std::string get(const char* path, const char* method = "GET", const char* more = "") {
    return fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", method, path, more);
  }

  Reply ask(const std::string& request) {
    TestClient client(server_->port());
    client.send(request);
    Reply reply;
    std::string bytes = client.read_until([](const std::string& so_far) {
      const std::size_t end = so_far.find("\r\n\r\n");
      if (end == std::string::npos) return false;
      if (so_far.find("Transfer-Encoding: chunked") < end) return so_far.ends_with("0\r\n\r\n");
      const std::size_t length = so_far.find("Content-Length: ");
      return length > end || so_far.size() - end - 4 >= std::strtoul(so_far.c_str() + length + 16, nullptr, 10) ||
             so_far.starts_with("HTTP/1.1 204");
    });
    reply.status = status_of(bytes);
    const std::size_t end = bytes.find("\r\n\r\n");
    reply.head = bytes.substr(0, end);
    reply.body = bytes.substr(std::min(bytes.size(), end + 4));
    boost::system::error_code error;
    if (reply.head.find("application/json") != std::string::npos) reply.value = json::parse(reply.body, error);
    for (std::size_t i = reply.body.find("data: "); i != std::string::npos; i = reply.body.find("data: ", i + 1)) {
      const std::string line = reply.body.substr(i + 6, reply.body.find("\n\n", i) - i - 6);
      if (line == "[DONE]")
        reply.done = true;
      else
        reply.chunks.push_back(json::parse(line));
    }
    return reply;
  }

  // The deltas of a stream put together again; what a whole answer would hold.
  static json::object joined(const Reply& reply) {
    std::string content, reasoning, finish;
    json::array calls;
    for (const json::value& chunk : reply.chunks) {
      if (!chunk.as_object().contains("choices") || chunk.at("choices").as_array().empty()) continue;
      const json::object& choice = chunk.at("choices").at(0).as_object();
      const json::object& delta = choice.at("delta").as_object();
      if (const auto* text = delta.if_contains("content")) content += text->as_string();
      if (const auto* text = delta.if_contains("reasoning_content")) reasoning += text->as_string();
      if (const auto* list = delta.if_contains("tool_calls")) {
        const json::object& call = list->as_array().at(0).as_object();
        const std::size_t index = static_cast<std::size_t>(call.at("index").as_int64());
        if (index == calls.size())
          calls.push_back(call);
        else {
          json::string& arguments = calls.at(index).at("function").at("arguments").as_string();
          arguments += call.at("function").at("arguments").as_string();
        }
      }
      if (choice.at("finish_reason").is_string()) {
        EXPECT_TRUE(finish.empty());
        EXPECT_TRUE(delta.empty());
        finish = choice.at("finish_reason").as_string();
      }
    }
    return {{"content", content}, {"reasoning", reasoning}, {"calls", calls}, {"finish", finish}};
  }

  template <class Condition>
  static bool eventually(Condition condition) {
    for (int i = 0; i < 500 && !condition(); ++i) std::this_thread::sleep_for(10ms);
    return condition();
  }

  std::shared_ptr<ScriptedEngine> engine_ = std::make_shared<ScriptedEngine>();
  std::unique_ptr<http::Server> server_;
  std::shared_ptr<Service> service_;
};

const char* const weather_tool =
    R"("tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}])";
const char* const weather_call =
    "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>";

TEST_F(ServiceTest, WholeAnswer) {
  start();
  engine_->script.reply = "Hello, wörld 😀";
  const Reply reply = ask(chat(R"("model":"alias","max_tokens":50,"seed":7)"));
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.value.at("object"), "chat.completion");
  EXPECT_EQ(reply.value.at("model"), "test/model");
  EXPECT_EQ(reply.value.at("system_fingerprint"), "fp-test");
  EXPECT_THAT(std::string(reply.value.at("id").as_string()), testing::StartsWith("chatcmpl-"));
  const json::value& choice = reply.value.at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("content"), "Hello, wörld 😀");
  EXPECT_EQ(choice.at("message").at("role"), "assistant");
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  const json::value& usage = reply.value.at("usage");
  EXPECT_EQ(usage.at("prompt_tokens"), 9);
  EXPECT_EQ(usage.at("completion_tokens"), 18);
  EXPECT_EQ(usage.at("total_tokens"), 27);
  EXPECT_EQ(usage.at("prompt_tokens_details").at("cached_tokens"), 2);
  EXPECT_EQ(usage.at("completion_tokens_details").at("reasoning_tokens"), 0);
  EXPECT_EQ(reply.value.at("splash").at("decode_steps"), 6);
  EXPECT_EQ(reply.value.at("splash").at("accepted_tokens"), 12);
  EXPECT_EQ(engine_->last.max_tokens, 50);
  EXPECT_EQ(engine_->last.sampling.seed, 7u);
  EXPECT_EQ(engine_->last.reply_boundary, 8);
  EXPECT_EQ(engine_->last.stop_tokens, (std::vector<Token>{256, 258}));
}

TEST_F(ServiceTest, StreamedAnswer) {
  start();
  engine_->script.reply = "Hello, wörld 😀";
  const Reply reply = ask(chat(R"("stream":true,"stream_options":{"include_usage":true})"));
  ASSERT_EQ(reply.status, 200);
  EXPECT_THAT(reply.head, HasSubstr("text/event-stream"));
  ASSERT_GE(reply.chunks.size(), 4u);
  EXPECT_EQ(reply.chunks.front().at("choices").at(0).at("delta").at("role"), "assistant");
  EXPECT_EQ(joined(reply).at("content"), "Hello, wörld 😀");
  EXPECT_EQ(joined(reply).at("finish"), "stop");
  EXPECT_TRUE(reply.done);
  const json::value& last = reply.chunks.back();
  EXPECT_TRUE(last.at("choices").as_array().empty());
  EXPECT_EQ(last.at("usage").at("completion_tokens"), 18);
  EXPECT_TRUE(reply.chunks.front().at("usage").is_null());
  EXPECT_EQ(reply.chunks[reply.chunks.size() - 2].at("splash").at("decode_steps"), 6);
}

// FC-SSE-04
TEST_F(ServiceTest, UsageOnlyWhenAskedFor) {
  start();
  engine_->script.reply = "x";
  for (const char* options :
       {"", R"(,"stream_options":null)", R"(,"stream_options":{})", R"(,"stream_options":{"include_usage":false})",
        R"(,"stream_options":{"include_usage":null})"}) {
    const Reply reply = ask(chat(std::string(R"("stream":true)") + options));
    EXPECT_EQ(reply.status, 200) << options;
    for (const json::value& chunk : reply.chunks) {
      EXPECT_FALSE(chunk.as_object().contains("usage"));
      EXPECT_FALSE(chunk.at("choices").as_array().empty());
    }
  }
}

TEST_F(ServiceTest, ReasoningApartFromContent) {
  start(true);
  engine_->script.reply = "let me see\n</think>\n\nforty-two";
  const Reply whole = ask(chat(""));
  EXPECT_EQ(whole.value.at("choices").at(0).at("message").at("reasoning_content"), "let me see");
  EXPECT_EQ(whole.value.at("choices").at(0).at("message").at("content"), "forty-two");
  EXPECT_EQ(whole.value.at("usage").at("completion_tokens_details").at("reasoning_tokens"), 11);
  const json::object streamed = joined(ask(chat(R"("stream":true)")));
  EXPECT_EQ(streamed.at("reasoning"), "let me see");
  EXPECT_EQ(streamed.at("content"), "forty-two");
}

// FC-RC-03
TEST_F(ServiceTest, CutInReasoning) {
  start(true);
  engine_->script.reply = "still thinking";
  engine_->script.reason = link::FinishReason::length;
  const Reply whole = ask(chat(""));
  EXPECT_EQ(whole.value.at("choices").at(0).at("message").at("content"), "");
  EXPECT_EQ(whole.value.at("choices").at(0).at("message").at("reasoning_content"), "still thinking");
  EXPECT_EQ(whole.value.at("choices").at(0).at("finish_reason"), "length");
}

TEST_F(ServiceTest, ToolCalls) {
  start();
  for (int tokens_per_step : {1, 5, 1000}) {
    engine_->script.reply = std::string("I look.\n") + weather_call + "\n" + weather_call;
    engine_->script.tokens_per_step = tokens_per_step;
    const Reply whole = ask(chat(weather_tool));
    const json::value& message = whole.value.at("choices").at(0).at("message");
    ASSERT_EQ(message.at("tool_calls").as_array().size(), 2u) << whole.body;
    EXPECT_EQ(message.at("tool_calls").at(0).at("function").at("name"), "weather");
    EXPECT_EQ(json::parse(message.at("tool_calls").at(1).at("function").at("arguments").as_string()),
              json::parse(R"({"city":"Rome"})"));
    EXPECT_NE(message.at("tool_calls").at(0).at("id"), message.at("tool_calls").at(1).at("id"));
    EXPECT_THAT(std::string(message.at("content").as_string()), testing::StartsWith("I look."));
    EXPECT_EQ(whole.value.at("choices").at(0).at("finish_reason"), "tool_calls");

    const json::object streamed = joined(ask(chat(std::string(R"("stream":true,)") + weather_tool)));
    ASSERT_EQ(streamed.at("calls").as_array().size(), 2u);
    EXPECT_EQ(streamed.at("calls").at(1).at("type"), "function");
    EXPECT_EQ(streamed.at("calls").at(0).at("function").at("arguments"),
              message.at("tool_calls").at(0).at("function").at("arguments"));
    EXPECT_EQ(streamed.at("finish"), "tool_calls");
    EXPECT_EQ(streamed.at("content"), message.at("content"));
  }
}

// FC-TC-11: half a call must not be carried out.
TEST_F(ServiceTest, AToolCallCutByTheLimitIsNotListed) {
  start();
  engine_->script.reply = std::string(weather_call).substr(0, 60);
  engine_->script.reason = link::FinishReason::length;
  const Reply whole = ask(chat(weather_tool));
  EXPECT_FALSE(whole.value.at("choices").at(0).at("message").as_object().contains("tool_calls")) << whole.body;
  EXPECT_EQ(whole.value.at("choices").at(0).at("finish_reason"), "length");
}

TEST_F(ServiceTest, OneCallOnly) {
  start();
  engine_->script.reply = std::string(weather_call) + "\n";
  engine_->script.endless = true;
  const Reply whole = ask(chat(std::string(R"("parallel_tool_calls":false,)") + weather_tool));
  ASSERT_EQ(whole.status, 200);
  EXPECT_EQ(whole.value.at("choices").at(0).at("message").at("tool_calls").as_array().size(), 1u);
  EXPECT_EQ(whole.value.at("choices").at(0).at("finish_reason"), "tool_calls");
  EXPECT_TRUE(eventually([&] { return engine_->running == 0; }));
}

TEST_F(ServiceTest, ToolChoiceNoneForbidsTheOpeningToken) {
  start();
  engine_->script.reply = "no";
  ask(chat(std::string(R"("tool_choice":"none",)") + weather_tool));
  ASSERT_NE(engine_->last.constraint, nullptr);
  std::vector<std::uint32_t> masks(3 * 10);
  const std::vector<Token> proposals{65, 261, 66};  // 261 = <tool_call>
  EXPECT_EQ(engine_->last.constraint->masks_along(proposals, masks), 2);
  EXPECT_EQ(masks[261 / 32] >> (261 % 32) & 1, 0u);
  EXPECT_EQ(masks[260 / 32] >> (260 % 32) & 1, 1u);
  ask(chat(""));
  EXPECT_EQ(engine_->last.constraint, nullptr);
}

// FC-SSE-03
TEST_F(ServiceTest, StopStringsEndTheReplyAndTheWork) {
  start();
  engine_->script.reply = "one two three ";
  engine_->script.endless = true;
  for (const char* stream : {"false", "true"}) {
    const Reply reply = ask(chat(fmt::format(R"("stop":["wo thr"],"stream":{})", stream)));
    ASSERT_EQ(reply.status, 200) << reply.body;
    const bool streamed = std::string_view(stream) == "true";
    const json::object parts = streamed ? joined(reply) : json::object{};
    EXPECT_EQ(streamed ? parts.at("content") : reply.value.at("choices").at(0).at("message").at("content"), "one t");
    EXPECT_EQ(streamed ? parts.at("finish") : reply.value.at("choices").at(0).at("finish_reason"), "stop");
    if (!streamed) {
      EXPECT_EQ(reply.value.at("usage").at("completion_tokens"), 11);
    }
  }
  EXPECT_TRUE(eventually([&] { return engine_->running == 0; }));
}

TEST_F(ServiceTest, AClientThatGoesStopsTheWork) {
  start();
  engine_->script.reply = "again and ";
  engine_->script.endless = true;
  engine_->script.step = 1ms;
  for (const char* stream : {"false", "true"}) {
    {
      TestClient client(server_->port());
      client.send(chat(fmt::format(R"("stream":{})", stream)));
      ASSERT_TRUE(eventually([&] { return engine_->running == 1; }));
    }
    EXPECT_TRUE(eventually([&] { return engine_->running == 0; }));
  }
  EXPECT_EQ(engine_->cancels, 2);
  EXPECT_THAT(ask(get("/metrics")).body, HasSubstr(R"(splash_requests_total{status="499"} 2)"));
}

// FC-SSE-06
TEST_F(ServiceTest, ErrorsBeforeAndWithinAStream) {
  start();
  engine_->script.fail_at_start = Error{ErrorKind::overloaded, "the queue is full", ""};
  const Reply early = ask(chat(R"("stream":true)"));
  EXPECT_EQ(early.status, 503);
  EXPECT_THAT(early.head, HasSubstr("Retry-After: 1"));
  EXPECT_EQ(early.value.at("error").at("type"), "server_error");
  EXPECT_EQ(early.value.at("error").at("code"), "server_overloaded");

  engine_->script = {.reply = "some text", .fail_after = Error{ErrorKind::timeout, "the deadline passed", ""}};
  const Reply within = ask(chat(R"("stream":true)"));
  EXPECT_EQ(within.status, 200);
  EXPECT_EQ(within.chunks.back().at("error").at("code"), "request_timeout");
  EXPECT_FALSE(within.done);
  EXPECT_EQ(ask(chat("")).status, 504);
}

// FC-OV-01
TEST_F(ServiceTest, ContextOverflow) {
  start();
  const auto long_body = [](std::size_t size) {
    return R"("messages":[{"role":"user","content":")" + std::string(size, 'x') + "\"}]";
  };
  for (const char* stream : {"", R"(,"stream":true)"}) {
    const Reply prompt = ask(chat(long_body(1000) + stream));
    EXPECT_EQ(prompt.status, 400);
    EXPECT_EQ(prompt.value.at("error").at("code"), "context_length_exceeded");
    EXPECT_EQ(prompt.value.at("error").at("param"), "messages");
    EXPECT_THAT(std::string(prompt.value.at("error").at("message").as_string()),
                testing::AllOf(HasSubstr("1001"), HasSubstr("1000")));
    const Reply reply = ask(chat(long_body(900) + R"(,"max_completion_tokens":100)" + stream));
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(reply.value.at("error").at("param"), "max_completion_tokens");
    EXPECT_EQ(reply.value.at("error").at("code"), "context_length_exceeded");
  }
  engine_->script.reply = "x";
  EXPECT_EQ(ask(chat(long_body(900) + R"(,"max_completion_tokens":99)")).status, 200);
}

TEST_F(ServiceTest, PathsAndMethods) {
  start();
  EXPECT_EQ(ask(get("/health")).body, R"({"status":"ok"})");
  EXPECT_EQ(ask(get("/ready")).status, 200);
  service_->set_ready(false);
  EXPECT_EQ(ask(get("/ready")).status, 503);
  const Reply models = ask(get("/v1/models?x=1"));
  EXPECT_EQ(models.value.at("data").at(0).at("id"), "test/model");
  EXPECT_EQ(models.value.at("data").at(0).at("context_length"), 1000);
  EXPECT_EQ(models.value.at("data").at(1).at("root"), "test/model");
  EXPECT_EQ(ask(get("/v1/models/test%2Fmodel")).value.at("id"), "test/model");
  EXPECT_EQ(ask(get("/v1/models/test/model")).status, 200);
  EXPECT_EQ(ask(get("/v1/models/other")).value.at("error").at("code"), "model_not_found");
  EXPECT_EQ(ask(get("/nowhere")).value.at("error").at("code"), "not_found");
  const Reply wrong = ask(get("/v1/chat/completions"));
  EXPECT_EQ(wrong.status, 405);
  EXPECT_THAT(wrong.head, HasSubstr("Allow: POST"));
  EXPECT_EQ(ask(get("/v1/models", "DELETE")).status, 405);
  EXPECT_EQ(ask(get("/v1/models", "BREW")).status, 501);
  EXPECT_EQ(ask(get("/v1/models", "OPTIONS")).status, 204);
  EXPECT_EQ(ask(get("/", "GET", "Host: evil.example\r\n")).status, 400);
  const Reply text =
      ask("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: "
          "2\r\n\r\n{}");
  EXPECT_EQ(text.status, 415);
  EXPECT_EQ(ask("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}").status, 415);
  EXPECT_EQ(ask("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                "application/json\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}")
                .status,
            415);
  EXPECT_EQ(ask("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json; "
                "charset=utf-8\r\nContent-Length: 2\r\n\r\n{}")
                .value.at("error")
                .at("param"),
            "messages");
}

TEST_F(ServiceTest, KeysGuardAllButTheProbes) {
  start(false, {.api_key = "secret"});
  engine_->script.reply = "x";
  EXPECT_EQ(ask(get("/health")).status, 200);
  EXPECT_EQ(ask(get("/ready")).status, 200);
  for (const char* path : {"/v1/models", "/metrics", "/nowhere"}) {
    const Reply refused = ask(get(path));
    EXPECT_EQ(refused.status, 401) << path;
    EXPECT_THAT(refused.head, HasSubstr("WWW-Authenticate: Bearer"));
    EXPECT_EQ(refused.value.at("error").at("code"), "authentication_error");
  }
  EXPECT_EQ(ask(chat("")).status, 401);
  EXPECT_EQ(ask(get("/v1/models", "GET", "Authorization: Bearer secret\r\n")).status, 200);
  EXPECT_EQ(ask(get("/v1/models", "GET", "x-api-key: secret\r\n")).status, 200);
}

TEST_F(ServiceTest, Preflight) {
  start(false, {.allowed_origins = {"https://ui.example"}});
  const Reply allowed = ask(get("/v1/chat/completions", "OPTIONS",
                                "Origin: https://ui.example\r\nAccess-Control-Request-Headers: authorization\r\n"));
  EXPECT_EQ(allowed.status, 204);
  EXPECT_THAT(allowed.head, HasSubstr("Access-Control-Allow-Origin: https://ui.example"));
  EXPECT_THAT(allowed.head, HasSubstr("Access-Control-Allow-Headers: authorization"));
  EXPECT_EQ(ask(get("/v1/chat/completions", "OPTIONS", "Origin: https://evil.example\r\n")).status, 403);
}

TEST_F(ServiceTest, SilenceIsFilledWithKeepAlives) {
  start();
  engine_->script = {.reply = "ab", .tokens_per_step = 1, .step = 2600ms};
  const Reply reply = ask(chat(R"("stream":true)"));
  EXPECT_EQ(joined(reply).at("content"), "ab");
  EXPECT_TRUE(reply.done);
  int empty = 0;
  for (const json::value& chunk : reply.chunks)
    empty += chunk.at("choices").at(0).at("delta").as_object().empty() &&
             chunk.at("choices").at(0).at("finish_reason").is_null();
  EXPECT_GE(empty, 1);
}

TEST_F(ServiceTest, Metrics) {
  start();
  engine_->script.reply = "x";
  ask(chat(""));
  // A client has its reply before the engine has put the request away.
  ASSERT_TRUE(eventually([&] { return engine_->running == 0; }));
  const Reply reply = ask(get("/metrics"));
  EXPECT_THAT(reply.head, HasSubstr("text/plain; version=0.0.4"));
  for (const char* line :
       {"splash_tokens_generated_total 0", "splash_decode_steps_total 0", "splash_draft_accepted_tokens_total 0",
        "splash_draft_proposed_tokens_total 0", "splash_prompt_tokens_total 0", "splash_cached_tokens_total 0",
        "splash_requests_total{status=\"200\"} 1", "splash_requests_running 0", "splash_requests_queued 0",
        "splash_pages{use=\"free\"} 0", "splash_step_seconds_bucket{le=\"+Inf\"} 6",
        "splash_between_steps_total 0", "splash_turnovers_microseconds_total 0", "splash_admissions_total 0",
        "splash_filings_microseconds_total 0", "splash_http_ttft_seconds_count 1"})
    EXPECT_THAT(reply.body, HasSubstr(line));
}

TEST_F(ServiceTest, ManyAtOnce) {
  start();
  engine_->script = {.reply = "a reply of some length", .tokens_per_step = 1, .step = 1ms};
  std::vector<std::thread> clients;
  std::atomic<int> right{0};
  for (int i = 0; i < 16; ++i)
    clients.emplace_back([&, i] {
      const Reply reply = ask(chat(i % 2 ? R"("stream":true)" : ""));
      if (i % 2)
        right += joined(reply).at("content") == "a reply of some length";
      else
        right += reply.value.at("choices").at(0).at("message").at("content") == "a reply of some length";
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(right, 16);
}

}  // namespace
}  // namespace splash::api
