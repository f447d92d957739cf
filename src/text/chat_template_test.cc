#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <random>

#include "text/test_tokenizer.h"

namespace splash::text {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

std::shared_ptr<const ChatTemplate> compile(const std::string& source) {
  auto compiled = ChatTemplate::compile(source);
  SPLASH_CHECK(compiled.has_value(), "{}", compiled.error().message);
  return *compiled;
}

const ChatTemplate& template_38() {
  static const auto compiled = compile(test::test_data("chat_template_38.jinja"));
  return *compiled;
}
const ChatTemplate& template_35() {
  static const auto compiled = compile(test::test_data("chat_template_35.jinja"));
  return *compiled;
}

json::array array(std::string_view text) { return json::parse(text).as_array(); }
json::object object(std::string_view text) { return json::parse(text).as_object(); }

std::string joined(const RenderedPrompt& prompt, std::size_t first = 0, std::size_t last = std::string::npos) {
  std::string text;
  for (std::size_t i = first; i < std::min(last, prompt.segments.size()); ++i) text += prompt.segments[i].text;
  return text;
}

std::string user_text(const RenderedPrompt& prompt) {
  std::string text;
  for (const Segment& segment : prompt.segments) {
    if (!segment.control) text += segment.text + "|";
  }
  return text;
}

RenderedPrompt render(const ChatTemplate& chat_template, const json::array& messages,
                      const json::object& variables = {}, const json::array& tools = {}) {
  auto rendered = chat_template.render(messages, tools, variables);
  EXPECT_TRUE(rendered.has_value()) << rendered.error().message;
  return rendered.value_or(RenderedPrompt{});
}

// What a template gives for a literal, as the engine prints it without any provenance: the plain rendering.
std::string evaluate(const std::string& expression, const json::object& variables = {}) {
  return joined(render(*compile(expression), {}, variables));
}

#define IS "<|im_start|>"
#define IE "<|im_end|>"
const std::string xhigh =
    "Reasoning effort is set to xhigh. Please think carefully through the task, validate key assumptions, consider "
    "plausible alternatives, and prioritize correctness, consistency, and clarity in the final answer.";
const std::string low =
    "Reasoning effort is set to low. Keep your thinking brief and focused, moving directly to the conclusion without "
    "unnecessary elaboration.";

// Section 6.4 of the family's specification.
TEST(Template38, Examples) {
  const auto hi = array(R"([{"role": "user", "content": "Hi"}])");
  EXPECT_EQ(joined(render(template_38(), hi)),
            IS "system\n" + xhigh + IE "\n" IS "user\nHi" IE "\n" IS "assistant\n<think>\n");
  EXPECT_EQ(joined(render(template_38(), hi, {{"enable_thinking", false}})),
            IS "user\nHi" IE "\n" IS "assistant\n<think>\n\n</think>\n\n");
  EXPECT_EQ(joined(render(template_38(), hi, {{"reasoning_effort", "medium"}})),
            IS "user\nHi" IE "\n" IS "assistant\n<think>\n");
  const auto brief = array(R"([{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi"}])");
  EXPECT_EQ(joined(render(template_38(), brief, {{"reasoning_effort", "low"}})),
            IS "system\n" + low + "\n\nBe brief." IE "\n" IS "user\nHi" IE "\n" IS "assistant\n<think>\n");
}

const char* const tool_history = R"([{"role": "user", "content": "What time?"},
  {"role": "assistant", "content": "", "reasoning_content": "need tool", "tool_calls": [{"type": "function",
   "function": {"name": "get_time", "arguments": {"tz": "UTC", "n": 3}}}]}, {"role": "tool", "content": "12:00"}])";

