// Byte-level BPE tokenizer of the family (Hugging Face tokenizer.json), through the crate `tokenizers`.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "link/token.h"

namespace splash::text {

// A piece of prompt text. Template text may contain control tokens (`<|im_start|>`); user text never becomes one, even
// if it spells one out.
struct Segment {
  std::string text;
  bool control = false;  // true: added tokens in `text` are matched
};

class Tokenizer {
 public:
  // `folder` holds tokenizer.json (and may hold tokenizer_config.json, generation_config.json).
  static Result<std::shared_ptr<const Tokenizer>> load(const std::string& folder);
  virtual ~Tokenizer() = default;

  // Ids of the concatenated segments: control segments are cut at the added tokens they spell out; everything between
  // two of those, template and user text alike, is normalised and cut into words as one text. So the ids equal those of
  // the plain text encoded as a whole unless user text spells out a control token.
  virtual std::vector<Token> encode(std::span<const Segment> segments) const = 0;
  // Raw bytes of one token (may be half a character); control tokens give their text.
  virtual std::string bytes_of(Token token) const = 0;
  virtual std::optional<Token> id_of(std::string_view text) const = 0;  // exact vocabulary or added token
  virtual int size() const = 0;                                         // ids 0..size()-1 exist
  virtual bool is_special(Token token) const = 0;  // "special": true in tokenizer.json, left out of text
  virtual bool is_added(Token token) const = 0;    // any control token: only template text and the model make them
};

// Incremental detokenisation: gives out whole UTF-8 characters only; invalid bytes become U+FFFD at flush or as soon as
// they cannot be completed. Special tokens (`is_special`) give nothing.
class Detokenizer {
 public:
  explicit Detokenizer(std::shared_ptr<const Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}
  std::string push(Token token);
  std::string flush();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string pending_;
};

}  // namespace splash::text
