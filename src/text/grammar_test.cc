#include "text/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <random>

#include "text/test_tokenizer.h"

namespace splash::text {
namespace {

using ::testing::HasSubstr;

constexpr int vocabulary = 640;  // wider than the tokenizer, like the padded logits of real models

bool allows(std::span<const std::uint32_t> mask, Token token) {
  return (mask[static_cast<std::size_t>(token) / 32] >> static_cast<std::uint32_t>(token) % 32 & 1u) != 0;
}

class Grammar : public ::testing::Test {
 protected:
  Grammar()
      : tokenizer(test::synthetic_tokenizer()),
        stops{*tokenizer->id_of("<|endoftext|>"), *tokenizer->id_of("<|im_end|>")},
        factory(*GrammarFactory::create(tokenizer, stops, vocabulary)) {}

  std::vector<std::uint32_t> mask(link::TokenConstraint& constraint) const {
    std::vector<std::uint32_t> words(static_cast<std::size_t>(constraint.mask_words()));
    EXPECT_EQ(constraint.masks_along({}, words), 1);
    return words;
  }

  std::vector<Token> tokens_of(std::string text) const {
    const std::vector<Segment> segments{{std::move(text), false}};
    return tokenizer->encode(segments);
  }

  // Does the grammar take the whole text and allow the reply to end there?
  bool takes(link::TokenConstraint& constraint, const std::string& text) const {
    for (const Token token : tokens_of(text)) {
      if (!allows(mask(constraint), token)) {
        EXPECT_FALSE(constraint.accept(token));
        return false;
      }
      EXPECT_TRUE(constraint.accept(token));
    }
    const auto end = mask(constraint);
    EXPECT_EQ(allows(end, stops[0]), allows(end, stops[1]));
    return allows(end, stops[0]);
  }

  bool schema_takes(const std::string& schema, const std::string& text) const {
    auto constraint = factory->json_schema(schema);
    EXPECT_TRUE(constraint.has_value()) << constraint.error().message;
    return constraint && takes(**constraint, text);
  }

  // A random token that the mask allows.
  Token pick(std::span<const std::uint32_t> words, std::mt19937& random) const {
    std::vector<Token> allowed;
    for (Token token = 0; token < vocabulary; ++token) {
      if (allows(words, token)) allowed.push_back(token);
    }
    EXPECT_FALSE(allowed.empty());
    return allowed.at(random() % allowed.size());
  }

  bool is_stop(Token token) const { return token == stops[0] || token == stops[1]; }

  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<Token> stops;
  std::vector<Token> history;  // accepted so far
  std::shared_ptr<GrammarFactory> factory;
};

const char* const person = R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
  "tags": {"type": "array", "items": {"enum": ["a", "b"]}}}, "required": ["name"], "additionalProperties": false})";

TEST_F(Grammar, SchemaDecidesWhatIsTaken) {
  EXPECT_TRUE(schema_takes(person, R"({"name": "Eve"})"));
  EXPECT_TRUE(schema_takes(person, R"({"name":"你\n😀","age":-3,"tags":["a","b"]})"));
  EXPECT_TRUE(schema_takes(person, "{\n  \"name\": \"</think>\"\n}"));
  EXPECT_FALSE(schema_takes(person, R"({"age": 3})"));
  EXPECT_FALSE(schema_takes(person, R"({"name": "Eve", "age": 3.5})"));
  EXPECT_FALSE(schema_takes(person, R"({"name": "Eve", "extra": 1})"));
  EXPECT_FALSE(schema_takes(person, R"({"name": "Eve")"));
  EXPECT_FALSE(schema_takes(person, R"( {"name": "Eve"})"));  // without reasoning JSON begins at once
}

TEST_F(Grammar, EmptySchemasAllowAnyValue) {
  for (const char* schema : {"{}", "true", R"({"type": "object"})", R"({"type": "object", "properties": {}})"}) {
    EXPECT_TRUE(schema_takes(schema, R"({"a": [1, null]})")) << schema;
  }
  auto object = factory->json_object();
  ASSERT_TRUE(object.has_value());
  EXPECT_FALSE(takes(**object, "[1]"));
}

TEST_F(Grammar, ReferencesAndRecursion) {
  const char* tree = R"({"$defs": {"node": {"type": "object", "properties": {"v": {"$ref": "#/$defs/kind"},
    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "required": ["v"]}, "kind": {"enum": ["x", "y"]}},
    "$ref": "#/$defs/node"})";
  EXPECT_TRUE(schema_takes(tree, R"({"v": "x", "children": [{"v": "y", "children": [{"v": "x"}]}]})"));
  EXPECT_FALSE(schema_takes(tree, R"({"v": "z"})"));
}

TEST_F(Grammar, LargeBoundsAreCountersNotRules) {
  const std::string schema = R"({"type": "object", "properties": {"s": {"type": "string", "maxLength": 65536},
    "l": {"type": "array", "minItems": 2, "maxItems": 127, "items": {"type": "string", "minLength": 1, "maxLength": 16384}}},
    "required": ["s"]})";
  EXPECT_TRUE(schema_takes(schema, R"({"s": "abc", "l": ["x", "y"]})"));
  EXPECT_FALSE(schema_takes(schema, R"({"s": "abc", "l": ["x"]})"));
}

