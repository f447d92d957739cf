// Validation of chat requests: which are taken, and which field the error of the others names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/openai_chat.h"
#include "api/test_backend.h"

namespace splash::api {
namespace {

const Backend& backend() {
  static const Backend instance = test_backend(std::make_shared<ScriptedEngine>());
  return instance;
}

// A request with one user message and `more` fields.
std::string with(const std::string& more) {
  return R"({"messages":[{"role":"user","content":"hi"}])" + (more.empty() ? "" : "," + more) + "}";
}
std::string with_messages(const std::string& messages) { return R"({"messages":)" + messages + "}"; }

TEST(ChatRequest, BadFieldsAreNamed) {
  const struct {
    std::string body;
    const char* parameter;
    int status = 400;
  } cases[] = {
      {with(R"("model":"other")"), "model", 404},
      {with(R"("model":3)"), "model", 404},
      {with(R"("stream":"true")"), "stream"},
      {with(R"("stream_options":[])"), "stream_options"},
      {with(R"("stream_options":{"include_usage":1})"), "stream_options.include_usage"},
      {with(R"("temperature":-0.1)"), "temperature"},
      {with(R"("temperature":2.1)"), "temperature"},
      {with(R"("temperature":"1")"), "temperature"},
      {with(R"("top_p":0)"), "top_p"},
      {with(R"("top_p":1.5)"), "top_p"},
      {with(R"("top_k":-2)"), "top_k"},
      {with(R"("top_k":1.5)"), "top_k"},
      {with(R"("min_p":-1)"), "min_p"},
      {with(R"("max_tokens":0)"), "max_tokens"},
      {with(R"("max_tokens":18446744073709551615)"), "max_tokens"},
      {with(R"("max_completion_tokens":1.5)"), "max_completion_tokens"},
      {with(R"("seed":1.5)"), "seed"},
      {with(R"("seed":"1")"), "seed"},
      {with(R"("stop":5)"), "stop"},
      {with(R"("stop":["a","b","c","d","e"])"), "stop"},
      {with(R"("stop":["a",""])"), "stop[1]"},
      {with(R"("stop":"")"), "stop"},
      {with(R"("n":2)"), "n"},
      {with(R"("n":0)"), "n"},
      {with(R"("logprobs":true)"), "logprobs"},
      {with(R"("top_logprobs":3)"), "top_logprobs"},
      {with(R"("logit_bias":{"5":1})"), "logit_bias"},
      {with(R"("presence_penalty":0.5)"), "presence_penalty"},
      {with(R"("frequency_penalty":3)"), "frequency_penalty"},
      {with(R"("repetition_penalty":1.1)"), "repetition_penalty"},
      {with(R"("ignore_eos":true)"), "ignore_eos"},
      {with(R"("modalities":["text","audio"])"), "modalities"},
      {with(R"("functions":[])"), "functions"},
      {with(R"("guided_json":{})"), "guided_json"},
      {with(R"("timeout":0)"), "timeout"},
      {with(R"("reasoning_effort":"ultra")"), "reasoning_effort"},
      {with(R"("reasoning_effort":3)"), "reasoning_effort"},
      {with(R"("reasoning_effort":"")"), "reasoning_effort"},
      {with(R"("enable_thinking":"yes")"), "enable_thinking"},
      {with(R"("chat_template_kwargs":{"enable_thinking":1})"), "chat_template_kwargs.enable_thinking"},
      {with(R"("chat_template_kwargs":{"messages":[]})"), "chat_template_kwargs.messages"},
      {with(R"("tools":{})"), "tools"},
      {with(R"("tools":[1])"), "tools[0]"},
      {with(R"("tools":[{"type":"web_search"}])"), "tools[0].type"},
      {with(R"("tools":[{"type":"function"}])"), "tools[0].function"},
      {with(R"("tools":[{"type":"function","function":{"name":"a b"}}])"), "tools[0].function.name"},
      {with(R"("tools":[{"type":"function","function":{"name":"a","parameters":[]}}])"),
       "tools[0].function.parameters"},
      {with(R"("tools":[{"type":"function","function":{"name":"a","strict":1}}])"), "tools[0].function.strict"},
      {with(R"("tools":[{"function":{"name":"a"}},{"function":{"name":"a"}}])"), "tools[1].function.name"},
      {with(R"("tool_choice":"required")"), "tool_choice"},
      {with(R"("tools":[{"function":{"name":"a"}}],"tool_choice":"required")"), "tool_choice"},
      {with(R"("tools":[{"function":{"name":"a"}}],"tool_choice":{"type":"function","function":{"name":"a"}})"),
       "tool_choice"},
      {with(R"("tool_choice":"sometimes")"), "tool_choice"},
      {with(R"("response_format":"json")"), "response_format"},
      {with(R"("response_format":{"type":"yaml"})"), "response_format.type"},
      {with(R"("response_format":{"type":"json_schema"})"), "response_format.json_schema"},
      {with(R"("response_format":{"type":"json_schema","json_schema":{"name":"x"}})"),
       "response_format.json_schema.schema"},
      {with(R"("tools":[{"function":{"name":"a"}}],"response_format":{"type":"json_object"})"), "response_format"},
      {R"({})", "messages"},
      {with_messages("null"), "messages"},
      {with_messages("[]"), "messages"},
      {with_messages(R"([{"role":"system","content":"x"}])"), "messages"},
      {with_messages(R"(["hi"])"), "messages[0]"},
      {with_messages(R"([{"content":"hi"}])"), "messages[0].role"},
      {with_messages(R"([{"role":"robot","content":"hi"}])"), "messages[0].role"},
      {with_messages(R"([{"role":"user"}])"), "messages[0].content"},
      {with_messages(R"([{"role":"user","content":null}])"), "messages[0].content"},
      {with_messages(R"([{"role":"user","content":5}])"), "messages[0].content"},
      {with_messages(R"([{"role":"user","content":"a"},{"role":"user","content":["b"]}])"), "messages[1].content[0]"},
      {with_messages(R"([{"role":"user","content":[{"text":"b"}]}])"), "messages[0].content[0].type"},
      {with_messages(R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":1}]}])"),
       "messages[0].content[1].text"},
      {with_messages(R"([{"role":"user","content":[{"type":"text"}]}])"), "messages[0].content[0].text"},
      {with_messages(R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}}]}])"),
       "messages[0].content[0].type"},
      {with_messages(R"([{"role":"assistant","content":"x","reasoning_content":1}])"), "messages[0].reasoning_content"},
      {with_messages(R"([{"role":"assistant","tool_calls":{}}])"), "messages[0].tool_calls"},
      {with_messages(R"([{"role":"assistant","tool_calls":[{"id":"x"}]}])"), "messages[0].tool_calls[0].function"},
      {with_messages(R"([{"role":"assistant","tool_calls":[{"function":{"name":""}}]}])"),
       "messages[0].tool_calls[0].function.name"},
      {with_messages(R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":5}}]}])"),
       "messages[0].tool_calls[0].function.arguments"},
      {with_messages(R"([{"role":"tool","tool_call_id":7,"content":"x"}])"), "messages[0].tool_call_id"},
  };
  for (const auto& item : cases) {
    const auto request = read_chat_request(item.body, backend());
    ASSERT_FALSE(request) << item.body;
    EXPECT_EQ(request.error().parameter, item.parameter) << item.body << "\n" << request.error().message;
    EXPECT_EQ(request.error().status, item.status) << item.body;
    EXPECT_FALSE(request.error().message.empty());
  }
}

