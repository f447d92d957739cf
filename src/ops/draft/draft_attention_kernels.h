// Kernels of the draft's attention on the CPU: float32 keys and values, 32 at a time with an online softmax.
#pragma once

#include "ops/attention/attention_kernels.h"

namespace splash::ops {

inline constexpr int draft_chunk = 32;  // keys that are softened together

// Up to 32 keys of one kv head; keys and values may lie anywhere (a ring that wraps).
struct DraftKeys {
  const float* keys[draft_chunk];
  const float* values[draft_chunk];
  int count = 0;
};
struct DraftQuery {
  const float* q = nullptr;  // [head_dim], 1 / sqrt(head_dim) included
  int first_key = 0;         // of the present chunk that it sees; all later ones too
  float* sums = nullptr;     // [head_dim]
  float largest = 0;
  float total = 0;
};

struct DraftAttentionKernels {
  void (*rotate_head)(const RotateHead& head, const float* x, float* out);
  // The queries' first keys ascend.
  void (*attend_chunk)(const DraftKeys& keys, int dim, DraftQuery* queries, int count);
  void (*finish)(const DraftQuery& query, int dim, float* out);
};
extern const DraftAttentionKernels draft_attention_scalar, draft_attention_avx2, draft_attention_avx512vnni;

}  // namespace splash::ops
