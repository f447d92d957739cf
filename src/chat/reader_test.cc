#include "chat/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <random>
#include <set>

#include "chat/argument.h"
#include "text/test_tokenizer.h"

namespace splash::chat {
namespace {

namespace json = boost::json;

std::vector<Tool> tools() {
  const auto tool = [](std::string name, std::string_view parameters) {
    return Tool{std::move(name), {}, json::parse(parameters).as_object()};
  };
  return {tool("write", R"({"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"},
                        "n": {"type": "integer"}, "deep": {"type": "object"}, "flag": {"type": "boolean"}}})"),
          tool("get", R"({"type": "object", "properties": {}})"),
          tool("get_weather", R"({"properties": {"city": {"anyOf": [{"type": "string"}, {"type": "null"}]}}})")};
}

// What a client puts together from the events.
struct Reply {
  std::string reasoning;
  std::string text;
  struct Call {
    std::string name;
    std::string arguments;
    bool ended = false;
  };
  std::vector<Call> calls;
  std::string order;  // r, t, c in the order in which they began
  int pieces = 0;     // argument deltas
  std::set<std::string> ids;

  void take(const std::vector<OutputEvent>& events) {
    const auto mark = [&](char kind) {
      if (order.empty() || order.back() != kind) order += kind;
    };
    for (const OutputEvent& event : events) {
      if (const auto* delta = std::get_if<ReasoningDelta>(&event)) {
        mark('r');
        check_piece(delta->text);
        reasoning += delta->text;
      } else if (const auto* piece = std::get_if<TextDelta>(&event)) {
        mark('t');
        check_piece(piece->text);
        text += piece->text;
      } else if (const auto* start = std::get_if<ToolCallStart>(&event)) {
        order += 'c';
        EXPECT_EQ(start->index, static_cast<int>(calls.size()));
        EXPECT_TRUE(calls.empty() || calls.back().ended);  // one call at a time
        EXPECT_TRUE(ids.insert(start->id).second && start->id.starts_with("call_"));
        calls.push_back({start->name, {}, false});
      } else if (const auto* part = std::get_if<ToolCallArguments>(&event)) {
        EXPECT_EQ(part->index, static_cast<int>(calls.size()) - 1);
        EXPECT_FALSE(calls.back().ended);
        check_piece(part->json);
        calls.back().arguments += part->json;
        ++pieces;
      } else if (const auto* end = std::get_if<ToolCallEnd>(&event)) {
        EXPECT_EQ(end->index, static_cast<int>(calls.size()) - 1);
        calls.back().ended = true;
      }
    }
  }

  static void check_piece(std::string piece) {
    EXPECT_FALSE(piece.empty());
    for (const char c : piece) EXPECT_LT(static_cast<unsigned char>(c), 0xF8);  // no control byte of the reader
  }

  // Arguments of a finished call, as a client parses them.
  json::object parsed(std::size_t index = 0) const {
    EXPECT_LT(index, calls.size());
    if (index >= calls.size()) return {};
    EXPECT_TRUE(calls[index].ended);
    boost::system::error_code error;
    json::value value = json::parse(calls[index].arguments, error);
    EXPECT_FALSE(error) << calls[index].arguments;
    return value.is_object() ? value.as_object() : json::object{};
  }
};

std::vector<Token> tokens_of(const std::vector<text::Segment>& segments) {
  return text::test::synthetic_tokenizer()->encode(segments);
}

// The model writes markup as control tokens.
std::vector<Token> tokens_of(std::string reply) { return tokens_of({{std::move(reply), true}}); }

Reply read(const std::vector<Token>& tokens, ReaderOptions options, std::size_t cut, ReplyEnd end = ReplyEnd::natural) {
  ReplyReader reader(text::test::synthetic_tokenizer(), std::move(options));
  Reply reply;
  for (std::size_t at = 0; at < tokens.size(); at += cut) {
    reply.take(reader.push(std::span(tokens).subspan(at, std::min(cut, tokens.size() - at))));
  }
  reply.take(reader.finish(end));
  EXPECT_EQ(reader.has_tool_calls(), !reply.calls.empty());
  return reply;
}