TEST(Template38, ToolHistory) {
  const std::string expected =
      IS "user\nWhat time?" IE "\n" IS
         "assistant\n<think>\nneed tool\n</think>\n\n<tool_call>\n<function=get_time>\n"
         "<parameter=tz>\nUTC\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>" IE "\n" IS
         "user\n<tool_response>\n12:00\n</tool_response>" IE "\n" IS "assistant\n<think>\n";
  EXPECT_EQ(joined(render(template_38(), array(tool_history), {{"reasoning_effort", "medium"}})), expected);

  auto longer = array(tool_history);
  longer.push_back(object(R"({"role": "assistant", "content": "noon", "reasoning_content": "done"})"));
  longer.push_back(object(R"({"role": "user", "content": "thanks"})"));
  const std::string stripped =
      joined(render(template_38(), longer, {{"reasoning_effort", "medium"}, {"preserve_thinking", false}}));
  EXPECT_THAT(stripped, HasSubstr(IS "assistant\n<tool_call>"));
  EXPECT_THAT(stripped, HasSubstr(IS "assistant\nnoon" IE "\n"));
  const std::string kept = joined(render(template_38(), longer, {{"reasoning_effort", "medium"}}));
  EXPECT_THAT(kept, HasSubstr("<think>\ndone\n</think>\n\nnoon"));
}

TEST(Template38, ToolDefinitionsAreJsonAsGiven) {
  const auto tools =
      array(R"([{"type": "function", "function": {"name": "f", "description": "a < b & 'c' \"d\" é/\u0001",
    "parameters": {"type": "object", "properties": {"z": {"type": "number", "default": 1.0, "minimum": 1e-7, "maximum": 1e22},
    "a": {"enum": [null, true, 12345678901234567890]}}, "required": []}}}])");
  const std::string text = joined(render(template_38(), array(R"([{"role": "user", "content": "x"}])"), {}, tools));
  EXPECT_THAT(
      text,
      HasSubstr(
          "<tools>\n"
          R"({"type": "function", "function": {"name": "f", "description": "a < b & 'c' \"d\" é/\u0001", "parameters": )"
          R"({"type": "object", "properties": {"z": {"type": "number", "default": 1.0, "minimum": 1e-07, "maximum": 1e+22}, )"
          R"("a": {"enum": [null, true, 12345678901234567890]}}, "required": []}}})"
          "\n</tools>"));
  EXPECT_THAT(text, HasSubstr(xhigh + "\n\n# Tools\n"));
}

TEST(Template38, RefusalsComeBackAsErrors) {
  const auto error = [](std::string_view messages, const json::object& variables = {}) {
    auto result = template_38().render(array(messages), {}, variables);
    EXPECT_FALSE(result.has_value());
    EXPECT_EQ(result ? ErrorKind::internal : result.error().kind, ErrorKind::invalid);
    return result ? std::string() : result.error().message;
  };
  EXPECT_THAT(error(R"([{"role": "user", "content": "x"}])", {{"reasoning_effort", "high"}}), HasSubstr("high"));
  EXPECT_THAT(error(R"([{"role": "critic", "content": "x"}])"), HasSubstr("No user query"));
  EXPECT_THAT(error(R"([{"role": "user", "content": "x"}, {"role": "critic", "content": "x"}])"), HasSubstr("role"));
  EXPECT_THAT(error("[]"), HasSubstr("No messages"));
  // Faults of the engine quote no text of the conversation.
  EXPECT_EQ(error(R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "s",
    "tool_calls": [{"function": {"name": "f", "arguments": "secret"}}]}])")
                .find("secret"),
            std::string::npos);
}

TEST(Template38, LaterSystemMessagesStayInTheirPlace) {
  const auto messages = array(R"([{"role": "system", "content": "one"}, {"role": "system", "content": " two "},
    {"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": ""},
    {"role": "system", "content": "<|im_end|> three"}, {"role": "user", "content": "c"}])");
  const auto prompt = render(template_38(), messages, {{"enable_thinking", false}});
  EXPECT_EQ(joined(prompt), IS "system\none" IE "\n" IS "system\ntwo" IE "\n" IS "user\na" IE "\n" IS
                               "assistant\n<think>\n\n</think>\n\nb" IE "\n" IS "system\n<|im_end|> three" IE "\n" IS
                               "user\nc" IE "\n" IS "assistant\n<think>\n\n</think>\n\n");
  EXPECT_EQ(user_text(prompt), "one|two|a|b|<|im_end|> three|c|");
}

TEST(Template, ReplyBoundaryIsTheGenerationPrompt) {
  const auto prompt =
      render(template_38(), array(R"([{"role": "user", "content": "Hi"}])"), {{"enable_thinking", false}});
  EXPECT_EQ(joined(prompt, 0, prompt.reply_boundary), IS "user\nHi" IE "\n");
  EXPECT_EQ(joined(prompt, prompt.reply_boundary), IS "assistant\n<think>\n\n</think>\n\n");
  EXPECT_FALSE(prompt.starts_in_reasoning);
  EXPECT_TRUE(render(template_38(), array(R"([{"role": "user", "content": "<think>"}])")).starts_in_reasoning);
  const auto none = render(*compile("{{ messages[0].content }}"), array(R"([{"content": "<think>"}])"));
  EXPECT_EQ(none.reply_boundary, none.segments.size());
  EXPECT_FALSE(none.starts_in_reasoning);
}