// FC-MI-08
TEST(ChatRequest, BrokenJson) {
  const std::string deep = R"({"x":)" + std::string(10'000, '[') + std::string(10'000, ']') + "}";
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"), std::string("\"x\""),
        with(R"("a":1,)"), with(R"("a":NaN)"), with(R"("a":1e999)"), with(R"("a":"\x")"), with(R"("a":'b')"),
        with("\"a\":\"\xff\""), with("\"a\":\"\xed\xa0\x80\""), "\xef\xbb\xbf" + with(""), with("\"a\":\"b\nc\""),
        with("") + "x", "/* */" + with(""), deep}) {
    const auto request = read_chat_request(body, backend());
    ASSERT_FALSE(request) << body.substr(0, 100);
    EXPECT_EQ(request.error().status, 400);
  }
}

TEST(ChatRequest, HarmlessFieldsAndNullsAreTaken) {
  for (
      const char* more :
      {"",
       R"("user":"me","metadata":{},"store":true,"service_tier":"auto","prompt_cache_key":"k","safety_identifier":"x")",
       R"("temperature":null,"top_p":null,"top_k":null,"seed":null,"stop":null,"n":null,"max_tokens":null,"stream":null)",
       R"("tools":null,"tool_choice":null,"response_format":null,"stream_options":null,"logit_bias":{},"stop":[])",
       R"("tools":[],"tool_choice":"auto")", R"("tool_choice":"none")",
       R"("n":1,"logprobs":false,"presence_penalty":0)", R"("model":"test/model")", R"("model":"alias")",
       R"("response_format":{"type":"text"})",
       R"("tools":[{"type":"function","function":{"name":"a","parameters":null}}],"parallel_tool_calls":true)"}) {
    const auto request = read_chat_request(with(more), backend());
    EXPECT_TRUE(request) << more << "\n" << (request ? "" : request.error().message);
  }
}

