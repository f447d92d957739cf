// Pearson's chi-square test of counts against a law.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

namespace splash::test {

// Regularised upper incomplete gamma function Q(a, x): series below a + 1, continued fraction (Lentz) above.
inline double gamma_q(double a, double x) {
  if (x <= 0) return 1.0;
  const double front = std::exp(a * std::log(x) - x - std::lgamma(a));
  if (x < a + 1) {
    double term = 1 / a, sum = term;
    for (int n = 1; n < 10'000 && std::abs(term) > 1e-16 * std::abs(sum); ++n) sum += term *= x / (a + n);
    return 1.0 - front * sum;
  }
  double b = x + 1 - a, c = 1e300, d = 1 / b, h = d;
  for (int n = 1; n < 10'000; ++n) {
    const double an = -n * (n - a);
    b += 2;
    d = 1 / (an * d + b);
    c = b + an / c;
    h *= c * d;
    if (std::abs(c * d - 1) < 1e-15) break;
  }
  return front * h;
}

struct ChiSquare {
  double statistic = 0;
  int degrees = 0;
  double p = 0;             // probability of a statistic at least this large under the law
  bool impossible = false;  // something was counted that the law never gives
};

// Cells that expect fewer than 5 counts are pooled into one.
inline ChiSquare chi_square(std::span<const std::int64_t> counts, std::span<const double> law) {
  std::int64_t total = 0;
  for (const std::int64_t count : counts) total += count;
  ChiSquare result;
  double pooled_count = 0, pooled_expected = 0;
  int cells = 0;
  const auto add = [&](double count, double expected) {
    result.statistic += (count - expected) * (count - expected) / expected;
    ++cells;
  };
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = law[i] * static_cast<double>(total);
    if (law[i] == 0 && counts[i] > 0) result.impossible = true;
    if (expected >= 5) {
      add(static_cast<double>(counts[i]), expected);
    } else {
      pooled_count += static_cast<double>(counts[i]);
      pooled_expected += expected;
    }
  }
  if (pooled_expected >= 1) add(pooled_count, pooled_expected);
  result.degrees = cells - 1;
  result.p = result.impossible ? 0.0 : cells <= 1 ? 1.0 : gamma_q(result.degrees / 2.0, result.statistic / 2.0);
  return result;
}

}  // namespace splash::test
