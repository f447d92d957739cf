// Pairs of operations that a device may run in one launch. These are the plain sequences, for every stream that has
// nothing better; fused_cuda.h overloads them.
#pragma once

#include "ops/linear/linear.h"
#include "ops/norm/norm.h"
#include "ops/swiglu/swiglu.h"

namespace splash::ops {

// The boundary between two sublayers: residual += W x, then normed = rms_norm(residual) * gain. What reads `normed`
// next must be a linear: a device may keep only its own form of it and leave the floats unwritten.
template <class S>
void linear_add_norm(S& stream, MatrixView<const float> x, const pack::Weight& weight, MatrixView<float> residual,
                     std::span<const float> gain, float eps, MatrixView<float> normed) {
  linear_add(stream, x, weight, residual);
  rms_norm(stream, residual, gain, eps, normed);
}

inline void linear_add_norm(cpu::Stream& stream, Fine x, const pack::Weight& weight, MatrixView<float> residual,
                            std::span<const float> gain, float eps, MatrixView<float> normed) {
  linear_add(stream, x, weight, residual);
  rms_norm(stream, residual, gain, eps, normed);
}

// out = silu(gate x) * (up x); `upped` [rows, I] is scratch. What reads `out` next must be a linear, as above.
template <class S>
void linear_swiglu(S& stream, MatrixView<const float> x, const pack::Weight& gate, const pack::Weight& up,
                   MatrixView<float> upped, MatrixView<float> out) {
  const LinearTarget targets[] = {{gate, out}, {up, upped}};
  linear(stream, x, targets);
  swiglu(stream, out, upped, out);
}

}  // namespace splash::ops