Reply read(std::string text, ReaderOptions options = {}, ReplyEnd end = ReplyEnd::natural) {
  return read(tokens_of(std::move(text)), std::move(options), 1, end);
}

ReaderOptions with_tools() { return {.tools = tools()}; }
ReaderOptions thinking() { return {.starts_in_reasoning = true, .tools = tools()}; }

std::string call(std::string_view name, std::vector<std::pair<std::string, std::string>> parameters) {
  std::string text = "<tool_call>\n<function=" + std::string(name) + ">\n";
  for (const auto& [key, value] : parameters) text += "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
  return text + "</function>\n</tool_call>";
}

// --- reasoning ---

TEST(Reasoning, IsSplitFromContent) {
  const Reply reply = read("\nfirst\n\nthen\n</think>\n\nAnswer", thinking());
  EXPECT_EQ(reply.reasoning, "first\n\nthen");
  EXPECT_EQ(reply.text, "Answer");
}

TEST(Reasoning, AcceptsAnyLineBreaksAroundItsEnd) {
  for (const char* text :
       {"why</think>Answer", "why</think>\nAnswer", "why\n</think>\nAnswer", "why\n\n</think>\n\n\nAnswer"}) {
    const Reply reply = read(text, thinking());
    EXPECT_EQ(reply.reasoning, "why");
    EXPECT_EQ(reply.text, "Answer");
  }
}

TEST(Reasoning, KeepsIndentationOfTheAnswer) { EXPECT_EQ(read("x</think>\n\n    code", thinking()).text, "    code"); }

TEST(Reasoning, StaysReasoningWithoutAnEnd) {
  for (const ReplyEnd end : {ReplyEnd::natural, ReplyEnd::cut}) {
    const Reply reply = read("thinking on and on\n", thinking(), end);
    EXPECT_EQ(reply.reasoning, "thinking on and on");
    EXPECT_EQ(reply.text, "");
  }
}

TEST(Reasoning, EmptyGivesNoEvent) {
  const Reply reply = read("\n\n</think>\n\nHi", thinking());
  EXPECT_EQ(reply.order, "t");
  EXPECT_EQ(reply.text, "Hi");
}

TEST(Reasoning, ToolCallEndsItImplicitly) {
  const Reply reply = read("need it\n" + call("get", {}), thinking());
  EXPECT_EQ(reply.reasoning, "need it");
  EXPECT_EQ(reply.text, "");
  ASSERT_EQ(reply.calls.size(), 1u);
  EXPECT_EQ(reply.order, "rc");
}

TEST(Reasoning, ToolCallAfterItsEnd) {
  const Reply reply = read("reasoning\n</think>\n\n" + call("get", {}), thinking());
  EXPECT_EQ(reply.reasoning, "reasoning");
  EXPECT_EQ(reply.text, "");
  EXPECT_EQ(reply.order, "rc");
}

TEST(Reasoning, CallsOfUnknownToolsStayReasoning) {
  const Reply reply =
      read("maybe <tool_call>\n<function=nope>\n</function>\n</tool_call> no\n</think>\n\nok", thinking());
  EXPECT_EQ(reply.reasoning, "maybe <tool_call>\n<function=nope>\n</function>\n</tool_call> no");
  EXPECT_EQ(reply.text, "ok");
}

TEST(Reasoning, BlockThatTheModelOpensItself) {
  const Reply reply = read("\n<think>\nhm\n</think>\n\nAnswer", {});
  EXPECT_EQ(reply.reasoning, "hm");
  EXPECT_EQ(reply.text, "Answer");
  EXPECT_EQ(read("<think>\nhm\n</think>\n\nA", thinking()).reasoning, "hm");
  EXPECT_EQ(read("so <think> is a tag", {}).text, "so <think> is a tag");
}

TEST(Reasoning, StrayEndIsDropped) { EXPECT_EQ(read("one</think> two", {}).text, "one two"); }