TEST(ChatRequest, SamplingOverTheModelsDefaults) {
  Backend tuned = backend();
  tuned.sampling = {.temperature = 0.7f, .top_k = 20, .top_p = 0.8f, .min_p = 0.1f};
  auto plain = read_chat_request(with(""), tuned)->generation.sampling;
  EXPECT_EQ(plain.temperature, 0.7f);
  EXPECT_EQ(plain.top_k, 20);
  EXPECT_EQ(plain.top_p, 0.8f);
  EXPECT_EQ(plain.min_p, 0.1f);
  EXPECT_NE(plain.seed, read_chat_request(with(""), tuned)->generation.sampling.seed);

  auto stated = read_chat_request(
                    with(R"("temperature":0,"top_k":-1,"top_p":1e-60,"min_p":1,"seed":18446744073709551615)"), tuned)
                    ->generation.sampling;
  EXPECT_EQ(stated.temperature, 0.0f);
  EXPECT_EQ(stated.top_k, 0);
  EXPECT_GT(stated.top_p, 0.0f);
  EXPECT_LT(stated.min_p, 1.0f);
  EXPECT_EQ(stated.seed, ~std::uint64_t{0});
  EXPECT_EQ(read_chat_request(with(R"("temperature":0.001,"seed":-1)"), tuned)->generation.sampling.temperature, 0.01f);
}

TEST(ChatRequest, LimitsAndStops) {
  const auto both =
      read_chat_request(with(R"("max_tokens":5,"max_completion_tokens":7,"stop":"end","timeout":2.5)"), backend());
  EXPECT_EQ(both->generation.max_tokens, 7);
  EXPECT_EQ(both->generation.max_tokens_field, "max_completion_tokens");
  EXPECT_EQ(both->generation.stop, std::vector<std::string>{"end"});
  EXPECT_EQ(both->generation.time_limit, std::chrono::milliseconds(2500));
  EXPECT_FALSE(read_chat_request(with(""), backend())->generation.max_tokens);
}

TEST(ChatRequest, MessagesOfEveryRole) {
  const auto request = read_chat_request(with_messages(R"([
      {"role":"developer","content":"be brief"},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"me"},
      {"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[
          {"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},
      {"role":"tool","tool_call_id":"call_1","content":[{"type":"text","text":"42"}]},
      {"role":"system","content":""},
      {"role":"assistant","content":"done"}])"),
                                         backend());
  ASSERT_TRUE(request) << request.error().message;
  const auto& messages = request->generation.conversation.messages;
  ASSERT_EQ(messages.size(), 6u);
  EXPECT_EQ(messages[0].role, chat::Role::system);
  EXPECT_EQ(messages[1].content, "ab");
  EXPECT_EQ(messages[2].reasoning, "hm");
  ASSERT_EQ(messages[2].tool_calls.size(), 1u);
  EXPECT_EQ(messages[2].tool_calls[0].arguments.at("x"), 1);
  EXPECT_EQ(messages[3].tool_call_id, "call_1");
  EXPECT_EQ(messages[3].content, "42");
}

TEST(ChatRequest, LoneSurrogatesBecomeReplacementCharacters) {
  const auto content = [](const std::string& escaped) {
    const auto request =
        read_chat_request(R"({"messages":[{"role":"user","content":")" + escaped + R"("}]})", backend());
    return request ? request->generation.conversation.messages[0].content : "error: " + request.error().message;
  };
  EXPECT_EQ(content(R"(\ud83d\ude00)"), "😀");
  EXPECT_EQ(content(R"(a\ud83d)"), "a\uFFFD");
  EXPECT_EQ(content(R"(\ude00b)"), "\uFFFDb");
  EXPECT_EQ(content(R"(\ud83d\ud83d\ude00)"), "\uFFFD😀");
  EXPECT_EQ(content(R"(\\ud83d)"), R"(\ud83d)");  // an escaped backslash, no escape
}

TEST(ChatRequest, ThinkingVariables) {
  Backend with_default = backend();
  with_default.reasoning_effort = "low";
  const auto variables = [&](const char* more) {
    return read_chat_request(with(more), with_default)->generation.conversation.template_variables;
  };
  EXPECT_EQ(variables("").at("reasoning_effort"), "low");
  EXPECT_EQ(variables(R"("reasoning_effort":"high")").at("reasoning_effort"), "high");
  EXPECT_EQ(variables(R"("enable_thinking":false)").at("enable_thinking"), false);
  EXPECT_EQ(variables(R"("enable_thinking":true,"chat_template_kwargs":{"enable_thinking":false,"other":1})")
                .at("enable_thinking"),
            false);
  EXPECT_FALSE(variables(R"("chat_template_kwargs":{"enable_thinking":null})").contains("enable_thinking"));
}

}  // namespace
}  // namespace splash::api
