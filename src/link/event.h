// What the engine tells the text half about a request.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "base/result.h"
#include "link/token.h"

namespace splash::link {

using RequestId = std::uint64_t;

// The request has a lane; its prompt is being read.
struct Started {
  int prompt_tokens = 0;
  int cached_tokens = 0;  // prompt tokens taken from the prefix cache
};

// Newly chosen tokens of the reply, in order; stop tokens are left out.
struct Tokens {
  std::vector<Token> tokens;
};

enum class FinishReason { stop, length };

struct Usage {
  int prompt_tokens = 0;
  int cached_tokens = 0;
  int reply_tokens = 0;     // chosen tokens, a final stop token included
  int decode_steps = 0;     // draft-verify-accept-commit steps
  int drafted_tokens = 0;   // proposals verified
  int accepted_tokens = 0;  // proposals kept; acceptance a + 1 = (accepted + steps) / steps
  double decode_ms = 0;     // from the first chosen token to the last, by the clock: all between two steps included
};

struct Finished {
  FinishReason reason = FinishReason::stop;
  Usage usage;
};

struct Failed {
  Error error;
  Usage usage;
};

using Event = std::variant<Started, Tokens, Finished, Failed>;

}  // namespace splash::link
