#pragma once

#include "backend/cuda/stream.h"
#include "ops/norm/norm.h"

namespace splash::ops {

// One block per row, also the panel of `out`. Bytes: one read and one write of the row (the second read hits the
// cache).
void rms_norm(cuda::Stream& stream, MatrixView<const float> x, std::span<const float> gain, float eps,
              MatrixView<float> out);

}  // namespace splash::ops
