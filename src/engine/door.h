// What the engine checks of a submit before it lets it in. The text half checks the same at its own door with better
// words; this is the last one, so that nothing behind it needs to doubt a request.
#pragma once

#include "base/result.h"
#include "link/command.h"

namespace splash::engine {

struct Limits {
  int vocab_size = 0;
  int context = 0;  // prompt and reply together
  int max_queued = 0;
  // The longest prompt that leaves room for one token of reply.
  int max_prompt_tokens() const { return context - 1; }
};

// An error's parameter is the field of link::Submit at fault.
Status check_submit(const link::Submit& submit, const Limits& limits);

}  // namespace splash::engine
