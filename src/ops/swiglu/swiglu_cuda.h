#pragma once

#include "backend/cuda/stream.h"
#include "ops/swiglu/swiglu.h"

namespace splash::ops {

// Bytes: two reads, one write and the panel of `out`.
void swiglu(cuda::Stream& stream, MatrixView<const float> gate, MatrixView<const float> up, MatrixView<float> out);

}  // namespace splash::ops
