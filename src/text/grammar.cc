#include "text/grammar.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "text/ffi_call.h"

namespace splash::text {
namespace {

using Mask = std::span<std::uint32_t>;

bool allows(std::span<const std::uint32_t> mask, Token token) {
  const auto bit = static_cast<std::uint32_t>(token);
  return token >= 0 && bit / 32 < mask.size() && (mask[bit / 32] >> bit % 32 & 1u) != 0;
}

// What all constraints of one model share. The tokenizer is kept for its handle.
struct Shared {
  std::shared_ptr<const Tokenizer> tokenizer;
  SplashGrammars* grammars = nullptr;
  std::vector<Token> stop_tokens;
  std::vector<std::uint32_t> reasoning_mask;  // every token that exists but the stop tokens
  std::optional<Token> think_end;

  Shared() = default;
  ~Shared() { splash_grammars_close(grammars); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
};

class Constraint final : public link::TokenConstraint {
 public:
  Constraint(std::shared_ptr<const Shared> shared, SplashMatcher* matcher, bool in_reasoning)
      : shared_(std::move(shared)), matcher_(matcher), in_reasoning_(in_reasoning) {}
  ~Constraint() override { splash_matcher_close(matcher_); }
  Constraint(const Constraint&) = delete;
  Constraint& operator=(const Constraint&) = delete;

  int mask_words() const override { return static_cast<int>(shared_->reasoning_mask.size()); }

  int masks_along(std::span<const Token> proposals, std::span<std::uint32_t> masks) override {
    const std::size_t words = shared_->reasoning_mask.size();
    SPLASH_CHECK(masks.size() >= (proposals.size() + 1) * words);
    const bool was_in_reasoning = in_reasoning_;
    std::size_t consumed = 0;  // by the matcher, to be taken back
    int rows = 0;
    while (true) {
      const Mask row = masks.subspan(static_cast<std::size_t>(rows) * words, words);
      fill(row);
      if (++rows > static_cast<int>(proposals.size())) break;
      const Token token = proposals[static_cast<std::size_t>(rows) - 1];
      // Nothing follows a stop token, so the path ends before it is consumed.
      if (!allows(row, token) || is_stop(token)) break;
      const bool to_matcher = !in_reasoning_;
      if (!step(token)) break;
      if (to_matcher) ++consumed;
    }
    in_reasoning_ = was_in_reasoning;
    if (consumed > 0) {
      check(
          ffi_call("grammar", [&](SplashBytes* error) { return splash_matcher_rollback(matcher_, consumed, error); }));
    }
    return rows;
  }

  bool accept(Token token) override { return step(token); }

 private:
  bool is_stop(Token token) const {
    return std::find(shared_->stop_tokens.begin(), shared_->stop_tokens.end(), token) != shared_->stop_tokens.end();
  }

  void fill(Mask row) {
    if (in_reasoning_) {
      std::copy(shared_->reasoning_mask.begin(), shared_->reasoning_mask.end(), row.begin());
      return;
    }
    const Status status = ffi_call(
        "grammar", [&](SplashBytes* error) { return splash_matcher_mask(matcher_, row.data(), row.size(), error); });
    if (status) return;
    // A grammar that ran out of its limits can go nowhere: let the reply end.
    check(status);
    std::fill(row.begin(), row.end(), 0u);
    for (const Token token : shared_->stop_tokens) {
      row[static_cast<std::size_t>(token) / 32] |= 1u << static_cast<std::uint32_t>(token) % 32;
    }
  }

  bool step(Token token) {
    if (in_reasoning_) {
      if (!allows(shared_->reasoning_mask, token)) return false;
      if (token == shared_->think_end) in_reasoning_ = false;
      return true;
    }
    return ffi_call("grammar",
                    [&](SplashBytes* error) {
                      return splash_matcher_consume(matcher_, static_cast<std::uint32_t>(token), error);
                    })
        .has_value();
  }

