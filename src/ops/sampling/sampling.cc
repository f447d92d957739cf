#include "ops/sampling/sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace splash::ops {

namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

bool allowed(const std::uint32_t* mask, Token token) {
  return mask == nullptr || (mask[token / 32] >> (token % 32) & 1u) != 0;
}

struct Ranked {
  float logit;
  Token token;
  // Rank order of every truncation: higher logit first, ties to the lower id.
  bool operator<(const Ranked& other) const { return logit != other.logit ? logit > other.logit : token < other.token; }
};

// Allowed ids with a finite or infinite logit; NaN and -infinity never get mass.
void collect(std::span<const float> logits, int limit, const std::uint32_t* mask, std::vector<Ranked>& out) {
  out.clear();
  for (Token token = 0; token < limit; ++token) {
    const float logit = logits[token];
    if (logit > minus_infinity && allowed(mask, token)) out.push_back({logit, token});
  }
}

// The k first of the rank order, unsorted, without holding more than 2k at a time: whatever ranks behind the k-th seen
// so far is dropped at once.
void collect_top(std::span<const float> logits, int limit, const std::uint32_t* mask, std::size_t k,
                 std::vector<Ranked>& out) {
  out.clear();
  float threshold = minus_infinity;
  const auto shrink = [&] {
    std::nth_element(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(k) - 1, out.end());
    out.resize(k);
    threshold = out[k - 1].logit;
  };
  for (Token token = 0; token < limit; ++token) {
    // Ids ascend, so an equal logit seen later ranks behind: strictly greater is enough once k are held.
    if (!(logits[token] > threshold) || !allowed(mask, token)) continue;
    out.push_back({logits[token], token});
    if (out.size() == 2 * k) shrink();
  }
  if (out.size() > k) shrink();
}

// Cuts `kept` to the smallest set of most probable tokens whose mass before the last one is < top_p. A histogram over
// the logit's distance from the top finds the few that can belong to it, so that only those are sorted.
void keep_nucleus(std::vector<Ranked>& kept, float top, double temperature, double top_p) {
  constexpr int bins = 256;
  constexpr double bins_per_nat = 8;
  const auto distance = [&](const Ranked& item) { return (double{top} - item.logit) / temperature; };
  const auto bin_of = [&](double nats) {
    return nats * bins_per_nat >= bins - 1 ? bins - 1 : int(nats * bins_per_nat);
  };
  std::array<double, bins> mass{};
  double total = 0;
  for (const Ranked& item : kept) {
    const double nats = distance(item);
    const double weight = std::exp(-nats);
    mass[bin_of(nats)] += weight;
    total += weight;
  }
  // Everything in bins up to `last` may be needed; one bin more guards against the rounding of the sums.
  double before = 0;
  int last = 0;
  while (last < bins - 1 && before + mass[last] < top_p * total) before += mass[last++];
  last = std::min(last + 1, bins - 1);
  std::erase_if(kept, [&](const Ranked& item) { return bin_of(distance(item)) > last; });

  std::sort(kept.begin(), kept.end());
  double seen = 0;
  std::size_t count = 0;
  while (count < kept.size() && seen < top_p * total) seen += std::exp(-distance(kept[count++]));
  kept.resize(std::max<std::size_t>(count, 1));
}

}  // namespace

double Law::of(Token token) const {
  const auto at = std::lower_bound(tokens.begin(), tokens.end(), token);
  return at != tokens.end() && *at == token ? probabilities[static_cast<std::size_t>(at - tokens.begin())] : 0.0;
}

Token argmax(std::span<const float> logits, int limit, const std::uint32_t* mask) {
  Token best = -1;
  float best_logit = minus_infinity;
  for (Token token = 0; token < limit; ++token) {
    if (!allowed(mask, token)) continue;
    if (best < 0 || logits[token] > best_logit) {
      best = token;
      best_logit = std::isnan(logits[token]) ? minus_infinity : logits[token];
    }
  }
  return best;
}

