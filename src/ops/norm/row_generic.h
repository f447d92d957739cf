// Reductions over one row, for any instruction set. Included after a simd header.
#pragma once

namespace splash::ops {
namespace {

// Four running vectors hide the latency of the fused multiply-add; their order of addition is fixed.
inline float sum_of_squares(const float* x, int count) {
  using namespace simd;
  Vec sums[4] = {};
  int at = 0;
  for (; at + 4 * width <= count; at += 4 * width) {
#pragma GCC unroll 4
    for (int part = 0; part < 4; ++part) {
      const Vec v = load(x + at + part * width);
      sums[part] = fma(v, v, sums[part]);
    }
  }
  for (; at + width <= count; at += width) {
    const Vec v = load(x + at);
    sums[0] = fma(v, v, sums[0]);
  }
  if (at < count) {
    const Vec v = load_part(x + at, count - at);
    sums[1] = fma(v, v, sums[1]);
  }
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace
}  // namespace splash::ops
