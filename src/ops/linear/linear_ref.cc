#include <algorithm>
#include <vector>

#include "ops/linear/linear.h"

namespace splash::ops {

namespace {

// One output column for all rows: the weights of output n are decoded once, sums are float64 with k ascending. Eight rows
// go side by side because the additions of one row wait for each other.
void column(MatrixView<const float> x, const LinearTarget& target, int n, std::vector<double>& weights) {
  constexpr int together = 8;
  const int k_count = target.weight.cols;
  for (int k = 0; k < k_count; ++k) weights[k] = pack::weight_at(target.weight, n, k);
  for (int first = 0; first < x.rows; first += together) {
    const float* rows[together];
    for (int i = 0; i < together; ++i) rows[i] = x.row(std::min(first + i, x.rows - 1));
    double sums[together] = {};
    for (int k = 0; k < k_count; ++k) {
#pragma GCC unroll 8
      for (int i = 0; i < together; ++i) sums[i] += weights[k] * rows[i][k];
    }
    for (int i = 0; i < together && first + i < x.rows; ++i) {
      float& out = target.out.row(first + i)[n];
      out = target.accumulate ? out + static_cast<float>(sums[i]) : static_cast<float>(sums[i]);
    }
  }
}

}  // namespace

void linear(ref::Stream&, MatrixView<const float> x, std::span<const LinearTarget> targets) {
  std::vector<double> weights(x.cols);
  for (const LinearTarget& target : targets) {
    SPLASH_CHECK(target.weight.cols == x.cols && target.weight.rows == target.out.cols && target.out.rows == x.rows,
                 "weight [{}, {}], x [{}, {}], out [{}, {}]", target.weight.rows, target.weight.cols, x.rows, x.cols,
                 target.out.rows, target.out.cols);
    for (int n = 0; n < target.weight.rows; ++n) column(x, target, n, weights);
  }
}

}  // namespace splash::ops
