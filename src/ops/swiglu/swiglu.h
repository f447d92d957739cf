// out = silu(gate) * up, elementwise; silu(x) = x / (1 + e^-x). `out` may be `gate`.
#pragma once

#include "base/matrix.h"
#include "ops/streams.h"

namespace splash::ops {

void swiglu(ref::Stream& stream, MatrixView<const float> gate, MatrixView<const float> up, MatrixView<float> out);
void swiglu(cpu::Stream& stream, MatrixView<const float> gate, MatrixView<const float> up, MatrixView<float> out);

}  // namespace splash::ops
