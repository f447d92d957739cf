#include "backend/cpu/simd_avx512vnni.h"
#include "ops/draft/top_k_generic.h"

namespace splash::ops {
constinit const TopKKernels top_k_avx512vnni = top_k_kernels;
}  // namespace splash::ops
