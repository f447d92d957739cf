// How many bytes one step must move: the roof that a machine's memory sets.
#pragma once

#include <cstdint>

#include "pack/package.h"

namespace splash::pack {

struct StepBytes {
  // Weights, each read once for all rows of the step. Gathered tables (embedding, codebooks) do not count.
  std::int64_t target = 0;         // layers and final norm
  std::int64_t head = 0;           // logits of the verified rows
  std::int64_t draft = 0;          // 0 without a draft, also the two below
  std::int64_t draft_context = 0;  // k_proj and v_proj once more, for the features of the committed rows
  std::int64_t draft_head = 0;     // the same head, for the draft's rows
  // State of one lane: read and written once.
  std::int64_t gdn_state = 0;  // recurrent state and conv columns, float32
  // Read once per token of context: int8 keys and values with one float32 scale per token and head.
  std::int64_t kv_per_token = 0;

  std::int64_t weights() const { return target + head + draft + draft_context + draft_head; }
  // A step of one lane whose cache holds `context` tokens.
  std::int64_t total(std::int64_t context) const { return weights() + gdn_state + kv_per_token * context; }
};

StepBytes step_bytes(const Package& package);

}  // namespace splash::pack
