// How far the logits of one forward pass are from those of another.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <vector>

#include "base/check.h"

namespace splash::test {

struct Agreement {
  double kl = 0.0;  // mean KL(p || q) in nats
  int rows = 0;
  int clear = 0;  // rows where p's best two are more than 0.05 apart
  int same = 0;   // those of them where q has the same best id
};

// p, q: [rows, vocab].
inline Agreement agreement(std::span<const float> p, std::span<const float> q, int vocab) {
  SPLASH_CHECK(p.size() == q.size() && p.size() % vocab == 0, "{} and {} logits", p.size(), q.size());
  Agreement found{.rows = static_cast<int>(p.size() / vocab)};
  const auto log_sum = [](std::span<const float> row) {
    const double most = *std::ranges::max_element(row);
    double sum = 0.0;
    for (const float x : row) sum += std::exp(x - most);
    return most + std::log(sum);
  };
  for (int row = 0; row < found.rows; ++row) {
    const auto a = p.subspan(std::size_t(row) * vocab, vocab), b = q.subspan(std::size_t(row) * vocab, vocab);
    const double a_sum = log_sum(a), b_sum = log_sum(b);
    for (int i = 0; i < vocab; ++i) found.kl += std::exp(a[i] - a_sum) * ((a[i] - a_sum) - (b[i] - b_sum)) / found.rows;
    std::vector<float> top(a.begin(), a.end());
    std::partial_sort(top.begin(), top.begin() + 2, top.end(), std::greater<>());
    if (top[0] - top[1] <= 0.05f) continue;
    ++found.clear;
    found.same += std::ranges::max_element(a) - a.begin() == std::ranges::max_element(b) - b.begin();
  }
  return found;
}

}  // namespace splash::test
