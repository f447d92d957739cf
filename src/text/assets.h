// What a model's folder says about text: tokenizer, chat template, stop tokens, recommended sampling.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace splash::text {

// generation_config.json; what it does not state is absent.
struct SamplingDefaults {
  std::optional<float> temperature;
  std::optional<int> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
};

struct TextAssets {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // null: the folder has none, only completions can be served
  std::vector<Token> stop_tokens;  // generation_config's eos, `<|im_end|>` and `<|endoftext|>`; sorted, no duplicates
  SamplingDefaults sampling;
};

// Reads tokenizer.json, tokenizer_config.json, chat_template.jinja (wins over the config's chat_template) and
// generation_config.json; all but the first may be missing.
Result<TextAssets> load_text_assets(const std::string& folder);

}  // namespace splash::text
