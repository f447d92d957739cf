#include "backend/cpu/simd_avx2.h"
#include "ops/draft/draft_attention_generic.h"

namespace splash::ops {
constinit const DraftAttentionKernels draft_attention_avx2 = draft_attention_kernels;
}  // namespace splash::ops
