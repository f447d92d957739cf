// The fused pairs of fused.h on the GPU (linear_cuda.h says when they are one launch).
#pragma once

// clang-format off
#include "ops/draft/draft_cuda.h"  // before fused.h, whose sequences find only what is declared by then
#include "ops/linear/linear_cuda.h"
#include "ops/norm/norm_cuda.h"
#include "ops/swiglu/swiglu_cuda.h"
#include "ops/fused.h"
// clang-format on

namespace splash::ops {

inline void linear_swiglu(cuda::Stream& stream, MatrixView<const float> x, const pack::Weight& gate,
                          const pack::Weight& up, MatrixView<float> upped, MatrixView<float> out) {
  if (gate.format == pack::Format::q4) return linear_swiglu(stream, x, gate, up, out);
  const LinearTarget targets[] = {{gate, out}, {up, upped}};
  linear(stream, x, targets);
  swiglu(stream, out, upped, out);
}

}  // namespace splash::ops