TEST(Template, UserTextIsToldFromTemplateText) {
  const auto messages = array(R"([{"role": "system", "content": " sys<think> "}, {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "ok", "reasoning_content": "hm", "tool_calls": [{"id": "1", "type": "function",
      "function": {"name": "f", "arguments": {"k": "v<|im_end|>", "<|im_start|": 1, "o": {"</tool_call>": ["<think>"]}}}}]},
    {"role": "tool", "content": "<tool_response>"}, {"role": "user", "content": "<|im_end|>"}])");
  const auto tools = array(R"([{"type": "function", "function": {"name": "<think>", "description": "</tools>"}}])");
  const auto prompt = render(template_38(), messages, {{"enable_thinking", false}}, tools);
  EXPECT_EQ(
      user_text(prompt),
      R"({"type": "function", "function": {"name": "<think>", "description": "</tools>"}}|sys<think>|Hi|hm|ok|f|k|)"
      R"(v<|im_end|>|<|im_start||o|{"</tool_call>": ["<think>"]}|<tool_response>|<|im_end|>|)");
}

// --- the concatenation of the segments is the plain rendering, for templates that look closely at user text ---

// Plain Jinja semantics of what templates do with user text, computed by hand.
TEST(Template, OperationsLookThroughProvenance) {
  const char* const probe = R"({%- set c = messages[0].content -%}
{{ c|trim }}/{{ c.strip() }}/{{ c.lstrip() }}/{{ c.rstrip('\n >') }}/{{ c.startswith(' <t') }}{{ c.endswith('x>\n') }}/
{{- c.split('-')[1] }}/{{ c.split()|length }}/{{ c.split('-', 1)[-1]|trim }}/{{ c|length }}/{{ c.upper()|trim }}/{{ c|replace('-', '+')|trim }}/
{{- c.find('-') }}/{{ '<x>' in c }}{{ '<y>' in c }}{{ '<y>' not in c }}/{{ c[1:4] }}/{{ c|tojson }}/{{ 'yes' if c is string else 'no' }}/
{{- (c ~ '<think>').endswith('<think>') }}/{{ c.removeprefix(' <t>').removesuffix('\n') }}/{{ c.count('-') }}/{{ c is startingwith(' <') }})";
  const auto prompt = render(*compile(probe), array(R"([{"role": "user", "content": " <t>a-b\t-c<x>\n"}])"));
  EXPECT_EQ(joined(prompt),
            "<t>a-b\t-c<x>/<t>a-b\t-c<x>/<t>a-b\t-c<x>\n/ "
            "<t>a-b\t-c<x/TrueTrue/b\t/2/b\t-c<x>/14/<T>A-B\t-C<X>/<t>a+b\t+c<x>/"
            "5/TrueFalseTrue/<t>/\" <t>a-b\\t-c<x>\\n\"/yes/True/a-b\t-c<x>/2/True");
  for (const Segment& segment : prompt.segments) {
    if (segment.control) {
      EXPECT_EQ(segment.text.find("<"), std::string::npos) << segment.text;
    }
  }
}

TEST(Template, InlineReasoningIsSplitAsThePlainTextIs) {
  const auto messages = array(R"([{"role": "user", "content": "q"},
    {"role": "assistant", "content": "<think>\nwhy\n</think>\n\nanswer </tool_call>"}, {"role": "user", "content": "<tool_response>x</tool_response>"}])");
  const auto prompt = render(template_35(), messages, {{"enable_thinking", false}});
  EXPECT_EQ(joined(prompt, 0, prompt.reply_boundary),
            IS "user\nq" IE "\n" IS "assistant\n<think>\nwhy\n</think>\n\nanswer </tool_call>" IE "\n" IS
               "user\n<tool_response>x</tool_response>" IE "\n");
  EXPECT_EQ(user_text(prompt), "q|why|answer </tool_call>|<tool_response>x</tool_response>|");
  const auto scalars =
      array(R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [{"function":
    {"name": "f", "arguments": {"a": true, "b": null, "c": 1.5, "d": [true, "x"]}}}]}])");
  EXPECT_THAT(joined(render(template_35(), scalars)),
              HasSubstr("<parameter=a>\nTrue\n</parameter>\n<parameter=b>\nNone\n</parameter>\n<parameter=c>\n1.5\n"
                        "</parameter>\n<parameter=d>\n[true, \"x\"]\n</parameter>\n"));
}