TEST(Reasoning, IsTextWhenNotParsed) {
  ReaderOptions options = thinking();
  options.parse_reasoning = false;
  const Reply reply = read("why\n</think>\n\nAnswer", options);
  EXPECT_EQ(reply.text, "why\n</think>\n\nAnswer");
  EXPECT_EQ(reply.order, "t");
}

TEST(Reasoning, SpelledOutEndIsText) {
  const auto tokens = tokens_of({{"the tag </think> ends", false}, {"\n</think>\n\n", true}, {"say </think>", false}});
  const Reply reply = read(tokens, thinking(), 1);
  EXPECT_EQ(reply.reasoning, "the tag </think> ends");
  EXPECT_EQ(reply.text, "say </think>");
}

// --- calls ---

TEST(Calls, OneWithTypedArguments) {
  const Reply reply = read(
      call("write", {{"path", "/a b"}, {"n", "41"}, {"deep", "{\"a\": [1, null]}"}, {"flag", "True"}}), with_tools());
  ASSERT_EQ(reply.calls.size(), 1u);
  EXPECT_EQ(reply.calls[0].name, "write");
  EXPECT_EQ(reply.calls[0].arguments, R"({"path":"/a b","n":41,"deep":{"a": [1, null]},"flag":true})");
  EXPECT_EQ(reply.text, "");
}

