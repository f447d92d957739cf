#include <vector>

#include "ops/linear/linear.h"

namespace splash::ops {

namespace {

// One output column for all rows: the weights of output n are decoded once, sums are float64 with k ascending.
void column(MatrixView<const float> x, const LinearTarget& target, int n, std::vector<float>& weights) {
  const int k_count = target.weight.cols;
  for (int k = 0; k < k_count; ++k) weights[k] = pack::weight_at(target.weight, n, k);
  for (int r = 0; r < x.rows; ++r) {
    const float* row = x.row(r);
    double sum = 0;
    for (int k = 0; k < k_count; ++k) sum += double{weights[k]} * row[k];
    float& out = target.out.row(r)[n];
    out = target.accumulate ? out + static_cast<float>(sum) : static_cast<float>(sum);
  }
}

}  // namespace

void linear(ref::Stream&, MatrixView<const float> x, std::span<const LinearTarget> targets) {
  std::vector<float> weights(x.cols);
  for (const LinearTarget& target : targets) {
    SPLASH_CHECK(target.weight.cols == x.cols && target.weight.rows == target.out.cols && target.out.rows == x.rows,
                 "weight [{}, {}], x [{}, {}], out [{}, {}]", target.weight.rows, target.weight.cols, x.rows, x.cols,
                 target.out.rows, target.out.cols);
    for (int n = 0; n < target.weight.rows; ++n) column(x, target, n, weights);
  }
}

}  // namespace splash::ops
