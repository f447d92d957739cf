// Gated full attention between its projections and o_proj (qwen-models.md 2.3): per-head RMSNorm of q and k, partial
// rotary, keys and values stored into the lane's pages, causal attention over the pages (the step's own rows included,
// read back as stored), sigmoid gate. Pages are visited in order with an online softmax, so that a row's bits do not
// depend on how its prefix was cut into chunks.
#pragma once

#include <span>

#include "base/matrix.h"
#include "ops/attention/kv.h"
#include "ops/segment.h"
#include "ops/streams.h"

namespace splash::ops {

struct AttentionGeometry {
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 256;
  int rotary_dim = 64;  // dims 0..rotary_dim-1 rotate, half-split pairing (i, i + rotary_dim / 2)
  double rope_theta = 1e7;
  float rms_eps = 1e-6f;
};

struct AttentionWeights {
  std::span<const float> q_norm;  // [head_dim], effective gain
  std::span<const float> k_norm;  // [head_dim]
};

struct AttentionRows {
  MatrixView<const float> q_gate;  // [rows, query_heads * 2 * head_dim]: per head query, then gate
  MatrixView<const float> k;       // [rows, kv_heads * head_dim]
  MatrixView<const float> v;       // [rows, kv_heads * head_dim]
};

// `layer`: index among the attention layers. out [rows, query_heads * head_dim].
void attention(ref::Stream& stream, const AttentionGeometry& geometry, const AttentionWeights& weights,
               const AttentionRows& rows, std::span<const Segment> segments, const KvPool& pool, int layer,
               MatrixView<float> out);
void attention(cpu::Stream& stream, const AttentionGeometry& geometry, const AttentionWeights& weights,
               const AttentionRows& rows, std::span<const Segment> segments, const KvPool& pool, int layer,
               MatrixView<float> out);

}  // namespace splash::ops