TEST_F(Grammar, PatternsAreSearchedUnlessAnchored) {
  const auto schema = [](std::string_view pattern) {
    return R"({"type": "object", "properties": {"p": {"type": "string", "pattern": ")" + std::string(pattern) +
           R"("}}, "required": ["p"]})";
  };
  EXPECT_TRUE(schema_takes(schema("[0-9]"), R"({"p": "ab4c"})"));
  EXPECT_FALSE(schema_takes(schema("^[a-z]+$"), R"({"p": "ab4c"})"));
  EXPECT_TRUE(schema_takes(schema("^[a-z]+$"), R"({"p": "abc"})"));
}

TEST_F(Grammar, ErrorsNameWhatIsWrong) {
  const auto error = [&](const std::string& schema) {
    auto result = factory->json_schema(schema);
    EXPECT_FALSE(result.has_value()) << schema;
    EXPECT_EQ(result ? ErrorKind::internal : result.error().kind, ErrorKind::invalid);
    return result ? std::string() : result.error().message;
  };
  EXPECT_THAT(error("{"), HasSubstr("JSON"));
  EXPECT_THAT(error("3"), HasSubstr("object"));
  EXPECT_THAT(error(R"({"type": "object", "propertyNames": {"pattern": "a"}})"), HasSubstr("propertyNames"));
  EXPECT_THAT(error(R"({"type": "strin"})"), HasSubstr("strin"));
  error(R"({"type": "string", "pattern": "(?=a)b"})");
  error(R"({"$ref": "#/$defs/none"})");
  error(R"({"$ref": "#"})");
  error("false");
}

TEST_F(Grammar, LarkGrammarsMayNameControlTokens) {
  auto constraint = factory->lark("start: <tool_call> \"x\" <[65]>");
  ASSERT_TRUE(constraint.has_value()) << constraint.error().message;
  const Token call = *tokenizer->id_of("<tool_call>");
  const auto first = mask(**constraint);
  EXPECT_TRUE(allows(first, call));
  EXPECT_FALSE(allows(first, 'x'));
  EXPECT_TRUE((*constraint)->accept(call));
  EXPECT_TRUE(takes(**constraint, "xA"));
  EXPECT_FALSE(factory->lark("start: nothing").has_value());
}

TEST_F(Grammar, WhiteSpaceBetweenTokensIsBounded) {
  auto constraint = *factory->json_object();
  ASSERT_TRUE(constraint->accept('{'));
  int spaces = 0;
  while (allows(mask(*constraint), ' ') && spaces < 1000) {
    ASSERT_TRUE(constraint->accept(' '));
    ++spaces;
  }
  EXPECT_GT(spaces, 8);
  EXPECT_LE(spaces, 64);
}

TEST_F(Grammar, CompleteGrammarAllowsOnlyStopTokens) {
  auto constraint = *factory->lark("start: \"a\"");
  ASSERT_TRUE(constraint->accept('a'));
  const auto words = mask(*constraint);
  for (Token token = 0; token < vocabulary; ++token) EXPECT_EQ(allows(words, token), is_stop(token)) << token;
  EXPECT_FALSE(constraint->accept('a'));
  EXPECT_TRUE(constraint->accept(stops[1]));
  EXPECT_FALSE(constraint->accept('a'));
}

TEST_F(Grammar, StopTokensWaitForTheEnd) {
  auto constraint = *factory->json_object();
  EXPECT_FALSE(constraint->accept(stops[0]));
  EXPECT_TRUE(takes(*constraint, "{}"));  // a refused token leaves the state alone
}

TEST_F(Grammar, HoldsOnlyAfterReasoning) {
  auto constraint = *factory->json_schema(person, GrammarStart::after_reasoning);
  const Token think_end = *tokenizer->id_of("</think>");
  const auto free = mask(*constraint);
  EXPECT_TRUE(allows(free, 'x'));
  EXPECT_TRUE(allows(free, think_end));
  EXPECT_FALSE(allows(free, stops[0]));
  EXPECT_FALSE(allows(free, tokenizer->size()));  // padding of the logits
  for (const Token token : tokens_of("thinking, {not json")) ASSERT_TRUE(constraint->accept(token));

  // Reasoning ends inside a drafted block: the rows after it are the grammar's.
  std::vector<Token> path = tokens_of("so");
  path.push_back(think_end);
  for (const Token token : tokens_of("\n\n```")) path.push_back(token);
  const auto words = static_cast<std::size_t>(constraint->mask_words());
  std::vector<std::uint32_t> masks((path.size() + 1) * words);
  const int rows = constraint->masks_along(path, masks);
  const auto row = [&](int index) { return std::span(masks).subspan(static_cast<std::size_t>(index) * words, words); };
  ASSERT_EQ(rows, 3 + 1 + 1);  // "s", "o", the end, line breaks; the first backtick is refused
  EXPECT_TRUE(allows(row(2), 'x'));
  EXPECT_FALSE(allows(row(3), 'x'));
  EXPECT_TRUE(allows(row(3), '{'));
  EXPECT_TRUE(allows(row(4), '{'));
  EXPECT_FALSE(allows(row(4), '`'));
  EXPECT_TRUE(allows(mask(*constraint), 'x'));  // and looking ahead changed nothing

  ASSERT_TRUE(constraint->accept(think_end));
  EXPECT_TRUE(takes(*constraint, "\n\n{\"name\": \"Eve\"}"));
}

// Random paths through random grammars, right and wrong proposals, stop tokens among them: the masks of the whole path
// are those of one constraint advanced token by token.
TEST_F(Grammar, MasksAlongAPathEqualStepByStep) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    const auto start = round % 3 == 0 ? GrammarStart::after_reasoning : GrammarStart::at_once;
    const auto open = [&] {
      return round % 2 == 0 ? *factory->json_schema(person, start) : *factory->json_object(start);
    };
    const auto ahead = open();
    const auto steps = open();
    const auto words = static_cast<std::size_t>(ahead->mask_words());
    bool ended = false;
    for (int block = 0; block < 8 && !ended; ++block) {
      std::vector<Token> path;
      std::vector<std::vector<std::uint32_t>> expected;
      const auto probe = open();  // plays the path one by one
      // Bring the probe to where `steps` is.
      for (const Token token : history) ASSERT_TRUE(probe->accept(token));
      for (int i = 0; i <= 8; ++i) {
        expected.push_back(mask(*probe));
        if (i == 8) break;
        Token token = pick(expected.back(), random);
        if (random() % 12 == 0) token = static_cast<Token>(random() % vocabulary);
        path.push_back(token);
        if (!allows(expected.back(), token) || is_stop(token)) {
          while (path.size() < 8) path.push_back(static_cast<Token>(random() % vocabulary));
          break;
        }
        ASSERT_TRUE(probe->accept(token));
      }
      std::vector<std::uint32_t> masks((path.size() + 1) * words);
      ASSERT_EQ(ahead->masks_along(path, masks), static_cast<int>(expected.size()));
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(
            std::equal(expected[i].begin(), expected[i].end(), masks.begin() + static_cast<std::ptrdiff_t>(i * words)));
      }
      // Commit a random part of the path, as acceptance does.
      const std::size_t valid = expected.size() - 1;
      const std::size_t commit = valid == 0 ? 0 : random() % (valid + 1);
      for (std::size_t i = 0; i < commit; ++i) {
        ASSERT_TRUE(ahead->accept(path[i]));
        ASSERT_TRUE(steps->accept(path[i]));
        history.push_back(path[i]);
      }
      const Token bonus = pick(mask(*steps), random);
      ASSERT_TRUE(ahead->accept(bonus));
      ASSERT_TRUE(steps->accept(bonus));
      history.push_back(bonus);
      ended = is_stop(bonus);
    }
    history.clear();
  }
}

