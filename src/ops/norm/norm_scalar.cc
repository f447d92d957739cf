#include "backend/cpu/simd_scalar.h"
#include "ops/norm/norm_generic.h"

namespace splash::ops {
constinit const NormKernels norm_scalar = norm_kernels;
}  // namespace splash::ops
