// The draft's walk, the requested law and the acceptance rule on the device: what sampling.h does on the host, inside
// the recorded step and without a host decision.
//
// Weights of a law are integers. A token of row logits l weighs round(2^45 * e^((l - top) / temperature)), so sums are
// exact in any order: which kernel finds a law, how its threads share the row and who else is in the step change no
// token. What lies more than 32 nats below the top has no weight: at most vocabulary * 2^-46 of the mass (1e-8 for
// 248,320 ids).
#pragma once

#include <optional>
#include <vector>

#include "backend/cuda/stream.h"
#include "link/limits.h"
#include "ops/draft/draft.h"
#include "ops/sampling/sampling.h"

namespace splash::ops {

inline constexpr int most_candidates_cuda =
    32;  // of a draft slot, and the largest top_k that needs no pass over the row

inline constexpr int most_selector_rank_cuda = 256;

// How one lane of a step chooses: written by the host before the step. Row j decides the token at position + 1 + j.
struct LaneChoice {
  float temperature = 0;  // 0 = greedy
  float top_p = 1, min_p = 0;
  int top_k = 0;
  std::uint64_t seed = 0;
  std::int64_t position = 0;  // of row 0, the anchor
  int rows = 1;               // verified rows: 1 + proposals
  int budget = 1;             // at most so many tokens are chosen
  int lane = 0;
  int stop_count = 0;
  Token stops[link::max_stop_tokens] = {};
  std::uint32_t ticket = 0;  // of the step: marks what the lane chose in it
};

// What a lane chose, cut after the first stop token and at the budget: count >= 1 tokens, the last one the next anchor.
// It lies in pinned memory, where a host reads it while the step still runs: every word is written whole and carries the
// step's ticket, so no word needs another one before it.
struct LaneChosen {
  struct alignas(8) Word {
    std::int32_t value = 0;
    std::uint32_t ticket = 0;
  };
  Word count;
  Word tokens[link::max_block];
};
// The tokens of the step with that ticket; nothing while they are under way. A count out of range gives the words that
// there are room for.
std::optional<std::vector<Token>> arrived(const LaneChosen& chosen, std::uint32_t ticket);

// The law a proposal was drawn from: ids and integer weights. A point mass has all its weight on the token.
struct SlotLaw {
  int count = 0;
  std::uint64_t total = 0;
  Token ids[most_candidates_cuda];
  std::uint64_t weights[most_candidates_cuda];
};

// Device memory throughout; `lanes` lanes of `slots` proposals each.
struct Walk {
  SelectorWeights weights;
  MatrixView<const Token> candidates;   // [lanes * slots, K], K <= 32
  MatrixView<const float> values;       // [lanes * slots, K]
  MatrixView<const float> projections;  // [lanes * slots, r]
  int lanes = 0, slots = 0;
  const LaneChoice* choices = nullptr;  // [lanes]
  Token* tokens = nullptr;              // [lanes][slots + 1]; column 0 holds the anchor on entry
  SlotLaw* laws = nullptr;              // [lanes * slots], of the lanes that sample
  float* scores = nullptr;              // [lanes * slots, K] along the path, or null
};
void selector_walk(cuda::Stream& stream, const Walk& walk);

// Takes away every logit whose id a row's mask forbids. rows: which rows of `logits`; masks [rows][words], words * 32
// ids covered, the others forbidden. Both tables in device memory.
void mask_rows(cuda::Stream& stream, MatrixView<float> logits, const int* rows, int row_count,
               const std::uint32_t* masks, int words);

// How the rows' laws are found. Lanes with a lesser need get the same tokens from every kind.
enum class LawKind {
  greedy,  // argmax only
  few,     // top_k in 1..32 (or greedy)
  full,    // anything
};
LawKind law_kind(const link::Sampling& sampling, int limit);

struct StepAcceptance {
  MatrixView<const float> logits;  // [lanes * width, V]
  int limit = 0;                   // ids at or above it are never chosen
  int lanes = 0, width = 0;        // rows per lane: slots + 1
  LawKind kind = LawKind::greedy;
  const LaneChoice* choices = nullptr;
  const Token* tokens = nullptr;  // [lanes][width]: anchor, proposals
  const SlotLaw* laws = nullptr;  // [lanes * (width - 1)]; null where width is 1
  LaneChosen* chosen = nullptr;   // [lanes], pinned host memory or the device's
  int* kept = nullptr;            // by lane number: becomes the count. null: a prefill's choice keeps nothing
  // The rows that become draft context: contexts[layer * stride + lane of the step].rows becomes the count.
  DraftContextSegment* contexts = nullptr;
  int context_layers = 0, context_stride = 0;
};
void accept(cuda::Stream& stream, const StepAcceptance& acceptance);

}  // namespace splash::ops
