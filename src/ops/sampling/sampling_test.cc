#include "ops/sampling/sampling.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/sampling/chi_square.h"

namespace splash::ops {
namespace {

double random_unit(std::uint64_t stream, std::uint64_t index) { return uniform(stream, index, Purpose::test); }
double random_normal(std::uint64_t stream, std::uint64_t index) {
  return std::sqrt(-2 * std::log(1 - random_unit(stream, 2 * index))) *
         std::cos(6.283185307179586 * random_unit(stream, 2 * index + 1));
}
std::vector<float> random_logits(int vocabulary, std::uint64_t stream, double spread) {
  std::vector<float> logits(vocabulary);
  for (int i = 0; i < vocabulary; ++i) logits[i] = static_cast<float>(spread * random_normal(stream, i));
  return logits;
}

// The definition in link/command.h, word for word, with full sorts.
Law naive_law(std::span<const float> logits, int limit, const link::Sampling& sampling, const std::uint32_t* mask) {
  std::vector<Token> order;
  for (Token t = 0; t < limit; ++t) {
    if ((mask == nullptr || (mask[t / 32] >> (t % 32) & 1u)) && !std::isnan(logits[t])) order.push_back(t);
  }
  std::sort(order.begin(), order.end(),
            [&](Token a, Token b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  if (sampling.top_k > 0 && order.size() > std::size_t(sampling.top_k)) order.resize(sampling.top_k);
  std::vector<double> p;
  for (const Token t : order) p.push_back(std::exp((double{logits[t]} - logits[order[0]]) / sampling.temperature));
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  std::size_t kept = 0;
  for (double before = 0; kept < p.size() && before < double{sampling.top_p} * total; ++kept) before += p[kept];
  if (sampling.top_p >= 1) kept = p.size();
  Law law;
  std::vector<std::pair<Token, double>> pairs;
  for (std::size_t i = 0; i < kept; ++i) {
    if (p[i] >= double{sampling.min_p} * p[0] && p[i] > 0) pairs.emplace_back(order[i], p[i]);
  }
  std::sort(pairs.begin(), pairs.end());
  double sum = 0;
  for (const auto& [token, mass] : pairs) sum += mass;
  for (const auto& [token, mass] : pairs) {
    law.tokens.push_back(token);
    law.probabilities.push_back(mass / sum);
  }
  return law;
}

TEST(TargetLaw, EqualsTheDefinitionOnRandomRows) {
  int compared = 0;
  for (int trial = 0; trial < 600; ++trial) {
    const int vocabulary = 1 + static_cast<int>(random_unit(1, trial) * 700);
    auto logits = random_logits(vocabulary, 1000 + trial, trial % 3 == 0 ? 0.3 : 3.0);
    if (trial % 4 == 0) {  // many ties
      for (float& x : logits) x = std::round(x);
    }
    if (trial % 5 == 0) logits[trial % vocabulary] = std::numeric_limits<float>::quiet_NaN();
    if (trial % 7 == 0) logits[trial / 7 % vocabulary] = -std::numeric_limits<float>::infinity();
    link::Sampling sampling;
    sampling.temperature = static_cast<float>(0.1 + 2 * random_unit(2, trial));
    if (trial % 2) sampling.top_k = 1 + static_cast<int>(random_unit(3, trial) * 1.2 * vocabulary);
    if (trial % 3) sampling.top_p = static_cast<float>(1 - random_unit(4, trial));
    if (trial % 5 < 2) sampling.min_p = static_cast<float>(0.3 * random_unit(5, trial));
    std::vector<std::uint32_t> mask((vocabulary + 31) / 32, ~0u);
    for (int t = 0; t < vocabulary; ++t) {
      if (random_unit(6, trial * 1000 + t) < 0.4) mask[t / 32] &= ~(1u << t % 32);
    }
    const std::uint32_t* use = trial % 3 == 1 ? mask.data() : nullptr;
    const int limit = vocabulary - (trial % 11 == 0 ? vocabulary / 3 : 0);
    Law law;
    target_law(logits, limit, sampling, use, law);
    const Token best = argmax(logits, limit, use);
    if (best < 0) {
      EXPECT_TRUE(law.tokens.empty());
      continue;
    }
    if (!std::isfinite(logits[best])) continue;
    const Law expected = naive_law(logits, limit, sampling, use);
    ASSERT_EQ(law.tokens, expected.tokens) << "trial " << trial;
    for (std::size_t i = 0; i < law.tokens.size(); ++i)
      ASSERT_NEAR(law.probabilities[i], expected.probabilities[i], 1e-12);
    ++compared;
  }
  EXPECT_GT(compared, 500);
}

TEST(TargetLaw, CornersAreLaws) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  Law law;
  link::Sampling sampling;
  target_law(std::vector<float>{nan, nan}, 2, sampling, nullptr, law);
  EXPECT_EQ(law.tokens, std::vector<Token>{0});
  target_law(std::vector<float>{1, inf, inf}, 3, sampling, nullptr, law);
  EXPECT_EQ(law.tokens, std::vector<Token>{1});
  target_law(std::vector<float>{-inf, -inf, nan}, 3, sampling, nullptr, law);
  EXPECT_EQ(law.tokens, std::vector<Token>{0});
  const std::uint32_t none = 0;
  target_law(std::vector<float>{1, 2}, 2, sampling, &none, law);
  EXPECT_TRUE(law.tokens.empty());
  EXPECT_EQ(draw(law, 0.5), -1);
  sampling.temperature = 1e-30f;
  target_law(std::vector<float>{1, 2, 2}, 3, sampling, nullptr, law);
  EXPECT_EQ(law.tokens, (std::vector<Token>{1, 2}));
  sampling.temperature = 0;
  target_law(std::vector<float>{1, 2, 2}, 3, sampling, nullptr, law);
  EXPECT_EQ(law.tokens, (std::vector<Token>{1}));
  sampling.temperature = 1;
  sampling.top_p = 1e-9f;
  target_law(std::vector<float>{1, 2, 2}, 3, sampling, nullptr, law);
  EXPECT_EQ(law.tokens, (std::vector<Token>{1}));
}

TEST(TargetLaw, WholeVocabularyIsFast) {
  const auto logits = random_logits(248'320, 9, 2.5);
  for (const link::Sampling& sampling : {link::Sampling{.temperature = 0.7f, .top_k = 20, .top_p = 0.95f},
                                         link::Sampling{.temperature = 1.0f, .top_p = 0.95f},
                                         link::Sampling{.temperature = 1.0f, .min_p = 0.05f}, link::Sampling{}}) {
    Law law;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 10; ++i) target_law(logits, 248'077, sampling, nullptr, law);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    fmt::print("target_law V=248077 top_k={} top_p={} min_p={}: {:.2f} ms, support {}\n", sampling.top_k,
               sampling.top_p, sampling.min_p, took.count() / 10, law.tokens.size());
    EXPECT_FALSE(law.tokens.empty());
  }
}

TEST(SelectorWalk, DrawsFromTheLawItReports) {
  constexpr int slots = 2, k = 4, rank = 3, vocabulary = 10;
  const auto a = random_logits(vocabulary * rank, 21, 1), b = random_logits(vocabulary * rank, 22, 1);
  const auto g = random_logits(slots * rank, 23, 1);
  const SelectorWeights weights{{pack::Format::f32, vocabulary, rank, reinterpret_cast<const std::byte*>(a.data())},
                                {pack::Format::f32, vocabulary, rank, reinterpret_cast<const std::byte*>(b.data())}};
  std::vector<Token> candidates{7, 2, 9, 0, 3, 8, 1, 4};
  std::vector<float> values{1.0f, 0.8f, 0.1f, -0.5f, 0.9f, 0.9f, 0.2f, 0.0f};
  const MatrixView<const Token> c(candidates.data(), slots, k);
  const MatrixView<const float> v(values.data(), slots, k), projections(g.data(), slots, rank);
  link::Sampling sampling{.temperature = 0.8f};
  std::vector<Proposal> proposals;
  std::vector<std::int64_t> counts(vocabulary * vocabulary);
  std::vector<double> law(vocabulary * vocabulary);
  for (int i = 0; i < 200'000; ++i) {
    sampling.seed = i;
    selector_walk(weights, c, v, projections, 5, sampling, 100, proposals);
    ASSERT_EQ(proposals.size(), 2u);
    ++counts[proposals[0].token * vocabulary + proposals[1].token];
    for (const Token t : proposals[1].law.tokens) {
      law[proposals[0].token * vocabulary + t] = proposals[0].law.of(proposals[0].token) * proposals[1].law.of(t);
    }
  }
  const auto result = test::chi_square(counts, law);
  fmt::print("chi-square selector walk: p = {:.4f} ({} degrees)\n", result.p, result.degrees);
  EXPECT_GT(result.p, 1e-4);

  // Greedy: the reported scores' argmax, ties to the lower id, and point masses.
  std::vector<float> scores(slots * k);
  sampling.temperature = 0;
  selector_walk(weights, c, v, projections, 5, sampling, 100, proposals, MatrixView<float>(scores.data(), slots, k));
  for (int slot = 0; slot < slots; ++slot) {
    const auto best = std::max_element(scores.begin() + slot * k, scores.begin() + (slot + 1) * k) - scores.begin();
    EXPECT_EQ(proposals[slot].token, candidates[best]);
    EXPECT_TRUE(proposals[slot].law.tokens.empty());
  }
}

// A toy language: the law of a token depends on the one before it. Speculation drafts from other laws; what comes out
// must be the toy's own law. Two tokens are counted jointly, so that a bias of the second by the fate of the first
// shows.
struct Toy {
  static constexpr int vocabulary = 12;
  std::vector<Law> target, draft;  // by preceding token
};

enum class DraftKind { random, perfect, point_mass, outside_support, mixed };
constexpr const char* name_of(DraftKind kind) {
  constexpr const char* names[] = {"random", "perfect", "point masses", "outside p", "mixed by row"};
  return names[static_cast<int>(kind)];
}

Law sparse_law(int from, std::uint64_t stream, double keep) {
  Law law;
  double total = 0;
  for (Token t = 0; t < Toy::vocabulary; ++t) {
    if (random_unit(stream, from * 100 + t) > keep && t != (from + 1) % Toy::vocabulary) continue;
    law.tokens.push_back(t);
    law.probabilities.push_back(std::exp(1.5 * random_normal(stream + 1, from * 100 + t)));
    total += law.probabilities.back();
  }
  for (double& p : law.probabilities) p /= total;
  return law;
}

Toy toy(const link::Sampling& sampling, bool masked, DraftKind kind) {
  Toy result;
  for (int from = 0; from < Toy::vocabulary; ++from) {
    const auto logits = random_logits(Toy::vocabulary, 300 + from, 1.2);
    const std::uint32_t mask = 0x5b6u | 1u << from;
    target_law(logits, Toy::vocabulary, sampling, masked && from % 2 ? &mask : nullptr, result.target.emplace_back());
    const Law& p = result.target.back();
    Law q;
    const DraftKind use = kind != DraftKind::mixed ? kind : static_cast<DraftKind>(from % 4);
    if (use == DraftKind::random) q = sparse_law(from, 500, 0.6);
    if (use == DraftKind::perfect) q = p;
    if (use == DraftKind::outside_support) {  // mostly on what the target never says
      for (Token t = 0; t < Toy::vocabulary; ++t)
        q.tokens.push_back(t), q.probabilities.push_back(p.of(t) > 0 ? 0.02 : 1);
      const double total = std::accumulate(q.probabilities.begin(), q.probabilities.end(), 0.0);
      for (double& mass : q.probabilities) mass /= total;
    }
    result.draft.push_back(q);  // empty: a point mass on (3 from + 1)
  }
  return result;
}

test::ChiSquare speculate(const Toy& toy, int draws, std::uint64_t first_seed) {
  constexpr int n = Toy::vocabulary;
  std::vector<std::int64_t> counts(n * n);
  std::vector<Proposal> proposals;
  std::vector<Token> text;
  for (int i = 0; i < draws; ++i) {
    link::Sampling sampling;
    sampling.seed = first_seed + i;
    text.assign(1, 4);  // the anchor
    while (text.size() < 3) {
      const auto position = static_cast<std::int64_t>(text.size()) - 1;
      proposals.resize(3);
      Token from = text.back();
      for (int slot = 1; slot <= 3; ++slot) {
        const Law& q = toy.draft[from];
        const Token token =
            q.tokens.empty() ? (3 * from + 1) % n : draw(q, uniform(sampling.seed, position + slot, Purpose::draft));
        proposals[slot - 1].token = token;
        proposals[slot - 1].law = q;
        from = token;
      }
      const Token anchor = text.back();
      const Acceptance got = accept(proposals, sampling, position, [&](int row) -> const Law& {
        return toy.target[row == 0 ? anchor : proposals[row - 1].token];
      });
      for (int j = 0; j < got.accepted; ++j) text.push_back(proposals[j].token);
      text.push_back(got.next);
    }
    ++counts[text[1] * n + text[2]];
  }
  std::vector<double> law(n * n);
  for (int a = 0; a < n; ++a) {
    for (int b = 0; b < n; ++b) law[a * n + b] = toy.target[4].of(a) * toy.target[a].of(b);
  }
  return test::chi_square(counts, law);
}

TEST(Speculation, LawIsTheTargetsForEverySettingAndDraft) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int draws = 50'000;  // the sanitizers look at memory, not at laws
#else
  constexpr int draws = 1'000'000;
#endif
  const struct {
    const char* name;
    link::Sampling sampling;
    bool masked = false;
  } settings[] = {
      {"temperature 1", {}},
      {"temperature 0.6", {.temperature = 0.6f}},
      {"top_k 5", {.top_k = 5}},
      {"top_p 0.8", {.top_p = 0.8f}},
      {"min_p 0.15", {.min_p = 0.15f}},
      {"t 0.8 k 6 p 0.9 min 0.05", {.temperature = 0.8f, .top_k = 6, .top_p = 0.9f, .min_p = 0.05f}},
      {"masked rows, t 1.3 p 0.95", {.temperature = 1.3f, .top_p = 0.95f}, true},
  };
  // A wrong rule misses by far; right ones give uniform p values, of which the least of 35 is above 1e-4 almost surely.
  std::uint64_t seed = 0;
  for (const auto& setting : settings) {
    for (const DraftKind kind :
         {DraftKind::random, DraftKind::perfect, DraftKind::point_mass, DraftKind::outside_support, DraftKind::mixed}) {
      const auto result = speculate(toy(setting.sampling, setting.masked, kind), draws, seed);
      seed += draws;
      fmt::print("chi-square {:<28} draft {:<13} p = {:.4f} ({} degrees)\n", setting.name, name_of(kind), result.p,
                 result.degrees);
      EXPECT_FALSE(result.impossible);
      EXPECT_GT(result.p, 1e-4) << setting.name << ", " << name_of(kind);
    }
  }
}

TEST(Speculation, TheTestItselfSeesAWrongRule) {
  // Point masses treated as if drawn from q with q(d) = p(d): always accepted where p > 0, which biases the law.
  Toy wrong = toy({}, false, DraftKind::point_mass);
  for (Law& q : wrong.draft) q = sparse_law(3, 900, 0.5);
  const Toy right = wrong;
  for (Law& q : wrong.draft) {  // reports a law other than the one it draws from
    std::reverse(q.probabilities.begin(), q.probabilities.end());
  }
  EXPECT_GT(speculate(right, 100'000, 0).p, 1e-4);
  std::vector<std::int64_t> counts(Toy::vocabulary);
  std::vector<double> law(Toy::vocabulary);
  for (int i = 0; i < 100'000; ++i) {
    link::Sampling sampling{.seed = static_cast<std::uint64_t>(i)};
    const Token token = draw(right.draft[4], uniform(i, 1, Purpose::draft));
    std::vector<Proposal> proposals{{token, wrong.draft[4]}};
    const Acceptance got =
        accept(proposals, sampling, 0, [&](int row) -> const Law& { return right.target[row == 0 ? 4 : token]; });
    ++counts[got.accepted > 0 ? token : got.next];
  }
  for (Token t = 0; t < Toy::vocabulary; ++t) law[t] = right.target[4].of(t);
  EXPECT_LT(test::chi_square(counts, law).p, 1e-6);
}

}  // namespace
}  // namespace splash::ops
