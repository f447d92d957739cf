// The requested law, the draft's walk and the acceptance rule (dflash2.md 2.2, 4.4 and 5): host code shared by the ref
// and cpu streams, exact to the last uniform.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/matrix.h"
#include "base/rng.h"
#include "link/command.h"
#include "link/token.h"
#include "pack/weight.h"

namespace splash::ops {

// A probability law over token ids, sorted by id. Probabilities sum to 1.
struct Law {
  std::vector<Token> tokens;
  std::vector<double> probabilities;

  double of(Token token) const;  // 0 outside the support
};

// The target's processed law of one row (link::Sampling's order), or the point mass of the argmax when greedy.
// `mask`: allowed ids as bits, or null. Ids >= limit never get mass. NaN logits count as -infinity.
void target_law(std::span<const float> logits, int limit, const link::Sampling& sampling, const std::uint32_t* mask,
                Law& law);

// Highest value, ties to the lower id, among ids < limit that the mask allows. -1 if none.
Token argmax(std::span<const float> logits, int limit, const std::uint32_t* mask);

// Draws from a law by inversion in id order; u in [0, 1).
Token draw(const Law& law, double u);

// One drafted token and the law it was drawn from; an empty law means a point mass (a deterministic proposal).
struct Proposal {
  Token token = 0;
  Law law;
};

struct SelectorWeights {
  pack::Table predecessor;  // A [V, r]
  pack::Table successor;    // B [V, r]
};

// Walks the block's candidates: slot t scores S_t(a, b) = U_t(b) + sum_r A[a,r] g_t[r] B[b,r] with a the token chosen at
// slot t - 1 (the anchor at slot 1). Greedy: argmax, ties to the lower id, point masses. Sampling: drawn from
// softmax(S / temperature) with uniform(seed, position + t, Purpose::draft).
//   candidates, values  [slots, K] from top_k; projections [slots, r] = W_h h_t. position: of the anchor.
// scores (may be empty, [slots, K]) receives S_t along the walked path.
void selector_walk(const SelectorWeights& weights, MatrixView<const Token> candidates, MatrixView<const float> values,
                   MatrixView<const float> projections, Token anchor, const link::Sampling& sampling,
                   std::int64_t position, std::vector<Proposal>& proposals, MatrixView<float> scores = {});

struct Acceptance {
  int accepted = 0;  // leading proposals kept
  Token next = 0;    // the next anchor: residual, bonus or argmax
};

// The exact rule. `laws` are the target's laws of rows 0..proposals.size(); row j's law is asked for only when it is
// needed. position: of the anchor; row j decides the token at position + 1 + j with that position's uniforms.
template <class LawOfRow>
Acceptance accept(std::span<const Proposal> proposals, const link::Sampling& sampling, std::int64_t position,
                  LawOfRow&& law_of_row);

// The residual law normalise(max(p - q, 0)); p itself if no mass is left (rounding).
void residual_law(const Law& p, const Proposal& proposal, Law& out);

template <class LawOfRow>
Acceptance accept(std::span<const Proposal> proposals, const link::Sampling& sampling, std::int64_t position,
                  LawOfRow&& law_of_row) {
  Law residual;
  for (std::size_t j = 0; j < proposals.size(); ++j) {
    const Law& p = law_of_row(static_cast<int>(j));
    const Proposal& proposal = proposals[j];
    const auto at = static_cast<std::uint64_t>(position + 1 + static_cast<std::int64_t>(j));
    const double p_token = p.of(proposal.token);
    const double q_token = proposal.law.tokens.empty() ? 1.0 : proposal.law.of(proposal.token);
    if (uniform(sampling.seed, at, Purpose::accept) * q_token < p_token) continue;
    residual_law(p, proposal, residual);
    return {static_cast<int>(j), draw(residual, uniform(sampling.seed, at, Purpose::residual))};
  }
  const Law& p = law_of_row(static_cast<int>(proposals.size()));
  const auto at = static_cast<std::uint64_t>(position + 1 + static_cast<std::int64_t>(proposals.size()));
  return {static_cast<int>(proposals.size()), draw(p, uniform(sampling.seed, at, Purpose::residual))};
}

}  // namespace splash::ops
