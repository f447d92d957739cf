// y = W x for rows of x: out[r][n] = sum_k W[n][k] x[r][k], for one or several matrices that share x.
//
// cpu, q4: x is quantised once to int8 per row and group of 64 inputs (a = max|x| / 127, code = round(x / a)); then
//   y = sum_g ( scale[n,g] * a[g] * I + bias[n,g] * X[g] ),  I = sum_k code_w * code_x exactly in int32, X = a[g] times
//   the sum of the codes, groups summed in ascending order in float32. X must be the sum of the *quantised* x: then
//   the rounding error of x meets the weights (mean near 0). With the unquantised sum it would meet the bare codes (0..15,
//   mean 7.5), which made the error of a layer 2.9 times larger on the golden fixture.
//   A Fine x has a second int8 plane for what the first one left (16 bits in all, a / 256 per unit) and costs its products
//   twice: docs/decisions/0012 says for which inputs that pays.
// cpu, bf16 / f32 and ref: float32, k ascending per output (cpu may keep a fixed number of partial sums).
// Bytes moved: each weight once per call and 64-row block of x.
#pragma once

#include <span>

#include "base/matrix.h"
#include "ops/streams.h"
#include "pack/weight.h"

namespace splash::ops {

struct LinearTarget {
  pack::Weight weight;     // [N, K], K = x.cols
  MatrixView<float> out;   // [rows, N]
  bool accumulate = false; // out += W x (a residual) instead of out = W x
};

// An input that the cpu rounds to 16 bits for 4-bit matrices, where it rounds others to 8.
struct Fine {
  MatrixView<const float> x;
};
// What a stream takes for an input whose rounding would show: other devices round no input to 8 bits.
template <class S>
MatrixView<const float> finely(S&, MatrixView<const float> x) {
  return x;
}
inline Fine finely(cpu::Stream&, MatrixView<const float> x) { return {x}; }

void linear(ref::Stream& stream, MatrixView<const float> x, std::span<const LinearTarget> targets);
void linear(cpu::Stream& stream, MatrixView<const float> x, std::span<const LinearTarget> targets);
void linear(cpu::Stream& stream, Fine input, std::span<const LinearTarget> targets);

template <class S>
void linear(S& stream, MatrixView<const float> x, const pack::Weight& weight, MatrixView<float> out) {
  const LinearTarget target{weight, out, false};
  linear(stream, x, std::span(&target, 1));
}
template <class S>
void linear_add(S& stream, MatrixView<const float> x, const pack::Weight& weight, MatrixView<float> out) {
  const LinearTarget target{weight, out, true};
  linear(stream, x, std::span(&target, 1));
}
inline void linear_add(cpu::Stream& stream, Fine x, const pack::Weight& weight, MatrixView<float> out) {
  const LinearTarget target{weight, out, true};
  linear(stream, x, std::span(&target, 1));
}

}  // namespace splash::ops
