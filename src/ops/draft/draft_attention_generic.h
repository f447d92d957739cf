#include "ops/attention/rotate_generic.h"
#include "ops/draft/draft_attention_kernels.h"

namespace splash::ops {
namespace {

using namespace simd;

inline constexpr int chunk_parts = draft_chunk / width;  // vectors that hold one score per key, or 32 dims

// Scores of one query to weights; rescales what came before and returns the factor for its sums.
float soften(const Vec (&dots)[chunk_parts], int count, DraftQuery& query, float* weights) {
  const Vec hidden = set(-__builtin_inff());
  Vec scores[chunk_parts], largest = hidden;
#pragma GCC unroll 8
  for (int part = 0; part < chunk_parts; ++part) {
    const VecInt key = lane_ids() + part * width;
    scores[part] = select(key < count, select(key < query.first_key, hidden, dots[part]), hidden);
    largest = max(largest, scores[part]);
  }
  const float chunk_largest = reduce_max(largest);
  const float top = query.largest > chunk_largest ? query.largest : chunk_largest;
  const float correction = exp(set(query.largest - top))[0];
  Vec sum = zero();
#pragma GCC unroll 8
  for (int part = 0; part < chunk_parts; ++part) {
    const Vec p = exp(scores[part] - top);
    store(weights + part * width, p);
    sum = sum + p;
  }
  query.total = query.total * correction + reduce_add(sum);
  query.largest = top;
  return correction;
}

// by_dim: the chunk's keys as [dim][32]. A query's sums take the keys in ascending order, whatever tile it is in.
template <int Q>
void attend_tile(const float* by_dim, const DraftKeys& keys, int dim, DraftQuery* queries) {
  Vec dots[Q][chunk_parts] = {};
  for (int at = 0; at < dim; ++at) {
    Vec key[chunk_parts];
#pragma GCC unroll 8
    for (int part = 0; part < chunk_parts; ++part) key[part] = load(by_dim + at * draft_chunk + part * width);
#pragma GCC unroll 8
    for (int q = 0; q < Q; ++q) {
      const Vec x = set(queries[q].q[at]);
#pragma GCC unroll 8
      for (int part = 0; part < chunk_parts; ++part) dots[q][part] = fma(key[part], x, dots[q][part]);
    }
  }
  alignas(64) float weights[Q][draft_chunk];
  float corrections[Q];
  int all_see = 0;  // keys from here on are seen by every query; those before it may lie outside a query's window
  for (int q = 0; q < Q; ++q) {
    corrections[q] = soften(dots[q], keys.count, queries[q], weights[q]);
    all_see = all_see > queries[q].first_key ? all_see : queries[q].first_key;
  }
  all_see = all_see < keys.count ? all_see : keys.count;
  for (int at = 0; at < dim; at += draft_chunk) {
    Vec sums[Q][chunk_parts];
#pragma GCC unroll 8
    for (int q = 0; q < Q; ++q) {
#pragma GCC unroll 8
      for (int part = 0; part < chunk_parts; ++part) {
        sums[q][part] = load(queries[q].sums + at + part * width) * corrections[q];
        for (int key = queries[q].first_key; key < all_see; ++key) {
          sums[q][part] = fma(load(keys.values[key] + at + part * width), set(weights[q][key]), sums[q][part]);
        }
      }
    }
    for (int key = all_see; key < keys.count; ++key) {
      Vec value[chunk_parts];
#pragma GCC unroll 8
      for (int part = 0; part < chunk_parts; ++part) value[part] = load(keys.values[key] + at + part * width);
#pragma GCC unroll 8
      for (int q = 0; q < Q; ++q) {
        const Vec p = set(weights[q][key]);
#pragma GCC unroll 8
        for (int part = 0; part < chunk_parts; ++part) sums[q][part] = fma(value[part], p, sums[q][part]);
      }
    }
#pragma GCC unroll 8
    for (int q = 0; q < Q; ++q) {
#pragma GCC unroll 8
      for (int part = 0; part < chunk_parts; ++part) store(queries[q].sums + at + part * width, sums[q][part]);
    }
  }
}

void attend_chunk(const DraftKeys& keys, int dim, DraftQuery* queries, int count) {
  alignas(64) float by_dim[attention_max_head * draft_chunk];
  for (int at = 0; at < dim; ++at) {
    for (int key = 0; key < draft_chunk; ++key) by_dim[at * draft_chunk + key] = key < keys.count ? keys.keys[key][at] : 0.0f;
  }
  int q = 0;  // first keys ascend: those that see nothing of the chunk are the last
  while (count > 0 && queries[count - 1].first_key >= keys.count) --count;
  for (; q + query_tile <= count; q += query_tile) attend_tile<query_tile>(by_dim, keys, dim, queries + q);
  for (; q < count; ++q) attend_tile<1>(by_dim, keys, dim, queries + q);
}

void draft_finish(const DraftQuery& query, int dim, float* out) {
  const float inverse = 1.0f / query.total;
  for (int at = 0; at < dim; at += width) store(out + at, load(query.sums + at) * inverse);
}

constexpr DraftAttentionKernels draft_attention_kernels = {rotate_head, attend_chunk, draft_finish};

}  // namespace
}  // namespace splash::ops
