#include "backend/cpu/simd_avx512vnni.h"
#include "ops/attention/attention_generic.h"

namespace splash::ops {
constinit const AttentionKernels attention_avx512vnni = attention_kernels;
}  // namespace splash::ops
