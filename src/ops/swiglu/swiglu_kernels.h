#pragma once

namespace splash::ops {

struct SwigluKernels {
  void (*swiglu)(const float* gate, const float* up, int count, float* out);
};
extern const SwigluKernels swiglu_scalar, swiglu_avx2, swiglu_avx512vnni;

}  // namespace splash::ops
