#include "backend/cpu/simd_avx2.h"
#include "ops/norm/norm_generic.h"

namespace splash::ops {
constinit const NormKernels norm_avx2 = norm_kernels;
}  // namespace splash::ops
