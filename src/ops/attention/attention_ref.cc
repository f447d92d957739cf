#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/rotary_ref.h"

namespace splash::ops {

namespace {

// A layer's part of a page: keys [32][kv_heads][head_dim], then values likewise, float32.
struct PageRows {
  float* keys;
  float* values;
};
PageRows rows_of(const Segment& segment, const KvPool& pool, int layer, int position, int head) {
  const KvGeometry& kv = pool.geometry;
  const int page = position / link::page_tokens, row = position % link::page_tokens;
  SPLASH_CHECK(page < static_cast<int>(segment.pages.size()), "position {} needs page {} of {}", position, page,
               segment.pages.size());
  auto* base = reinterpret_cast<float*>(pool.at(segment.pages[page], layer));
  const std::int64_t offset = (std::int64_t{row} * kv.kv_heads + head) * kv.head_dim;
  return {base + offset, base + std::int64_t{link::page_tokens} * kv.kv_heads * kv.head_dim + offset};
}

void store_row(const AttentionGeometry& geometry, const AttentionWeights& weights, const AttentionRows& rows, int r,
               const Segment& segment, int position, const KvPool& pool, int layer) {
  const int d = geometry.head_dim;
  for (int head = 0; head < geometry.kv_heads; ++head) {
    const PageRows to = rows_of(segment, pool, layer, position, head);
    const std::span<float> key(to.keys, d);
    reference::norm_head(rows.k.row_span(r).subspan(std::size_t(head) * d, d), weights.k_norm, geometry.rms_eps, key);
    reference::rotate_head(key, geometry.rotary_dim, geometry.rope_theta, position);
    std::copy_n(rows.v.row(r) + std::int64_t{head} * d, d, to.values);
  }
}

// softmax(q K^T / sqrt(d)) V over positions 0..position, times sigmoid(gate).
void attend_row(const AttentionGeometry& geometry, const AttentionWeights& weights, const AttentionRows& rows, int r,
                const Segment& segment, int position, const KvPool& pool, int layer, MatrixView<float> out) {
  const int d = geometry.head_dim;
  const int group = geometry.query_heads / geometry.kv_heads;
  std::vector<float> q(d);
  std::vector<double> p(position + 1), sum(d);
  for (int head = 0; head < geometry.query_heads; ++head) {
    const auto q_gate = rows.q_gate.row_span(r).subspan(std::size_t(head) * 2 * d, std::size_t(2) * d);
    reference::norm_head(q_gate.first(d), weights.q_norm, geometry.rms_eps, q);
    reference::rotate_head(q, geometry.rotary_dim, geometry.rope_theta, position);
    for (int j = 0; j <= position; ++j) {
      const float* key = rows_of(segment, pool, layer, j, head / group).keys;
      p[j] = 0;
      for (int i = 0; i < d; ++i) p[j] += double{q[i]} * key[i];
      p[j] /= std::sqrt(static_cast<double>(d));
    }
    const double top = *std::max_element(p.begin(), p.end());
    double total = 0;
    std::fill(sum.begin(), sum.end(), 0.0);
    for (int j = 0; j <= position; ++j) {
      const double weight = std::exp(p[j] - top);
      total += weight;
      const float* value = rows_of(segment, pool, layer, j, head / group).values;
      for (int i = 0; i < d; ++i) sum[i] += weight * value[i];
    }
    for (int i = 0; i < d; ++i) {
      const double gate = 1.0 / (1.0 + std::exp(-double{q_gate[std::size_t(d) + i]}));
      out.row(r)[head * d + i] = static_cast<float>(sum[i] / total * gate);
    }
  }
}

}  // namespace

void attention(ref::Stream&, const AttentionGeometry& geometry, const AttentionWeights& weights,
               const AttentionRows& rows, std::span<const Segment> segments, const KvPool& pool, int layer,
               MatrixView<float> out) {
  SPLASH_CHECK(pool.geometry.format == KvFormat::f32 && pool.geometry.kv_heads == geometry.kv_heads &&
               pool.geometry.head_dim == geometry.head_dim && layer < pool.geometry.layers);
  for (const Segment& segment : segments) {
    for (int i = 0; i < segment.rows; ++i) {
      const int r = segment.first_row + i, position = segment.position + i;
      store_row(geometry, weights, rows, r, segment, position, pool, layer);
      attend_row(geometry, weights, rows, r, segment, position, pool, layer, out);
    }
  }
}

}  // namespace splash::ops
