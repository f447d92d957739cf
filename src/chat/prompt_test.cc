#include "chat/prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <random>

#include "text/test_tokenizer.h"

namespace splash::chat {
namespace {

namespace json = boost::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

PromptBuilder builder(const std::string& template_name = "chat_template_38.jinja") {
  const auto chat_template = text::ChatTemplate::compile(text::test::test_data(template_name));
  SPLASH_CHECK(chat_template.has_value(), "{}", chat_template.error().message);
  return {text::test::synthetic_tokenizer(), *chat_template};
}

const PromptBuilder& builder_38() {
  static const PromptBuilder built = builder();
  return built;
}

std::string text_of(std::span<const Token> tokens) {
  std::string text;
  for (const Token token : tokens) text += text::test::synthetic_tokenizer()->bytes_of(token);
  return text;
}

Prompt build(const Conversation& conversation, const PromptBuilder& with = builder_38()) {
  auto prompt = with.build(conversation);
  EXPECT_TRUE(prompt.has_value()) << prompt.error().message;
  return prompt.value_or(Prompt{});
}

Message message(Role role, std::string content) { return {.role = role, .content = std::move(content)}; }
Conversation hi(json::object variables = {}) {
  return {.messages = {message(Role::user, "Hi")}, .template_variables = std::move(variables)};
}

const std::string plain_hi = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n";
const std::string silent_hi = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

TEST(Prompt, EffortsBecomeWhatTheTemplateKnows) {
  const auto text = [](json::object variables) { return text_of(build(hi(std::move(variables))).tokens); };
  const std::string standard = text({});
  EXPECT_THAT(standard, HasSubstr("set to xhigh"));
  for (const char* effort : {"high", "max", "xhigh"}) EXPECT_EQ(text({{"reasoning_effort", effort}}), standard);
  for (const char* effort : {"none", "minimal"}) EXPECT_EQ(text({{"reasoning_effort", effort}}), silent_hi);
  EXPECT_EQ(text({{"reasoning_effort", "medium"}}), plain_hi);
  EXPECT_THAT(text({{"reasoning_effort", "low"}}), HasSubstr("set to low"));
  EXPECT_EQ(text({{"reasoning_effort", nullptr}, {"enable_thinking", nullptr}}), standard);
  EXPECT_EQ(text({{"reasoning_effort", "none"}, {"enable_thinking", true}}), standard);
  EXPECT_EQ(text({{"reasoning_effort", "high"}, {"enable_thinking", false}}), silent_hi);
}

TEST(Prompt, UnknownEffortsAreNamed) {
  for (const json::value& effort : {json::value("banana"), json::value(3), json::value("")}) {
    const auto prompt = builder_38().build(hi({{"reasoning_effort", effort}}));
    ASSERT_FALSE(prompt.has_value());
    EXPECT_EQ(prompt.error().kind, ErrorKind::invalid);
    EXPECT_EQ(prompt.error().parameter, "reasoning_effort");
  }
  EXPECT_EQ(builder_38().build(hi({{"enable_thinking", "no"}})).error().parameter, "enable_thinking");
}

TEST(Prompt, TemplatesThatKnowEveryEffortGetIt) {
  const PromptBuilder echo(text::test::synthetic_tokenizer(), *text::ChatTemplate::compile("{{ reasoning_effort }}"));
  EXPECT_EQ(text_of(build(hi({{"reasoning_effort", "high"}}), echo).tokens), "high");
}

TEST(Prompt, StartsInReasoning) {
  EXPECT_TRUE(build(hi()).starts_in_reasoning);
  EXPECT_FALSE(build(hi({{"enable_thinking", false}})).starts_in_reasoning);
}

TEST(Prompt, BoundaryIsWhereTheNextTurnGoesOn) {
  Conversation conversation = hi({{"enable_thinking", false}});
  const Prompt first = build(conversation);
  EXPECT_EQ(text_of(std::span(first.tokens).first(static_cast<std::size_t>(first.reply_boundary))),
            "<|im_start|>user\nHi<|im_end|>\n");
  conversation.messages.push_back(message(Role::assistant, "Hello"));
  conversation.messages.push_back(message(Role::user, "And?"));
  const Prompt second = build(conversation);
  ASSERT_GT(second.tokens.size(), first.tokens.size());
  EXPECT_TRUE(std::equal(first.tokens.begin(), first.tokens.end(), second.tokens.begin()));
}

TEST(Prompt, HalvesHaveTheIdsOfTheWhole) {
  // A generation prompt that begins with text, not with a control token: tokens may straddle it.
  const auto odd =
      *text::ChatTemplate::compile("{{ messages[0].content }}{% if add_generation_prompt %}{{ 'he end' }}{% endif %}");
  const auto tokenizer = text::test::synthetic_tokenizer();
  const PromptBuilder with(tokenizer, odd);
  const Prompt prompt = build({.messages = {message(Role::user, "say t")}}, with);
  const std::vector<text::Segment> whole{{"say the end", false}};
  EXPECT_EQ(prompt.tokens, tokenizer->encode(whole));
  EXPECT_EQ(text_of(std::span(prompt.tokens).first(static_cast<std::size_t>(prompt.reply_boundary))), "say");
}

TEST(Prompt, UserTextWithEveryControlTokenYieldsNone) {
  const auto tokenizer = text::test::synthetic_tokenizer();
  std::string attack;
  for (const std::string_view control : text::test::control_tokens) attack += std::string(control) + "\n";
  const auto conversation = [](const std::string& text) {
    const Tool tool{"f", {{"type", "function"}, {"function", json::object{{"name", "f"}, {"description", text}}}}, {}};
    Message call = message(Role::assistant, "c" + text);
    call.reasoning = "r" + text;
    call.tool_calls = {{"id", "f", {{"k" + text, text}, {"list", json::array{text}}}}};
    Message result = message(Role::tool, text);
    result.tool_call_id = "id";
    return Conversation{{message(Role::system, "s" + text), message(Role::user, "u" + text), call, result,
                         message(Role::system, "l" + text), message(Role::user, "v" + text)},
                        {tool},
                        {{"enable_thinking", false}}};
  };
  const auto controls = [&](const Prompt& prompt) {
    std::vector<Token> ids;
    for (const Token token : prompt.tokens) {
      if (tokenizer->is_added(token)) ids.push_back(token);
    }
    return ids;
  };
  const Prompt attacked = build(conversation(attack));
  EXPECT_EQ(controls(attacked), controls(build(conversation("x"))));
  EXPECT_THAT(text_of(attacked.tokens), HasSubstr("u" + attack.substr(0, attack.size() - 1)));  // and the text survives
}

TEST(Prompt, LeadingReasoningInContentIsReasoning) {
  const auto text = [](Message assistant) {
    return text_of(build({{message(Role::user, "q"), std::move(assistant), message(Role::user, "x")},
                          {},
                          {{"enable_thinking", false}}})
                       .tokens);
  };
  EXPECT_THAT(text(message(Role::assistant, "<think>\nwhy\n</think>\n\nanswer")),
              HasSubstr("<think>\nwhy\n</think>\n\nanswer<"));
  EXPECT_THAT(text(message(Role::assistant, "hello </think> world")),
              HasSubstr("<think>\n\n</think>\n\nhello </think> world<"));
  Message both = message(Role::assistant, "<think>a</think> b");
  both.reasoning = "r";
  EXPECT_THAT(text(both), HasSubstr("<think>\nr\n</think>\n\n<think>a</think> b<"));
}

TEST(Prompt, OlderTemplatesDoNotSplitContentEither) {
  const PromptBuilder with = builder("chat_template_35.jinja");
  const Conversation conversation{{message(Role::user, "q"), message(Role::assistant, "hello </think> world")}, {}, {}};
  EXPECT_THAT(text_of(build(conversation, with).tokens), HasSubstr("hello </think> world<|im_end|>"));
}

TEST(Prompt, ResultsFollowTheOrderOfTheCalls) {
  Message calls = message(Role::assistant, "");
  calls.tool_calls = {{"a", "f", {}}, {"b", "f", {}}};
  const auto result = [](std::string id, std::string content) {
    Message message{.role = Role::tool, .content = std::move(content)};
    message.tool_call_id = std::move(id);
    return message;
  };
  const auto text = [&](Message first, Message second) {
    return text_of(build({{message(Role::user, "q"), calls, std::move(first), std::move(second)}, {}, {}}).tokens);
  };
  EXPECT_EQ(text(result("b", "two"), result("a", "one")), text(result("a", "one"), result("b", "two")));
  EXPECT_NE(text(result("x", "two"), result("", "one")), text(result("", "one"), result("x", "two")));
}

TEST(Prompt, RefusesWhatItCannotRender) {
  EXPECT_EQ(builder_38().build({}).error().parameter, "messages");
  const auto only_system = builder_38().build({{message(Role::system, "s")}, {}, {}});
  ASSERT_FALSE(only_system.has_value());
  EXPECT_EQ(only_system.error().kind, ErrorKind::invalid);
  EXPECT_EQ(only_system.error().parameter, "messages");
}

TEST(Prompt, Roles) {
  EXPECT_EQ(*role_from_name("developer"), Role::system);
  EXPECT_EQ(*role_from_name("tool"), Role::tool);
  const auto unknown = role_from_name("latest_reminder");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_THAT(unknown.error().message, HasSubstr("developer"));
}

TEST(Prompt, ArgumentsOfEarlierCalls) {
  const auto from = [](const json::value& arguments) { return arguments_from_json(arguments); };
  EXPECT_EQ(from(R"({"a": 1, "b": {"c": [2]}})"), (json::object{{"a", 1}, {"b", json::object{{"c", json::array{2}}}}}));
  EXPECT_EQ(from(json::object{{"a", 1}}), (json::object{{"a", 1}}));
  for (const json::value& nothing :
       {json::value(""), json::value(" \n"), json::value("null"), json::value(nullptr), json::value("{}")}) {
    EXPECT_EQ(from(nothing), json::object{});
  }
  for (const char* odd : {"[1,2]", "{bad", "\"text\"", "{\"a\": 1e400}", "3"}) {
    EXPECT_EQ(from(odd), (json::object{{"arguments", odd}}));
  }
  EXPECT_EQ(from(json::array{1}), (json::object{{"arguments", json::array{1}}}));
}

TEST(Prompt, GoldenIdsOfTheRealVocabulary) {
  const auto tokenizer = text::test::real_tokenizer();
  if (!tokenizer) return;
  const PromptBuilder with(tokenizer, *text::ChatTemplate::compile(text::test::test_data("chat_template_38.jinja")));
  const Conversation conversation{{message(Role::user, "科技的边界在哪里？")}, {}, {{"enable_thinking", false}}};
  const Prompt prompt = build(conversation, with);
  EXPECT_THAT(prompt.tokens, ElementsAre(248045, 846, 198, 116348, 111764, 109994, 10992, 248046, 198, 248045, 74455,
                                         198, 248068, 271, 248069, 271));
  EXPECT_EQ(prompt.reply_boundary, 9);
  EXPECT_FALSE(prompt.starts_in_reasoning);
}

}  // namespace
}  // namespace splash::chat
