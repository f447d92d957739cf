// What the kernels of attention on the GPU share: page layout, norms and rotations, storing keys and values, and one
// step of merging chunks.
#pragma once

#include "backend/cuda/lines.cuh"
#include "ops/attention/attention_cuda.h"

namespace splash::ops::paged {

constexpr int dim = 256;
constexpr int page = link::page_tokens;                    // 32 positions
constexpr int page_bytes = 2 * page * dim + 2 * page * 4;  // of one key-value head in one layer
constexpr int values_offset = page * dim;
constexpr int key_scales_offset = 2 * page * dim;
constexpr int value_scales_offset = key_scales_offset + page * 4;
constexpr int block = 2 * page;  // positions per pass of the inner loop
constexpr int warps = 4;
constexpr int threads = warps * 32;

struct Arguments {
  int query_heads, kv_heads;
  float rms_eps;
  const float* q_norm;
  const float* k_norm;
  AttentionRows rows;
  MatrixView<float> out;
  cuda::Panel panel;
  const SegmentEntry* segments;
  std::byte* pool;           // this layer's part of page 0
  std::int64_t page_stride;  // bytes between pages
  __half* queries;           // [rows][query_heads][256], normed, rotated, times log2(e) / 16; null: tiles make their own
  float* partials;           // [segment][tile, kv head][slot][query row of the tile][256]; narrow, many slots: fp16
  float* stats;              // [segment][tile, kv head][slot][query row of the tile][2]: maximum, sum
  int tiles;                 // per segment
  int tile_rows;             // of the segment, that share a block's keys
  int part_rows;             // query rows of a tile that have partial sums
  int slots;                 // chunks of a tile that have partial sums
  int group, group_inverse;  // query heads per key-value head; m / group is m * group_inverse >> 16, m < 8192
  double inverse_turns[32];  // frequency / (2 pi)
};

__device__ __forceinline__ std::uint8_t* page_at(const Arguments& args, const SegmentEntry& segment, int page_index,
                                                 int head) {
  return reinterpret_cast<std::uint8_t*>(args.pool) + segment.pages[page_index] * args.page_stride + head * page_bytes;
}

// A head of a row by half a warp: lane j of sixteen has two lines of eight dims, those from dims_of(j, 0) and from
// dims_of(j, 1) on, so that dims that turn into each other are one lane's, and a warp makes two heads at a time.
constexpr int head_lanes = 16, lane_dims = dim / head_lanes;
__device__ __forceinline__ int dims_of(int j, int line) { return j < 4 ? j * 8 + line * 32 : j * 16 + line * 8; }

// Sines and cosines of a position for the pairs of dims of a lane; only lanes 0..3 rotate.
struct Rotation {
  float sine[8], cosine[8];
};
__device__ __forceinline__ float2 sine_and_cosine(const Arguments& args, int position, int pair) {
  // Turns in double: a float32 angle would be off by 0.02 rad at position 262,144.
  const double turns = position * args.inverse_turns[pair];
  float2 both;
  sincospif(2.0f * static_cast<float>(turns - rint(turns)), &both.x, &both.y);
  return both;
}
__device__ __forceinline__ void find_rotation(const Arguments& args, int position, int j, Rotation& rotation) {
  if (j >= 4) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 both = sine_and_cosine(args, position, j * 8 + i);
    rotation.sine[i] = both.x, rotation.cosine[i] = both.y;
  }
}

__device__ __forceinline__ void read_line(const float* from, float (&line)[8]) {  // aligned: heads are whole
  cuda::take_eight(reinterpret_cast<const float4*>(from)[0], reinterpret_cast<const float4*>(from)[1], line);
}
// A lane's dims of a head.
__device__ __forceinline__ void read_dims(const float* head, int j, float (&x)[lane_dims]) {
#pragma unroll
  for (int line = 0; line < 2; ++line) {
    float eight[8];
    read_line(head + dims_of(j, line), eight);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[line * 8 + i] = eight[i];
  }
}

template <class Join>
__device__ __forceinline__ float over_head(float x, Join&& join) {
#pragma unroll
  for (int distance = head_lanes / 2; distance > 0; distance >>= 1)
    x = join(x, __shfl_xor_sync(0xffffffffu, x, distance));
  return x;
}

// RMSNorm of a head, then rotation of its first 64 dims; by a whole warp, for two heads, of which a value stays as it is.
__device__ __forceinline__ void norm_and_rotate(const Arguments& args, const float (&gain)[lane_dims],
                                                const Rotation& rotation, int j, float (&x)[lane_dims],
                                                bool is_value = false) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < lane_dims; ++i) squares = fmaf(x[i], x[i], squares);
  squares = over_head(squares, [](float a, float b) { return a + b; });
  float scale;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(scale) : "f"(fmaf(squares, 1.0f / dim, args.rms_eps)));
  if (is_value) return;
