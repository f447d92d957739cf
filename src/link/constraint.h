// What the text half may demand of the next tokens (a grammar, a JSON schema) in terms the tensor half understands:
// bit masks over token ids. Implemented by text/, called by the engine's thread only.
#pragma once

#include <cstdint>
#include <span>

#include "link/token.h"

namespace splash::link {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Words of one mask: (vocabulary + 31) / 32. Bit t of word t / 32 set = token t is allowed.
  virtual int mask_words() const = 0;

  // Masks along a drafted path, without changing the state: row 0 is what may follow the accepted tokens, row j what may
  // follow them and proposals[0..j-1]. `masks` holds (proposals.size() + 1) * mask_words() words. Returns the number
  // of rows written, at least 1: a proposal the grammar forbids ends the path (rows after it would never be used).
  // Where the grammar is complete, only stop tokens are allowed.
  virtual int masks_along(std::span<const Token> proposals, std::span<std::uint32_t> masks) = 0;

  // Advances the state by a chosen token. False if the grammar forbids it (an engine fault: the mask excluded it).
  virtual bool accept(Token token) = 0;
};

}  // namespace splash::link