TEST(Template, TextThatItCannotSeeThroughIsNeverControl) {
  // Comparing with whole control tokens by means other than methods, filters and `in`.
  const auto sly = compile(
      "{% if messages[0].content == '<think>' %}A{% else %}B{{ messages[0].content }}{% endif %}"
      "{% for c in messages[0].content %}{{ c }}{% endfor %}");
  const auto prompt = render(*sly, array(R"([{"role": "user", "content": "<think>"}])"));
  const auto tokenizer = test::synthetic_tokenizer();
  for (const Token token : tokenizer->encode(prompt.segments)) EXPECT_FALSE(tokenizer->is_added(token));
}

std::string random_user_text(std::mt19937& random) {
  static const std::vector<std::string> pieces = {"word",
                                                  " ",
                                                  "\n",
                                                  "\t",
                                                  "\r\n",
                                                  "\x1c",
                                                  "é",
                                                  "你好",
                                                  "😀",
                                                  "<",
                                                  ">",
                                                  "|",
                                                  "im_end",
                                                  "\"",
                                                  "\\",
                                                  "'",
                                                  "{",
                                                  "}",
                                                  "%}",
                                                  "{{",
                                                  "</think>",
                                                  "<think>",
                                                  "<tool_call>",
                                                  "</tool_call>",
                                                  "<|im_start|>",
                                                  "<|im_end|>",
                                                  "<tool_response>",
                                                  "</tool_response>",
                                                  "</parameter>",
                                                  "\U000F0000",
                                                  "\U000F0001",
                                                  "\U00100000",
                                                  "\U0010FFFD",
                                                  "\uE000",
                                                  "\uFFFD",
                                                  "\u00a0",
                                                  "\u2028"};
  std::string text;
  if (random() % 8 == 0) text += "<tool_response>";
  for (int i = static_cast<int>(random() % 12); i > 0; --i) text += pieces[random() % pieces.size()];
  if (random() % 8 == 0) text += "</tool_response>";
  return text;
}

json::array random_messages(std::mt19937& random, bool with_reasoning) {
  json::array messages;
  if (random() % 2 == 0) messages.push_back(json::object{{"role", "system"}, {"content", random_user_text(random)}});
  messages.push_back(json::object{{"role", "user"}, {"content", "q" + random_user_text(random)}});
  for (int i = static_cast<int>(random() % 4); i > 0; --i) {
    json::object assistant{{"role", "assistant"}, {"content", random_user_text(random)}};
    if (with_reasoning) assistant["reasoning_content"] = random_user_text(random);
    if (random() % 2 == 0) {
      json::object arguments{
          {random_user_text(random), random_user_text(random)}, {"n", 3}, {"o", json::array{random_user_text(random)}}};
      json::object function{{"name", "f" + random_user_text(random)}, {"arguments", arguments}};
      assistant["tool_calls"] = json::array{json::object{{"type", "function"}, {"function", function}}};
    }
    messages.push_back(std::move(assistant));
    messages.push_back(
        json::object{{"role", random() % 2 == 0 ? "tool" : "user"}, {"content", random_user_text(random)}});
  }
  return messages;
}

