#include "backend/cpu/simd_scalar.h"
#include "ops/draft/draft_attention_generic.h"

namespace splash::ops {
constinit const DraftAttentionKernels draft_attention_scalar = draft_attention_kernels;
}  // namespace splash::ops