#pragma unroll
  for (int i = 0; i < lane_dims; ++i) x[i] = x[i] * scale * gain[i];
  if (j >= 4) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float low = x[i], high = x[8 + i], s = rotation.sine[i], c = rotation.cosine[i];
    // Products spelled out: the same bits in every kernel.
    x[i] = fmaf(low, c, -__fmul_rn(high, s)), x[8 + i] = fmaf(high, c, __fmul_rn(low, s));
  }
}

// Codes + 128 of a lane's dims and their scale max|x| / 127 over the head; by a whole warp, for two heads.
__device__ __forceinline__ float quantise(const float (&x)[lane_dims], std::uint8_t (&codes)[lane_dims]) {
  float top = 0;
#pragma unroll
  for (int i = 0; i < lane_dims; ++i) top = fmaxf(top, fabsf(x[i]));
  top = over_head(top, [](float a, float b) { return fmaxf(a, b); });
  const float scale = fmaxf(top / 127.0f, 1e-20f);  // never zero: its logarithm is taken
  const float inverse = 1.0f / scale;
#pragma unroll
  for (int i = 0; i < lane_dims; ++i) {
    // x / scale as IEEE rounds it: a quotient from a rounded reciprocal, corrected once by its exact remainder.
    const float quotient = __fmul_rn(x[i], inverse);
    const float ratio = fmaf(fmaf(-quotient, scale, x[i]), inverse, quotient);
    codes[i] = static_cast<std::uint8_t>(__float2int_rn(ratio) + 128);
  }
  return scale;
}

// A line of a query: the factor 1 / sqrt(256), and weights are powers of two.
__device__ __forceinline__ uint4 pack_query(const float* x) {
  constexpr float factor = 0.0625f * 1.4426950408889634f;
  return make_uint4(cuda::pack_fp16(x[0] * factor, x[1] * factor), cuda::pack_fp16(x[2] * factor, x[3] * factor),
                    cuda::pack_fp16(x[4] * factor, x[5] * factor), cuda::pack_fp16(x[6] * factor, x[7] * factor));
}

__device__ __forceinline__ uint2 pack_codes(const std::uint8_t* codes) {
  std::uint32_t words[2];
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    words[w] = codes[4 * w] | codes[4 * w + 1] << 8 | codes[4 * w + 2] << 16 |
               static_cast<std::uint32_t>(codes[4 * w + 3]) << 24;
  }
  return make_uint2(words[0], words[1]);
}
// Where in the 256 bytes of a position's key the eight codes from `first` on lie.
__device__ __forceinline__ int key_place(int in_page, int first) {
  return (first / 16 ^ (in_page & 1) << 2) * 16 + first % 16;
}

// Half a warp puts the codes of one head's key or value of a position, and their scale, into its page.
__device__ __forceinline__ void store_codes(std::uint8_t* to, int in_page, bool is_value, int j,
                                            const std::uint8_t (&codes)[lane_dims], float scale) {
#pragma unroll
  for (int line = 0; line < 2; ++line) {
    const int first = dims_of(j, line);
    if (is_value) {
#pragma unroll
      for (int i = 0; i < 8; ++i) to[values_offset + (first + i) * page + in_page] = codes[line * 8 + i];
    } else {
      *reinterpret_cast<uint2*>(to + in_page * dim + key_place(in_page, first)) = pack_codes(codes + line * 8);
    }
  }
  if (j == 0)
    *reinterpret_cast<float*>(to + (is_value ? value_scales_offset : key_scales_offset) + in_page * 4) = scale;
}

// Four codes + 128 as two pairs of exact fp16 codes.
__device__ __forceinline__ void codes_to_fp16(std::uint32_t word, std::uint32_t (&pairs)[2]) {
  const __half2 offset = __halves2half2(__ushort_as_half(0x6480), __ushort_as_half(0x6480));  // 1024 + 128
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t biased = __byte_perm(word, 0x64646464u, i == 0 ? 0x4140 : 0x4342);
    const __half2 value = __hsub2(*reinterpret_cast<const __half2*>(&biased), offset);
    pairs[i] = *reinterpret_cast<const std::uint32_t*>(&value);
  }
}

// exp2(a - b) where both may be -infinity.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float power(float a, float b) { return a == -INFINITY ? 0.0f : exp2_fast(a - b); }

// One step of the ordered merge, the same wherever it runs: (maximum, sum, out) <- with a chunk's.
__device__ __forceinline__ void merge_factors(float& maximum, float& sum, float chunk_maximum, float chunk_sum,
                                              float& keep, float& add) {
  const float top = fmaxf(maximum, chunk_maximum);
  keep = power(maximum, top), add = power(chunk_maximum, top);
  sum = fmaf(sum, keep, chunk_sum * add);
  maximum = top;
}

__device__ __forceinline__ float gated_value(float value, float inverse_sum, float gate) {
  return value * inverse_sum * __fdividef(1.0f, 1.0f + __expf(-gate));
}

}  // namespace splash::ops::paged
