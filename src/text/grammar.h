// Constrained decoding through the crate llguidance: JSON schemas and tool-call grammars as link::TokenConstraint.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "link/constraint.h"
#include "text/tokenizer.h"

namespace splash::text {

// Where a grammar begins to hold. `after_reasoning`: anything but a stop token is allowed up to and including
// `</think>`, then some white space, then the grammar (for prompts that leave the think block open).
enum class GrammarStart { at_once, after_reasoning };

class GrammarFactory {
 public:
  // Builds the token trie once (0.9 s for 248 K tokens: call it off the start-up path). `stop_tokens` are what a
  // complete grammar allows; `vocabulary` is the width of the masks (the model's logits).
  static Result<std::shared_ptr<GrammarFactory>> create(std::shared_ptr<const Tokenizer> tokenizer,
                                                        std::vector<Token> stop_tokens, int vocabulary);
  virtual ~GrammarFactory() = default;

  // `schema_json`: a JSON schema. Unsupported keywords are an error that names them.
  virtual Result<std::shared_ptr<link::TokenConstraint>> json_schema(const std::string& schema_json,
                                                                     GrammarStart start = GrammarStart::at_once) = 0;
  // Any JSON object (response_format json_object).
  virtual Result<std::shared_ptr<link::TokenConstraint>> json_object(GrammarStart start = GrammarStart::at_once) = 0;
  // A grammar in llguidance's lark dialect.
  virtual Result<std::shared_ptr<link::TokenConstraint>> lark(const std::string& grammar,
                                                              GrammarStart start = GrammarStart::at_once) = 0;
};

}  // namespace splash::text