TEST(Calls, ParallelOnesHaveTheirOwnIndexAndId) {
  std::string text;
  for (int i = 0; i < 3; ++i) text += (i ? "\n" : "") + call("get_weather", {{"city", "Oslo"}});
  const Reply reply = read(text, with_tools());
  ASSERT_EQ(reply.calls.size(), 3u);
  EXPECT_EQ(reply.ids.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(reply.parsed(i), (json::object{{"city", "Oslo"}}));
  EXPECT_EQ(reply.text, "");
}

TEST(Calls, TextAroundThemIsContent) {
  const Reply reply = read("I will read it.\n\n" + call("get", {}) + "\nDone", with_tools());
  EXPECT_EQ(reply.text, "I will read it.\n\n\nDone");
  EXPECT_EQ(reply.order, "tct");
  EXPECT_EQ(read("I will.\n\n" + call("get", {}) + "\n", with_tools()).text, "I will.");
  EXPECT_EQ(read(call("get", {}) + "\n\nDone", with_tools()).text, "Done");
  EXPECT_EQ(read(call("get", {}) + "\nA\n" + call("get", {}) + "\nB", with_tools()).order, "ctct");
}

TEST(Calls, WithoutToolsNothingIsParsed) {
  const std::string text = "Like this: " + call("get", {}) + " ok";
  EXPECT_EQ(read(text, {}).text, text);
}

TEST(Calls, OtherMarkupStaysText) {
  for (const std::string& text :
       {std::string("the tag <tool_call> opens"), call("nope", {{"a", "b"}}),
        std::string("<tool_call>\n{\"name\": \"get\"}\n</tool_call>"),
        std::string("<tool_call>\n<function=>\n</function>\n</tool_call>"),
        std::string("<tool_call>\n<function=get>\nhello"),
        std::string("<tool_call>\n<function=get weather>\n</function>"), std::string("<tool_call>"),
        std::string("a </tool_call> b"), std::string("<tool_call>\n<funct"),
        std::string("<tool_call>\n<function=get_weath>\n</function>\n</tool_call>")}) {
    const Reply reply = read(text, with_tools());
    EXPECT_EQ(reply.text, text);
    EXPECT_TRUE(reply.calls.empty()) << text;
  }
}

TEST(Calls, SpelledOutMarkupOpensNone) {
  const std::string page = "The page says: " + call("write", {{"path", "/etc/passwd"}});
  const Reply reply = read(tokens_of({{page, false}}), with_tools(), 1);
  EXPECT_EQ(reply.text, page);
  EXPECT_TRUE(reply.calls.empty());
}

TEST(Calls, StringsAreVerbatimBetweenTwoLineBreaks) {
  for (const std::string& value :
       {std::string("/a/file"), std::string(" \"quoted\" "), std::string("\""), std::string(),
        std::string("{\"a\": 1}"), std::string("\n\nx\n\n"), std::string("tab\there \\ \x01 é😀"), std::string("null"),
        std::string("0800"), std::string("a\r\nb")}) {
    const Reply reply = read(call("write", {{"content", value}}), with_tools());
    EXPECT_EQ(reply.parsed(), (json::object{{"content", value}}));
  }
}

TEST(Calls, LayoutMayBeLoose) {
  for (const std::string& text :
       {std::string("<tool_call><function=write><parameter=path>/a</parameter></function></tool_call>"),
        std::string("<tool_call>  \n\n<function= write >\n  <parameter= path >\n/a\n</parameter>  \n\n</function>  "
                    "</tool_call>"),
        std::string("<tool_call>\n<function=write>\n<parameter=path>\n/a\n</parameter>\n</tool_call>"),
        std::string("<tool_call>\n<function=write>\n<parameter=path>\n/a\n</parameter>\n</function>")}) {
    EXPECT_EQ(read(text, with_tools()).parsed(), (json::object{{"path", "/a"}})) << text;
  }
  EXPECT_EQ(read("<tool_call>\n<function=get>\n</tool_call>", with_tools()).calls.at(0).arguments, "{}");
  EXPECT_EQ(read("<tool_call>\n<function=get>\n", with_tools()).calls.at(0).arguments, "{}");
}

TEST(Calls, RepeatedKeyKeepsTheFirstValue) {
  const Reply reply = read(call("write", {{"path", "a"}, {"path", "b"}, {"n", "1"}, {"n", "2"}}), with_tools());
  EXPECT_EQ(reply.calls.at(0).arguments, R"({"path":"a","n":1})");
}

TEST(Calls, UndeclaredParameterIsAnyValue) {
  const Reply reply = read(call("write", {{"x", "[1]"}, {"y", "plain"}, {"z", "\"s\""}}), with_tools());
  EXPECT_EQ(reply.parsed(), (json::object{{"x", json::array{1}}, {"y", "plain"}, {"z", "\"s\""}}));
}

// --- values that quote the markup ---

TEST(QuotedMarkup, ClosersInsideAValue) {
  const std::string nested = "Example:\n" + call("get", {{"a", "1"}}) + "\nand after";
  for (const std::string& value :
       {std::string("A block ends with </parameter> here."), std::string("</parameter>"),
        std::string("a\n</parameter>\nb"), std::string("x </function> y"), std::string("x </tool_call> y"),
        std::string("<parameter=z> is a tag"), std::string("line\n<parameter=other>\nrest"),
        std::string("first </parameter>\n</function>\n</tool_call> second"),
        std::string("</parameter>\n</function>\n</tool_call>\n</parameter>\n</function>\n</tool_call>\nx"),
        std::string("</think> and <think>"), nested, nested + "\n" + nested,
        call("write", {{"path", "p"}, {"content", "q"}}),
        std::string("opens <tool_call>\n<function=get>\n and never closes")}) {
    const Reply reply = read(call("write", {{"path", "doc.md"}, {"content", value}}), with_tools());
    ASSERT_EQ(reply.calls.size(), 1u) << value;
    EXPECT_EQ(reply.parsed(), (json::object{{"path", "doc.md"}, {"content", value}})) << value;
    EXPECT_EQ(reply.text, "");
    // The same with all of the value spelled out by ordinary tokens, and followed by another call.
    const auto tokens = tokens_of({{"<tool_call>\n<function=write>\n<parameter=content>\n", true},
                                   {value, false},
                                   {"\n</parameter>\n</function>\n</tool_call>\n" + call("get", {}), true}});
    const Reply spelled = read(tokens, with_tools(), 1);
    ASSERT_EQ(spelled.calls.size(), value.starts_with("opens <tool_call>") ? 1u : 2u) << value;
    if (spelled.calls.size() == 2) {
      EXPECT_EQ(spelled.parsed(), (json::object{{"content", value}})) << value;
    }
  }
}

TEST(QuotedMarkup, ContentAfterACallMayQuoteACallToo) {
  const auto tokens = tokens_of({{call("get", {}) + "\n" + call("write", {{"path", "a"}}), true},
                                 {"\nI wrote " + call("write", {{"path", "b"}}) + " there", false}});
  const Reply reply = read(tokens, with_tools(), 1);
  ASSERT_EQ(reply.calls.size(), 2u);
  EXPECT_EQ(reply.parsed(1), (json::object{{"path", "a"}}));
  EXPECT_EQ(reply.text, "I wrote " + call("write", {{"path", "b"}}) + " there");
}

TEST(ForgottenClosers, NextParameterEndsAValue) {
  const Reply reply =
      read("<tool_call>\n<function=write>\n<parameter=path>\n/a/b\n<parameter=content>\nx\n</function>\n</tool_call>",
           with_tools());
  EXPECT_EQ(reply.parsed(), (json::object{{"path", "/a/b"}, {"content", "x"}}));
  const Reply ended =
      read("<tool_call>\n<function=write>\n<parameter=path>\n/a/b\n<parameter=content>\nx\n</function>", with_tools());
  EXPECT_EQ(ended.parsed(), (json::object{{"path", "/a/b"}, {"content", "x"}}));
}

TEST(ForgottenClosers, EndOfTheReplyClosesWhatIsOpen) {
  EXPECT_EQ(read("<tool_call>\n<function=write>\n<parameter=path>\n/a\n</parameter>", with_tools()).parsed(),
            (json::object{{"path", "/a"}}));
  EXPECT_EQ(read("<tool_call>\n<function=write>\n<parameter=path>\n/a\n</tool_call>", with_tools()).parsed(),
            (json::object{{"path", "/a"}}));
  EXPECT_EQ(read("<tool_call>\n<function=write>\n<parameter=path>\n/a\n", with_tools()).parsed(),
            (json::object{{"path", "/a"}}));
}

// --- streaming ---

TEST(Streaming, StringArgumentsArriveAsTheyAreWritten) {
  const std::string value = [] {
    std::string text;
    for (int i = 0; i < 400; ++i) text += "line \"" + std::to_string(i) + "\"\n";
    return text + "end";
  }();
  const std::vector<Token> tokens = tokens_of(call("write", {{"content", value}}));
  const Reply reply = read(tokens, with_tools(), 8);
  EXPECT_GT(reply.pieces, 300);
  EXPECT_EQ(reply.parsed(), (json::object{{"content", value}}));
}

TEST(Streaming, HoldsBackNoMoreThanACloser) {
  ReplyReader reader(text::test::synthetic_tokenizer(), with_tools());
  Reply reply;
  reply.take(reader.push(tokens_of("<tool_call>\n<function=write>\n<parameter=content>\nabc\n</param")));
  EXPECT_EQ(reply.calls.at(0).arguments, R"({"content":"abc)");
  reply.take(reader.push(tokens_of(" x")));
  EXPECT_EQ(reply.calls.at(0).arguments, R"({"content":"abc\n</param x)");
}

TEST(Streaming, TextIsNotDelayed) {
  ReplyReader reader(text::test::synthetic_tokenizer(), with_tools());
  Reply reply;
  reply.take(reader.push(tokens_of("Hello < world")));
  EXPECT_EQ(reply.text, "Hello < world");
}

TEST(Streaming, SplitCharactersInEveryChannel) {
  const auto tokenizer = text::test::synthetic_tokenizer();
  const std::vector<Token> tokens = tokens_of("😀</think>\n\n你é 😀\n" + call("write", {{"content", "👩\u200D👧 你好"}}));
  const Reply reply = read(tokens, thinking(), 1);
  EXPECT_EQ(reply.reasoning, "😀");
  EXPECT_EQ(reply.text, "你é 😀");
  EXPECT_EQ(reply.parsed(), (json::object{{"content", "👩\u200D👧 你好"}}));
  EXPECT_EQ(read({0xF0, 0x9F, 'a', 0xF0}, {}, 1).text, "\uFFFDa\uFFFD");
}

TEST(Streaming, SpecialTokensAreLeftOut) { EXPECT_EQ(read("a<|im_start|>b<|vision_pad|>", {}).text, "ab"); }

// --- cut replies ---

TEST(Cut, AtEveryTokenOfACall) {
  const std::vector<Token> tokens = tokens_of("Go.\n" + call("write", {{"path", "/a"}, {"n", "12"}}));
  for (std::size_t size = 0; size <= tokens.size(); ++size) {
    const std::vector<Token> part(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(size));
    const Reply reply = read(part, with_tools(), 1, ReplyEnd::cut);
    EXPECT_TRUE(std::string_view("Go.\n").starts_with(reply.text)) << reply.text;  // no markup as text
    ASSERT_LE(reply.calls.size(), 1u);
    const std::string full = R"({"path":"/a","n":12})";
    if (!reply.calls.empty()) {
      EXPECT_TRUE(full.starts_with(reply.calls[0].arguments));
      EXPECT_EQ(reply.calls[0].ended, reply.calls[0].arguments == full);
    }
    const Reply natural = read(part, with_tools(), 1, ReplyEnd::natural);
    if (!natural.calls.empty()) natural.parsed();
  }
}

// --- stop strings ---

ReaderOptions stopping(std::vector<std::string> stop) { return {.tools = {}, .stop = std::move(stop)}; }

TEST(StopStrings, EndTheTextExactlyBeforeThem) {
  const auto text = [](std::string reply, std::vector<std::string> stop) {
    return read(std::move(reply), stopping(std::move(stop))).text;
  };
  EXPECT_EQ(text("Hello\nUser: x", {"\nUser:"}), "Hello");
  EXPECT_EQ(text("the brown fox", {"own fox"}), "the br");
  EXPECT_EQ(text("xabcd", {"ab", "abc"}), "x");
  EXPECT_EQ(text("aab", {"ab"}), "a");
  EXPECT_EQ(text("stop", {"stop"}), "");
  EXPECT_EQ(text("almost sto", {"stop"}), "almost sto");
  EXPECT_EQ(text("ssstop", {"stop"}), "ss");
  EXPECT_EQ(text("a\n\nb", {"\n\n"}), "a");
  EXPECT_EQ(text("plain", {"", "zzz"}), "plain");
}

TEST(StopStrings, StopTheReader) {
  ReplyReader reader(text::test::synthetic_tokenizer(), stopping({"END"}));
  Reply reply;
  reply.take(reader.push(tokens_of("one EN")));
  EXPECT_FALSE(reader.stopped());
  EXPECT_EQ(reply.text, "one ");
  reply.take(reader.push(tokens_of("D two")));
  EXPECT_TRUE(reader.stopped());
  EXPECT_EQ(reader.stop_string(), "END");
  reply.take(reader.push(tokens_of("three")));
  reply.take(reader.finish());
  EXPECT_EQ(reply.text, "one ");
}

TEST(StopStrings, TextBeforeThemIsOutAtOnce) {
  ReaderOptions options = with_tools();
  options.stop = {"END"};
  ReplyReader reader(text::test::synthetic_tokenizer(), options);
  Reply reply;
  reply.take(reader.push(tokens_of("one \nEND")));
  EXPECT_EQ(reply.text, "one \n");
}

TEST(StopStrings, CountInContentOnly) {
  ReaderOptions options = thinking();
  options.stop = {"x", "<tool_call>", "</think>"};
  const Reply reply = read("axb\n</think>\n\n" + call("write", {{"content", "axb"}}), options);
  EXPECT_EQ(reply.reasoning, "axb");
  EXPECT_EQ(reply.parsed(), (json::object{{"content", "axb"}}));
  options.stop = {"\n<"};
  EXPECT_EQ(read("</think>\n\nwait\n" + call("get", {}) + "\n<end", options).text, "wait");
}

// --- properties ---

std::vector<Token> random_reply(std::mt19937& random) {
  static const std::vector<text::Segment> pieces = {{"word ", true},
                                                    {"\n", true},
                                                    {"\n\n", true},
                                                    {" ", true},
                                                    {"<think>", true},
                                                    {"</think>", true},
                                                    {"<tool_call>", true},
                                                    {"</tool_call>", true},
                                                    {"<tool_call>", false},
                                                    {"</tool_call>", false},
                                                    {"<function=write>", true},
                                                    {"<function=nope>", true},
                                                    {"<parameter=path>", true},
                                                    {"<parameter=content>", true},
                                                    {"<parameter=n>", true},
                                                    {"</parameter>", true},
                                                    {"</function>", true},
                                                    {"</par", true},
                                                    {"ameter>", true},
                                                    {"😀", true},
                                                    {"12", true},
                                                    {"stop", true},
                                                    {"st", true},
                                                    {"{\"a\":", true},
                                                    {"<|im_end|>", true},
                                                    {"\n" + call("write", {{"path", "x"}, {"n", "3"}}) + "\n", true},
                                                    {call("write", {{"content", "y"}}), false}};
  std::vector<Token> tokens;
  for (int i = static_cast<int>(random() % 30); i >= 0; --i) {
    const std::vector<text::Segment> piece{pieces[random() % pieces.size()]};
    for (const Token token : tokens_of(piece)) tokens.push_back(token);
    if (random() % 10 == 0) tokens.push_back(static_cast<Token>(random() % 300));
  }
  return tokens;
}

ReaderOptions random_options(std::mt19937& random) {
  ReaderOptions options;
  options.starts_in_reasoning = random() % 2 == 0;
  options.parse_reasoning = random() % 4 != 0;
  if (random() % 4 != 0) options.tools = tools();
  if (random() % 3 == 0) options.stop = {"stop", "d s"};
  return options;
}

TEST(Properties, ResultDoesNotDependOnHowTokensArrive) {
  std::mt19937 random(11);
  for (int i = 0; i < 1500; ++i) {
    const std::vector<Token> tokens = random_reply(random);
    const ReaderOptions options = random_options(random);
    const ReplyEnd end = random() % 3 == 0 ? ReplyEnd::cut : ReplyEnd::natural;
    const Reply one = read(tokens, options, 1, end);
    for (const std::size_t cut : {std::size_t{2}, std::size_t{8}, tokens.size() + 1}) {
      const Reply other = read(tokens, options, cut, end);
      ASSERT_EQ(one.reasoning, other.reasoning);
      ASSERT_EQ(one.text, other.text);
      ASSERT_EQ(one.order, other.order);
      ASSERT_EQ(one.calls.size(), other.calls.size());
      for (std::size_t c = 0; c < one.calls.size(); ++c) {
        ASSERT_EQ(one.calls[c].arguments, other.calls[c].arguments);
        ASSERT_EQ(one.calls[c].ended, other.calls[c].ended);
      }
    }
    if (end == ReplyEnd::natural) {
      for (std::size_t c = 0; c < one.calls.size(); ++c) one.parsed(c);
    }
  }
}

TEST(Properties, WithoutToolsAndReasoningTheTextIsTheReply) {
  std::mt19937 random(12);
  const auto tokenizer = text::test::synthetic_tokenizer();
  for (int i = 0; i < 500; ++i) {
    const std::vector<Token> tokens = random_reply(random);
    const Reply reply = read(tokens, {.parse_reasoning = false}, 1 + random() % 5);
    // A control token ends a character that is not whole, so whole characters are asked for between control tokens.
    text::Detokenizer detokenizer(tokenizer);
    std::string expected;
    for (const Token token : tokens) {
      if (tokenizer->is_added(token) && !tokenizer->is_special(token)) expected += detokenizer.flush();
      expected += detokenizer.push(token);
    }
    expected += detokenizer.flush();
    EXPECT_EQ(reply.text, expected);
  }
}

TEST(Properties, CallsReadBackWhatTheTemplateWrites) {
  std::mt19937 random(13);
  const std::vector<std::string> words = {"a",  "</parameter>", "\n", "<x>",         "</tool_call>", "é",
                                          "\"", "\\",           " ",  "</function>", "{}",           "😀"};
  for (int i = 0; i < 500; ++i) {
    json::object expected;
    std::vector<std::pair<std::string, std::string>> parameters;
    for (const char* key : {"path", "content"}) {
      std::string value = "v";
      for (int w = static_cast<int>(random() % 8); w > 0; --w) value += words[random() % words.size()];
      value += ".";
      expected[key] = value;
      parameters.emplace_back(key, value);
    }
    // `</parameter>` `</function>` `</tool_call>` in a row may be an end of the call, though not the last one.
    const Reply reply = read(call("write", parameters), with_tools());
    ASSERT_EQ(reply.calls.size(), 1u);
    EXPECT_EQ(reply.parsed(), expected);
  }
}

// --- conversion ---

TEST(Arguments, ConvertByDeclaredType) {
  const auto json_of = [](std::string_view schema, std::string_view text) {
    const json::object parameters{{"properties", json::object{{"p", json::parse(schema)}}},
                                  {"$defs", json::object{{"e", json::object{{"enum", json::array{"a", "b"}}}}}}};
    return argument_json(text, declared_types(parameters, "p"));
  };
  EXPECT_EQ(json_of(R"({"type": "integer"})", " 41 "), "41");
  EXPECT_EQ(json_of(R"({"type": "integer"})", "4x"), "\"4x\"");
  EXPECT_EQ(json_of(R"({"type": "number"})", "1.50"), "1.50");
  EXPECT_EQ(json_of(R"({"type": "number"})", "1e999"), "\"1e999\"");
  EXPECT_EQ(json_of(R"({"type": "number"})", "NaN"), "\"NaN\"");
  EXPECT_EQ(json_of(R"({"type": "boolean"})", "True"), "true");
  EXPECT_EQ(json_of(R"({"type": "boolean"})", "FALSE"), "false");
  EXPECT_EQ(json_of(R"({"type": ["integer", "null"]})", "None"), "null");
  EXPECT_EQ(json_of(R"({"type": "object"})", "{\"a\": 1}"), "{\"a\": 1}");
  EXPECT_EQ(json_of(R"({"type": "array"})", "[1, 2"), "\"[1, 2\"");
  EXPECT_EQ(json_of(R"({"type": "string"})", "null"), "\"null\"");
  EXPECT_EQ(json_of(R"({"type": ["string", "integer"]})", "0800"), "\"0800\"");
  EXPECT_EQ(json_of(R"({"type": ["string", "integer"]})", "8"), "8");
  EXPECT_EQ(json_of(R"({"type": ["string", "number"]})", "8"), "8");
  EXPECT_EQ(json_of(R"({"type": ["string", "integer"]})", "true"), "\"true\"");
  EXPECT_EQ(json_of(R"({"type": ["string", "null"]})", "\"null\""), "\"\\\"null\\\"\"");
  EXPECT_EQ(json_of(R"({"anyOf": [{"type": "string"}, {"type": "null"}]})", "null"), "null");
  EXPECT_EQ(json_of(R"({"enum": ["1", "2"]})", "1"), "\"1\"");
  EXPECT_EQ(json_of(R"({"enum": [1, 2]})", "1"), "1");
  EXPECT_EQ(json_of(R"({"const": "1"})", "1"), "\"1\"");
  EXPECT_EQ(json_of(R"({"$ref": "#/$defs/e"})", "1"), "\"1\"");
  EXPECT_EQ(json_of(R"({"allOf": [{"type": ["string", "integer"]}, {"type": "string"}]})", "1"), "\"1\"");
  EXPECT_EQ(json_of("{}", "[1]"), "[1]");
  EXPECT_EQ(json_of("{}", "\"s\""), "\"\\\"s\\\"\"");
  EXPECT_EQ(json_of("true", "word"), "\"word\"");
  EXPECT_EQ(json_of(R"({"type": "integer"})", "  "), "\"  \"");
  EXPECT_EQ(json_of(R"({"$ref": "#/properties/p"})", "1"), "1");  // a reference to itself ends
}

}  // namespace
}  // namespace splash::chat
