#include "ops/attention/rotate_generic.h"
#include "ops/draft/draft_attention_kernels.h"

namespace splash::ops {
namespace {

using namespace simd;

// Four keys against one query: four independent chains over the head's dims.
inline void scores_of_four(const float* q, const float* const* keys, int dim, float* scores) {
  Vec sums[4] = {};
  for (int at = 0; at < dim; at += width) {
    const Vec x = load(q + at);
#pragma GCC unroll 4
    for (int key = 0; key < 4; ++key) sums[key] = fma(load(keys[key] + at), x, sums[key]);
  }
#pragma GCC unroll 4
  for (int key = 0; key < 4; ++key) scores[key] = reduce_add(sums[key]);
}

void attend_query(const DraftKeys& keys, int dim, DraftQuery& query) {
  alignas(64) float weights[draft_chunk];
  for (int key = 0; key < keys.count; key += 4) scores_of_four(query.q, keys.keys + key, dim, weights + key);
  for (int key = 0; key < draft_chunk; ++key) {
    if (key < query.first_key || key >= keys.count) weights[key] = -__builtin_inff();
  }
  Vec largest = load(weights);
  for (int at = width; at < draft_chunk; at += width) largest = max(largest, load(weights + at));
  const float chunk_largest = reduce_max(largest);
  const float top = query.largest > chunk_largest ? query.largest : chunk_largest;
  const float correction = exp(set(query.largest - top))[0];
  Vec sum = zero();
  for (int at = 0; at < draft_chunk; at += width) {
    const Vec p = exp(load(weights + at) - top);
    store(weights + at, p);
    sum = sum + p;
  }
  query.total = query.total * correction + reduce_add(sum);
  query.largest = top;
  for (int at = 0; at < dim; at += 2 * width) {
    Vec a = load(query.sums + at) * correction, b = load(query.sums + at + width) * correction;
    for (int key = query.first_key; key < keys.count; ++key) {
      const Vec p = set(weights[key]);
      a = fma(load(keys.values[key] + at), p, a);
      b = fma(load(keys.values[key] + at + width), p, b);
    }
    store(query.sums + at, a);
    store(query.sums + at + width, b);
  }
}

// keys.keys is padded to a multiple of four by the caller.
void attend_chunk(const DraftKeys& keys, int dim, DraftQuery* queries, int count) {
  for (int q = 0; q < count; ++q) {
    if (queries[q].first_key < keys.count) attend_query(keys, dim, queries[q]);
  }
}

void draft_finish(const DraftQuery& query, int dim, float* out) {
  const float inverse = 1.0f / query.total;
  for (int at = 0; at < dim; at += width) store(out + at, load(query.sums + at) * inverse);
}

constexpr DraftAttentionKernels draft_attention_kernels = {rotate_head, attend_chunk, draft_finish};

}  // namespace
}  // namespace splash::ops
