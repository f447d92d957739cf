// Greedy choice on the device for the benchmark's synthetic step. The model's own steps, greedy and sampled, take
// law_cuda.h.
#pragma once

#include "backend/cuda/stream.h"
#include "ops/sampling/sampling.h"

namespace splash::ops {

// What a lane's walk reads and writes, all device memory. `block` tokens per lane: the anchor, then the proposals.
struct GreedyWalk {
  SelectorWeights weights;              // device tables
  MatrixView<const Token> candidates;   // [lanes * slots, K], K <= 16
  MatrixView<const float> values;       // [lanes * slots, K]
  MatrixView<const float> projections;  // [lanes * slots, r]
  int lanes = 0;
  int slots = 0;            // proposals per lane
  Token* tokens = nullptr;  // [lanes][slots + 1]; column 0 holds the anchor on entry
};
void selector_walk_greedy(cuda::Stream& stream, const GreedyWalk& walk);

// chosen[row] = argmax of each row's logits. Accepts the longest prefix of proposals that agrees; result per lane:
// kept (rows that count: accepted + 1) to *kept[lane], the next anchor to tokens[lane][0], position += kept, and
// [kept, next] appended to `results`.
struct GreedyAcceptance {
  MatrixView<const Token> chosen;  // [lanes * (slots + 1), 1]
  int lanes = 0;
  int slots = 0;
  Token* tokens = nullptr;     // as in GreedyWalk
  int* const* kept = nullptr;  // [lanes]
  int* positions = nullptr;    // [lanes], may be null
  int* results = nullptr;      // [lanes][slots + 2]: kept, the kept proposals and the next anchor
};
void accept_greedy(cuda::Stream& stream, const GreedyAcceptance& acceptance);

}  // namespace splash::ops
