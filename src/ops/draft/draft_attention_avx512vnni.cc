#include "backend/cpu/simd_avx512vnni.h"
#include "ops/draft/draft_attention_generic.h"

namespace splash::ops {
constinit const DraftAttentionKernels draft_attention_avx512vnni = draft_attention_kernels;
}  // namespace splash::ops
