// What the text half asks of the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "link/constraint.h"
#include "link/event.h"
#include "link/token.h"

namespace splash::link {

// The requested law of a token: logits -> mask -> / temperature -> top_k -> softmax -> top_p -> min_p -> renormalise.
// top_p keeps the smallest set of most probable tokens whose mass before the last one is < top_p; min_p then keeps those
// with p >= min_p * max p. Ties in rank: lower id first.
struct Sampling {
  float temperature = 1.0f;  // >= 0; 0 = greedy
  int top_k = 0;             // 0 = off
  float top_p = 1.0f;        // (0, 1]
  float min_p = 0.0f;        // [0, 1)
  std::uint64_t seed = 0;    // same seed, prompt and settings: same tokens
  // The client stated the seed: the tokens must be the same on another day and another machine too, so nothing measured
  // (the verify width) may have a say. Costs speed where narrower blocks would pay.
  bool reproducible = false;
};

struct Submit {
  RequestId id = 0;               // unique among live requests
  std::vector<Token> prompt;      // not empty
  int reply_boundary = 0;         // prompt tokens before the generation prompt; the engine keeps a snapshot there. 0 = none
  Sampling sampling;
  int max_tokens = 0;             // > 0; the engine also stops at the context's end
  std::vector<Token> stop_tokens; // end the reply; the stop token itself is not among the reply's tokens
  std::shared_ptr<TokenConstraint> constraint;  // may be null
  TimePoint deadline = TimePoint::max();
  // Called on the engine's thread for every event of this request, in order; must return at once (post it elsewhere).
  // The last call is Finished or Failed.
  std::function<void(Event)> sink;
};

struct Cancel {
  RequestId id = 0;
};

using Command = std::variant<Submit, Cancel>;

}  // namespace splash::link
