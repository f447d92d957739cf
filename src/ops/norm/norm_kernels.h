#pragma once

namespace splash::ops {

struct NormKernels {
  void (*rms_norm)(const float* x, const float* gain, int cols, float eps, float* out);  // one row
};
extern const NormKernels norm_scalar, norm_avx2, norm_avx512vnni;

}  // namespace splash::ops