void target_law(std::span<const float> logits, int limit, const link::Sampling& sampling, const std::uint32_t* mask,
                Law& law) {
  SPLASH_CHECK(limit <= static_cast<int>(logits.size()));
  law.tokens.clear();
  law.probabilities.clear();
  const Token best = argmax(logits, limit, mask);
  if (best < 0) return;  // the mask allows nothing: an empty law
  const float top = logits[best];
  if (!(sampling.temperature > 0) || !std::isfinite(top)) {
    law.tokens.push_back(best);
    law.probabilities.push_back(1.0);
    return;
  }

  const double temperature = sampling.temperature;
  std::vector<Ranked> kept;
  const bool few = sampling.top_k > 0 && sampling.top_k < limit, nucleus = sampling.top_p < 1.0f;
  if (few) {
    collect_top(logits, limit, mask, static_cast<std::size_t>(sampling.top_k), kept);
  } else {
    collect(logits, limit, mask, kept);
  }
  if (nucleus) keep_nucleus(kept, top, temperature, sampling.top_p);
  if (few || nucleus) {  // otherwise still in id order
    std::sort(kept.begin(), kept.end(), [](const Ranked& a, const Ranked& b) { return a.token < b.token; });
  }

  double total = 0;
  for (const Ranked& item : kept) {
    // Relative to the most probable token, so that min_p is a plain comparison.
    const double weight = std::exp((double{item.logit} - top) / temperature);
    if (weight == 0 || weight < double{sampling.min_p}) continue;
    law.tokens.push_back(item.token);
    law.probabilities.push_back(weight);
    total += weight;
  }
  for (double& p : law.probabilities) p /= total;
}

Token draw(const Law& law, double u) {
  double sum = 0;
  for (std::size_t i = 0; i < law.tokens.size(); ++i) {
    sum += law.probabilities[i];
    if (u < sum) return law.tokens[i];
  }
  // u lies above the rounded sum: the last token that has mass.
  for (std::size_t i = law.tokens.size(); i > 0; --i) {
    if (law.probabilities[i - 1] > 0) return law.tokens[i - 1];
  }
  return -1;
}

void residual_law(const Law& p, const Proposal& proposal, Law& out) {
  out.tokens.clear();
  out.probabilities.clear();
  const Law& q = proposal.law;
  double total = 0;
  std::size_t j = 0;
  for (std::size_t i = 0; i < p.tokens.size(); ++i) {
    double q_token = 0;
    if (q.tokens.empty()) {
      q_token = p.tokens[i] == proposal.token ? 1.0 : 0.0;
    } else {
      while (j < q.tokens.size() && q.tokens[j] < p.tokens[i]) ++j;
      if (j < q.tokens.size() && q.tokens[j] == p.tokens[i]) q_token = q.probabilities[j];
    }
    const double mass = p.probabilities[i] - q_token;
    if (mass <= 0) continue;
    out.tokens.push_back(p.tokens[i]);
    out.probabilities.push_back(mass);
    total += mass;
  }
  if (!(total > 0)) {
    out = p;
    return;
  }
  for (double& mass : out.probabilities) mass /= total;
}

namespace {

// S(a, b) = U(b) + sum_r A[a, r] g[r] B[b, r]
double edge(const SelectorWeights& weights, Token from, const float* g, Token to, float value) {
  double sum = value;
  for (int r = 0; r < weights.predecessor.cols; ++r) {
    sum += double{weights.predecessor.at(from, r)} * g[r] * weights.successor.at(to, r);
  }
  return sum;
}

// softmax(S / temperature) over the candidates, sorted by id.
void proposal_law(std::span<const Token> candidates, std::span<const double> scores, double temperature, Law& law) {
  std::vector<std::size_t> order(candidates.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return candidates[a] < candidates[b]; });
  const double top = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  for (const std::size_t i : order) {
    const double weight = std::exp((scores[i] - top) / temperature);
    law.tokens.push_back(candidates[i]);
    law.probabilities.push_back(weight);
    total += weight;
  }
  for (double& p : law.probabilities) p /= total;
}

}  // namespace

void selector_walk(const SelectorWeights& weights, MatrixView<const Token> candidates, MatrixView<const float> values,
                   MatrixView<const float> projections, Token anchor, const link::Sampling& sampling,
                   std::int64_t position, std::vector<Proposal>& proposals, MatrixView<float> scores) {
  proposals.clear();
  std::vector<double> s(candidates.cols);
  Token from = anchor;
  for (int slot = 0; slot < candidates.rows; ++slot) {
    int best = 0;
    for (int i = 0; i < candidates.cols; ++i) {
      s[i] = edge(weights, from, projections.row(slot), candidates.row(slot)[i], values.row(slot)[i]);
      if (std::isnan(s[i])) s[i] = minus_infinity;
      const bool wins = s[i] > s[best] || (s[i] == s[best] && candidates.row(slot)[i] < candidates.row(slot)[best]);
      if (wins) best = i;
      if (scores.data != nullptr) scores.row(slot)[i] = static_cast<float>(s[i]);
    }
    Proposal& proposal = proposals.emplace_back();
    proposal.token = candidates.row(slot)[best];
    if (sampling.temperature > 0 && std::isfinite(s[best])) {
      proposal_law(candidates.row_span(slot), s, sampling.temperature, proposal.law);
      const auto at = static_cast<std::uint64_t>(position + 1 + slot);
      proposal.token = draw(proposal.law, uniform(sampling.seed, at, Purpose::draft));
    }
    from = proposal.token;
  }
}

}  // namespace splash::ops