TEST_F(Grammar, RandomWalksGiveValidJson) {
  std::mt19937 random(6);
  int complete = 0;
  for (int round = 0; round < 40; ++round) {
    auto constraint = *factory->json_schema(person);
    std::string text;
    for (int i = 0; i < 400; ++i) {
      const auto words = mask(*constraint);
      // Strings and objects of random tokens hardly ever end by themselves.
      Token token = pick(words, random);
      for (const Token end : {Token{'"'}, Token{'}'}, stops[0]}) {
        if (random() % 3 == 0 && allows(words, end)) token = end;
      }
      ASSERT_TRUE(constraint->accept(token));
      if (is_stop(token)) {
        boost::system::error_code error;
        const auto value = boost::json::parse(text, error);
        EXPECT_FALSE(error) << text;
        EXPECT_TRUE(value.is_object() && value.as_object().contains("name"));
        ++complete;
        break;
      }
      text += tokenizer->bytes_of(token);
    }
  }
  EXPECT_GT(complete, 10);
}

TEST(RealVocabularyGrammar, CompilesAndMasks) {
  const auto tokenizer = test::real_tokenizer();
  if (!tokenizer) return;
  const Token stop = *tokenizer->id_of("<|im_end|>");
  auto factory = GrammarFactory::create(tokenizer, {stop}, 248320);
  ASSERT_TRUE(factory.has_value()) << factory.error().message;
  auto constraint = (*factory)->json_schema(person);
  ASSERT_TRUE(constraint.has_value());
  const std::vector<Segment> text{{"{\"name\": \"科技的边界\", \"age\": 41, \"tags\": [\"a\"]}", false}};
  std::vector<Token> path = tokenizer->encode(text);
  path.push_back(stop);
  std::vector<std::uint32_t> masks((path.size() + 1) * static_cast<std::size_t>((*constraint)->mask_words()));
  EXPECT_EQ((*constraint)->masks_along(path, masks), static_cast<int>(path.size()));
  for (const Token token : path) EXPECT_TRUE((*constraint)->accept(token));
}

}  // namespace
}  // namespace splash::text
