#pragma once

#include "backend/cuda/stream.h"
#include "ops/norm/norm.h"

namespace splash::ops {

// One block per row, also the panel of `out`. Bytes: one read and one write of the row (the second read hits the
// cache).
void rms_norm(cuda::Stream& stream, MatrixView<const float> x, std::span<const float> gain, float eps,
              MatrixView<float> out);

// Sums that a linear left in parts: [part][row][column].
struct PartialSums {
  const float* data = nullptr;
  int count = 0;
};

// out = (accumulate ? out : 0) + the parts, in order.
void add_parts(cuda::Stream& stream, PartialSums parts, MatrixView<float> out, bool accumulate);

// residual += the parts, then normed = rms_norm(residual) * gain: for linears only, if the stream folds norms its
// floats are not written.
void add_parts_norm(cuda::Stream& stream, PartialSums parts, MatrixView<float> residual, std::span<const float> gain,
                    float eps, MatrixView<float> normed);

}  // namespace splash::ops
