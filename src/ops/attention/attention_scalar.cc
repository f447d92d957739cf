#include "backend/cpu/simd_scalar.h"
#include "ops/attention/attention_generic.h"

namespace splash::ops {
constinit const AttentionKernels attention_scalar = attention_kernels;
}  // namespace splash::ops