  static void check(const Status& status) {
    if (!status) log::error("{}", status.error().message);
  }

  std::shared_ptr<const Shared> shared_;
  SplashMatcher* matcher_;
  bool in_reasoning_;
};

class Factory final : public GrammarFactory {
 public:
  explicit Factory(std::shared_ptr<const Shared> shared) : shared_(std::move(shared)) {}

  Result<std::shared_ptr<link::TokenConstraint>> json_schema(const std::string& schema_json,
                                                             GrammarStart start) override {
    return open(SPLASH_GRAMMAR_JSON_SCHEMA, "JSON schema", schema_json, start);
  }
  Result<std::shared_ptr<link::TokenConstraint>> json_object(GrammarStart start) override {
    return open(SPLASH_GRAMMAR_JSON_SCHEMA, "JSON object", R"({"type": "object"})", start);
  }
  Result<std::shared_ptr<link::TokenConstraint>> lark(const std::string& grammar, GrammarStart start) override {
    return open(SPLASH_GRAMMAR_LARK, "grammar", grammar, start);
  }

 private:
  Result<std::shared_ptr<link::TokenConstraint>> open(int kind, std::string_view what, const std::string& grammar,
                                                      GrammarStart start) {
    const bool in_reasoning = start == GrammarStart::after_reasoning && shared_->think_end.has_value();
    SplashMatcher* matcher = nullptr;
    auto status = ffi_call(what, [&](SplashBytes* error) {
      return splash_matcher_open(shared_->grammars, kind, ffi_text(grammar), in_reasoning ? 1 : 0, &matcher, error);
    });
    if (!status) return tl::unexpected(std::move(status).error());
    return std::make_shared<Constraint>(shared_, matcher, in_reasoning);
  }

  std::shared_ptr<const Shared> shared_;
};

}  // namespace

Result<std::shared_ptr<GrammarFactory>> GrammarFactory::create(std::shared_ptr<const Tokenizer> tokenizer,
                                                               std::vector<Token> stop_tokens, int vocabulary) {
  const auto* native = dynamic_cast<const FfiTokenizer*>(tokenizer.get());
  if (native == nullptr) return fail(ErrorKind::unsupported, "grammars need a tokenizer read from tokenizer.json");
  if (vocabulary < tokenizer->size()) {
    return fail(ErrorKind::corrupt, "the tokenizer has {} tokens, the model's logits only {}", tokenizer->size(),
                vocabulary);
  }
  auto shared = std::make_shared<Shared>();
  shared->stop_tokens = std::move(stop_tokens);
  shared->think_end = tokenizer->id_of("</think>");
  shared->reasoning_mask.assign((static_cast<std::size_t>(vocabulary) + 31) / 32, 0u);
  for (Token token = 0; token < tokenizer->size(); ++token) {
    if (tokenizer->bytes_of(token).empty()) continue;
    shared->reasoning_mask[static_cast<std::size_t>(token) / 32] |= 1u << static_cast<std::uint32_t>(token) % 32;
  }
  for (const Token token : shared->stop_tokens) {
    if (token < 0 || token >= vocabulary)
      return fail(ErrorKind::corrupt, "stop token {} is outside the vocabulary", token);
    shared->reasoning_mask[static_cast<std::size_t>(token) / 32] &= ~(1u << static_cast<std::uint32_t>(token) % 32);
  }
  const std::vector<std::uint32_t> stops(shared->stop_tokens.begin(), shared->stop_tokens.end());
  SPLASH_TRY_STATUS(ffi_call("grammars", [&](SplashBytes* error) {
    return splash_grammars_open(native->ffi_handle(), stops.data(), stops.size(),
                                static_cast<std::uint32_t>(vocabulary), &shared->grammars, error);
  }));
  shared->tokenizer = std::move(tokenizer);
  return std::make_shared<Factory>(std::move(shared));
}

}  // namespace splash::text
