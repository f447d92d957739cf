#include "backend/cpu/simd_avx2.h"
#include "ops/draft/top_k_generic.h"

namespace splash::ops {
constinit const TopKKernels top_k_avx2 = top_k_kernels;
}  // namespace splash::ops
