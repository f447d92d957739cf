// Kernels of paged int8 attention on the CPU.
//
// One layer of a page, per kv head: K codes, V codes, 32 K scales, 32 V scales.
//   K  [head_dim / 2][32 tokens][2 dims]: a vector of tokens meets one broadcast pair of query dims
//   V  [16 token pairs][head_dim][2 tokens]: a vector of dims meets one broadcast pair of weights
// Both products run on int8 values widened to 16 bits against 16-bit codes of the query (scale max|q| / 32767) and of the
// softmax weights of a page (likewise): an exact integer sum per page, at twice the rate of float32, with an error of
// 2^-16 of the largest operand, far below that of the int8 keys.
#pragma once

#include <cstddef>
#include <cstdint>

namespace splash::ops {

inline constexpr int attention_max_head = 256;
inline constexpr int attention_page = 32;

struct AttentionHeadPage {
  std::int8_t* k = nullptr;
  std::int8_t* v = nullptr;
  float* k_scales = nullptr;
  float* v_scales = nullptr;
};
inline AttentionHeadPage head_page(std::byte* layer, int head_dim, int kv_head) {
  const std::ptrdiff_t codes = std::ptrdiff_t{attention_page} * head_dim;
  AttentionHeadPage page;
  auto* base = reinterpret_cast<std::int8_t*>(layer) + kv_head * (2 * codes + 2 * attention_page * 4);
  page.k = base;
  page.v = base + codes;
  page.k_scales = reinterpret_cast<float*>(base + 2 * codes);
  page.v_scales = page.k_scales + attention_page;
  return page;
}

// RMSNorm of one head, then rotation of the pairs (i, i + rotary_dim / 2).
struct RotateHead {
  const float* gain = nullptr;
  int dim = 0;
  int rotary_dim = 0;
  float eps = 0;
  const float *cosines = nullptr, *sines = nullptr;  // [rotary_dim / 2]
};

// One query head of one row, and its running softmax.
struct AttentionQuery {
  const std::int16_t* codes = nullptr;  // [head_dim]
  float scale = 0;                      // of the codes, 1 / sqrt(head_dim) included
  int position = 0;                     // sees keys at positions <= it
  float* sums = nullptr;                // [head_dim] weighted values so far
  float largest = 0;                    // score so far
  float total = 0;                      // of the weights
};

struct AttentionKernels {
  void (*rotate_head)(const RotateHead& head, const float* x, float* out);
  // codes = round(x / scale), scale = max|x| / 32767; returns the scale.
  float (*quantise_query)(const float* x, int dim, std::int16_t* codes);
  // Stores one token's key and value into its slot of a page.
  void (*store_token)(const AttentionHeadPage& page, int slot, int dim, const float* k, const float* v);
  // One page against queries whose positions ascend and are >= first_position.
  void (*attend_page)(const AttentionHeadPage& page, int first_position, int dim, AttentionQuery* queries, int count);
  // out = sums / total * sigmoid(gate)
  void (*finish)(const AttentionQuery& query, const float* gate, int dim, float* out);
};
extern const AttentionKernels attention_scalar, attention_avx2, attention_avx512vnni;

}  // namespace splash::ops
