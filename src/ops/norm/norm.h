// RMSNorm: out = x / sqrt(mean(x^2) + eps) * gain, per row. The gain is the effective one (1 + w already applied).
#pragma once

#include <span>

#include "base/matrix.h"
#include "ops/streams.h"

namespace splash::ops {

void rms_norm(ref::Stream& stream, MatrixView<const float> x, std::span<const float> gain, float eps,
              MatrixView<float> out);
void rms_norm(cpu::Stream& stream, MatrixView<const float> x, std::span<const float> gain, float eps,
              MatrixView<float> out);

}  // namespace splash::ops
