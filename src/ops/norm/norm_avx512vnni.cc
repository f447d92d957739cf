#include "backend/cpu/simd_avx512vnni.h"
#include "ops/norm/norm_generic.h"

namespace splash::ops {
constinit const NormKernels norm_avx512vnni = norm_kernels;
}  // namespace splash::ops
