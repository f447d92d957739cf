#include "backend/cpu/simd_avx2.h"
#include "ops/attention/attention_generic.h"

namespace splash::ops {
constinit const AttentionKernels attention_avx2 = attention_kernels;
}  // namespace splash::ops
