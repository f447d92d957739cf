#include "ops/norm/norm_kernels.h"
#include "ops/norm/row_generic.h"

namespace splash::ops {
namespace {

void rms_norm(const float* x, const float* gain, int cols, float eps, float* out) {
  using namespace simd;
  const float scale = 1.0f / __builtin_sqrtf(sum_of_squares(x, cols) / static_cast<float>(cols) + eps);
  int at = 0;
  for (; at + width <= cols; at += width) store(out + at, load(x + at) * scale * load(gain + at));
  for (; at < cols; ++at) out[at] = x[at] * scale * gain[at];
}

constexpr NormKernels norm_kernels = {rms_norm};

}  // namespace
}  // namespace splash::ops