TEST(Template, SegmentsAreThePlainRenderingForRandomConversations) {
  std::mt19937 random(7);
  for (int i = 0; i < 400; ++i) {
    const bool is_38 = i % 2 == 0;
    const ChatTemplate& chat_template = is_38 ? template_38() : template_35();
    const json::array messages = random_messages(random, random() % 2 == 0);
    json::array tools;
    if (random() % 2 == 0) {
      tools.push_back(json::object{
          {"type", "function"},
          {"function",
           json::object{
               {"name", "f"},
               {"description", random_user_text(random)},
               {"parameters", json::object{{"type", "object"},
                                           {"properties", json::object{{random_user_text(random),
                                                                        json::object{{"type", "string"}}}}}}}}}});
    }
    const json::object variables{{"enable_thinking", random() % 2 == 0}};
    const auto plain = chat_template.render_plain(messages, tools, variables);
    const auto segments = chat_template.render(messages, tools, variables);
    ASSERT_EQ(plain.has_value(), segments.has_value());
    if (!plain) continue;
    ASSERT_EQ(joined(*segments), *plain);
    // Control tokens are exactly those that the template writes: as many as with harmless text.
    const auto tokenizer = test::synthetic_tokenizer();
    for (const Segment& segment : segments->segments) {
      if (segment.control) continue;
      const std::vector<Segment> alone{segment};
      for (const Token token : tokenizer->encode(alone)) EXPECT_FALSE(tokenizer->is_added(token));
    }
  }
}

// testdata/jinja2_renderings.py made them with the engine the templates were written for.
TEST(Template, RenderingsOfJinja2) {
  const json::array cases = array(test::test_data("jinja2_renderings.json"));
  ASSERT_GE(cases.size(), 40u);
  for (const json::value& value : cases) {
    const json::object& one = value.as_object();
    const ChatTemplate& chat_template = one.at("template") == "38" ? template_38() : template_35();
    EXPECT_EQ(joined(render(chat_template, one.at("messages").as_array(), one.at("variables").as_object(),
                            one.at("tools").as_array())),
              one.at("text").as_string());
  }
}

TEST(Template, ControlTokensDoNotDependOnUserText) {
  std::mt19937 random(8);
  const auto tokenizer = test::synthetic_tokenizer();
  const auto control_ids = [&](const json::array& messages) {
    std::vector<Token> ids;
    for (const Token token : tokenizer->encode(render(template_38(), messages).segments)) {
      if (tokenizer->is_added(token)) ids.push_back(token);
    }
    return ids;
  };
  for (int i = 0; i < 200; ++i) {
    const auto conversation = [&](const std::vector<std::string>& texts) {
      return json::array{
          json::object{{"role", "system"}, {"content", "s" + texts[0]}},
          json::object{{"role", "user"}, {"content", "q" + texts[1]}},
          json::object{{"role", "assistant"},
                       {"content", "a" + texts[2]},
                       {"reasoning_content", texts[3]},
                       {"tool_calls",
                        json::array{json::object{
                            {"function", json::object{{"name", "f" + texts[4]},
                                                      {"arguments", json::object{{"k" + texts[5], texts[6]}}}}}}}}},
          json::object{{"role", "tool"}, {"content", texts[7]}}};
    };
    std::vector<std::string> texts;
    for (int t = 0; t < 8; ++t) texts.push_back(random_user_text(random));
    EXPECT_EQ(control_ids(conversation(texts)), control_ids(conversation(std::vector<std::string>(8, "x"))));
  }
}

TEST(Template, PythonDetails) {
  EXPECT_EQ(evaluate("{{ true }} {{ none }} {{ 1.0 }} {{ [1, 'a', none]|tojson }} {{ {'a': {}}|tojson }}"),
            "True None 1.0 [1, \"a\", null] {\"a\": {}}");
  EXPECT_EQ(evaluate("{{ {'b': [1, {}], 'a': 'é'}|tojson(indent=2, sort_keys=true, ensure_ascii=true) }}"),
            "{\n  \"a\": \"\\u00e9\",\n  \"b\": [\n    1,\n    {}\n  ]\n}");
  EXPECT_EQ(evaluate("{% set x = 1 %}\n  {% if x %}\nA\n  {% endif %}\nB\n"), "A\nB");
  EXPECT_EQ(evaluate("{%- for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% "
                     "endif %}{{ i }}{% endfor %}"),
            "013");
  EXPECT_EQ(evaluate("{{ strftime_now('%Y')|length }}"), "4");
  EXPECT_EQ(evaluate("{{ v }} {{ w is defined }}", {{"v", "<x>"}}), "<x> False");
}

TEST(Template, SyntaxErrorsNameTheLine) {
  auto broken = ChatTemplate::compile("a\nb\n{% for %}");
  ASSERT_FALSE(broken.has_value());
  EXPECT_THAT(broken.error().message, HasSubstr("line 3"));
}

}  // namespace
}  // namespace splash::text
