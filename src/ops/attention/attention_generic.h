#include "ops/attention/attention_kernels.h"
#include "ops/attention/rotate_generic.h"

namespace splash::ops {
namespace {

using namespace simd;

inline constexpr int token_parts = attention_page / width;  // vectors that hold one page's tokens, or 32 dims

inline float largest_magnitude(const float* x, int count) {
  Vec largest = zero();
  for (int at = 0; at < count; at += width) largest = max(largest, abs(load(x + at)));
  return reduce_max(largest);
}

float quantise_query(const float* x, int dim, std::int16_t* codes) {
  const float scale = largest_magnitude(x, dim) / 32767.0f;
  const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  Vec check = zero();
  for (int at = 0; at < dim; at += width) {
    const Vec v = load(x + at);
    check = fma(v, zero(), check);  // NaN if any input is NaN or infinite, which codes cannot carry
    store_int16(codes + at, round_to_int(v * inverse, 32767));
  }
  return scale + reduce_add(check);
}

// Codes of one head of one token; the scale carries a NaN.
inline float quantise_int8(const float* x, int dim, std::int8_t* codes) {
  const float scale = largest_magnitude(x, dim) / 127.0f;
  Vec check = zero();
  for (int at = 0; at < dim; at += width) {
    const Vec v = load(x + at);
    check = fma(v, zero(), check);
    store_int8(codes + at, round_to_int(scale > 0 ? v / set(scale) : zero(), 127));
  }
  return scale + reduce_add(check);
}

void store_token(const AttentionHeadPage& page, int slot, int dim, const float* k, const float* v) {
  std::int8_t codes[attention_max_head];
  page.k_scales[slot] = quantise_int8(k, dim, codes);
  for (int pair = 0; pair < dim / 2; ++pair) {
    __builtin_memcpy(page.k + pair * (2 * attention_page) + 2 * slot, codes + 2 * pair, 2);
  }
  page.v_scales[slot] = quantise_int8(v, dim, codes);
  std::int8_t* to = page.v + slot / 2 * (2 * dim) + slot % 2;
  for (int at = 0; at < dim; ++at) to[2 * at] = codes[at];
}

struct PageSums {
  VecInt part[token_parts];
};

inline std::int32_t pair_at(const std::int16_t* codes, int pair) {
  std::int32_t both;
  __builtin_memcpy(&both, codes + 2 * pair, sizeof both);
  return both;
}

// sums[q][lane] += over `pairs`: codes_q[2p] * bytes[p][lane][0] + codes_q[2p + 1] * bytes[p][lane][1], for 32 lanes.
template <int Q>
inline void pair_products(const std::int8_t* bytes, std::ptrdiff_t pair_stride, int pairs, const std::int16_t* const* codes,
                          PageSums (&sums)[Q]) {
  PageSums local[Q] = {};
  for (int pair = 0; pair < pairs; ++pair) {
    Pairs values[token_parts];
#pragma GCC unroll 8
    for (int part = 0; part < token_parts; ++part) values[part] = load_pairs(bytes + pair * pair_stride + part * (2 * width));
#pragma GCC unroll 8
    for (int q = 0; q < Q; ++q) {
      const Pairs factor = set_pairs(pair_at(codes[q], pair));
#pragma GCC unroll 8
      for (int part = 0; part < token_parts; ++part) {
        local[q].part[part] = dot_pairs(local[q].part[part], values[part], factor);
      }
    }
  }
  for (int q = 0; q < Q; ++q) sums[q] = local[q];
}

// Scores of one query and page to 16-bit weights; rescales what came before. Returns the weights' scale.
struct PageWeights {
  std::int16_t codes[attention_page];
  float scale = 0;       // of the codes
  float correction = 0;  // factor for the sums so far
};
inline void soften(const AttentionHeadPage& page, int visible, const PageSums& dots, AttentionQuery& query,
                   PageWeights& weights) {
  const Vec hidden = set(-__builtin_inff());
  Vec scores[token_parts], largest = hidden;
#pragma GCC unroll 8
  for (int part = 0; part < token_parts; ++part) {
    const Vec score = to_float(dots.part[part]) * (load(page.k_scales + part * width) * query.scale);
    scores[part] = select(lane_ids() + part * width < visible, score, hidden);
    largest = max(largest, scores[part]);
  }
  const float page_largest = reduce_max(largest);
  const float top = query.largest > page_largest ? query.largest : page_largest;
  weights.correction = exp(set(query.largest - top))[0];
  Vec sum = zero(), weighted[token_parts], heaviest = zero();
#pragma GCC unroll 8
  for (int part = 0; part < token_parts; ++part) {
    const Vec p = exp(scores[part] - top);
    sum = sum + p;
    // Slots beyond the row hold whatever the page held before; their scale must not even be multiplied by zero.
    weighted[part] = select(lane_ids() + part * width < visible, p * load(page.v_scales + part * width), zero());
    heaviest = max(heaviest, weighted[part]);
  }
  query.total = query.total * weights.correction + reduce_add(sum);
  query.largest = top;
  const float heavy = reduce_max(heaviest);
  weights.scale = heavy / 32767.0f;
  const float inverse = weights.scale > 0 ? 1.0f / weights.scale : 0.0f;
#pragma GCC unroll 8
  for (int part = 0; part < token_parts; ++part) {
    store_int16(weights.codes + part * width, round_to_int(weighted[part] * inverse, 32767));
  }
}

template <int Q>
void attend_tile(const AttentionHeadPage& page, int first_position, int dim, AttentionQuery* queries) {
  const std::int16_t* codes[Q];
  for (int q = 0; q < Q; ++q) codes[q] = queries[q].codes;
  PageSums sums[Q];
  pair_products<Q>(page.k, 2 * attention_page, dim / 2, codes, sums);
  PageWeights weights[Q];
  for (int q = 0; q < Q; ++q) {
    const int visible = queries[q].position - first_position + 1;
    soften(page, visible, sums[q], queries[q], weights[q]);
    codes[q] = weights[q].codes;
  }
  for (int at = 0; at < dim; at += attention_page) {
    pair_products<Q>(page.v + 2 * at, 2 * dim, attention_page / 2, codes, sums);
    for (int q = 0; q < Q; ++q) {
      const Vec scale = set(weights[q].scale), correction = set(weights[q].correction);
#pragma GCC unroll 8
      for (int part = 0; part < token_parts; ++part) {
        float* sum = queries[q].sums + at + part * width;
        store(sum, fma(to_float(sums[q].part[part]), scale, load(sum) * correction));
      }
    }
  }
}

void attend_page(const AttentionHeadPage& page, int first_position, int dim, AttentionQuery* queries, int count) {
  int at = 0;
  for (; at + query_tile <= count; at += query_tile) attend_tile<query_tile>(page, first_position, dim, queries + at);
  for (; at < count; ++at) attend_tile<1>(page, first_position, dim, queries + at);
}

void finish(const AttentionQuery& query, const float* gate, int dim, float* out) {
  const float inverse = 1.0f / query.total;
  for (int at = 0; at < dim; at += width) {
    store(out + at, load(query.sums + at) * inverse * sigmoid(load(gate + at)));
  }
}

constexpr AttentionKernels attention_kernels = {rotate_head, quantise_query, store_token, attend_page, finish};

}  // namespace
}  // namespace splash::ops
