// Gated full attention with its input projections: attention(q, k, v) * sigmoid(gate), before o_proj.
#pragma once

#include "ops/attention/attention.h"
#include "ops/linear/linear.h"
#include "pack/weight.h"

namespace splash::models {

struct Attention {
  pack::Weight q_gate, k, v, out;  // q_gate: per head query, then gate
  ops::AttentionWeights norms;
};

struct AttentionScratch {
  MatrixView<float> q_gate, k, v, mixed;
};
template <class Stream>
AttentionScratch attention_scratch(Stream& stream, int rows, const ops::AttentionGeometry& geometry) {
  const int query_width = geometry.query_heads * geometry.head_dim, kv_width = geometry.kv_heads * geometry.head_dim;
  return {stream.matrix(rows, 2 * query_width), stream.matrix(rows, kv_width), stream.matrix(rows, kv_width),
          stream.matrix(rows, query_width)};
}

// Leaves its result in scratch.mixed, the input of weights.out. `layer`: index among the attention layers, its part of
// each page.
template <class Stream>
void attention(Stream& stream, const ops::AttentionGeometry& geometry, const Attention& weights,
               MatrixView<const float> x, std::span<const ops::Segment> segments, const ops::KvPool& pool, int layer,
               const AttentionScratch& scratch) {
  const ops::LinearTarget projections[] = {
      {weights.q_gate, scratch.q_gate}, {weights.k, scratch.k}, {weights.v, scratch.v}};
  ops::linear(stream, x, projections);
  ops::attention(stream, geometry, weights.norms, {scratch.q_gate, scratch.k, scratch.v}, segments, pool, layer,
                 scratch.mixed);
}

}  // namespace splash::models
