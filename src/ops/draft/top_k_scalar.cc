#include "backend/cpu/simd_scalar.h"
#include "ops/draft/top_k_generic.h"

namespace splash::ops {
constinit const TopKKernels top_k_scalar = top_k_kernels;
}  // namespace splash::ops
