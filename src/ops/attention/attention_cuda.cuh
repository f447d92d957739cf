// The pieces of attention on the GPU: page layout, chunks, storing keys and values, the chunk kernel, the merge.
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
constexpr int tile_rows = 8;     // rows of a segment that share a block's keys
constexpr int warps = 4;
constexpr int threads = warps * 32;

// Chunks of absolute positions: short ones first, so that a short context already fills the chip; long ones later, so
// that partial sums stay small against the pages. At most 120 up to 262,144 positions.
constexpr int max_chunks = 120;
__host__ __device__ constexpr int chunk_begin(int chunk) {
  if (chunk < 16) return chunk * 128;
  if (chunk < 40) return 2048 + (chunk - 16) * 256;
  if (chunk < 64) return 8192 + (chunk - 40) * 1024;
  return 32768 + (chunk - 64) * 4096;
}
__host__ __device__ constexpr int chunks_for(int positions) {
  if (positions <= 2048) return (positions + 127) / 128;
  if (positions <= 8192) return 16 + (positions - 2048 + 255) / 256;
  if (positions <= 32768) return 40 + (positions - 8192 + 1023) / 1024;
  return 64 + (positions - 32768 + 4095) / 4096;
}

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
  __half* queries;           // [rows][query_heads][256], normed, rotated, times log2(e) / 16
  float* partials;           // [tile][kv head][chunk][row of the tile][256], then sums and maxima
  float* stats;              // [tile][kv head][chunk][row of the tile][2]: maximum, sum
  int tiles;                 // per segment
  double inverse_turns[32];  // frequency / (2 pi)
};

__device__ __forceinline__ std::uint8_t* page_at(const Arguments& args, const SegmentEntry& segment, int page_index,
                                                 int head) {
  return reinterpret_cast<std::uint8_t*>(args.pool) + segment.pages[page_index] * args.page_stride + head * page_bytes;
}

// Sines and cosines of a position for the eight dims of a lane; only lanes 0..7 rotate.
struct Rotation {
  float sine[8], cosine[8];
};
__device__ __forceinline__ void find_rotation(const Arguments& args, int position, int lane, Rotation& rotation) {
  if (lane >= 8) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    // Turns in double: a float32 angle would be off by 0.02 rad at position 262,144.
    const double turns = position * args.inverse_turns[lane % 4 * 8 + i];
    sincospif(2.0f * static_cast<float>(turns - rint(turns)), &rotation.sine[i], &rotation.cosine[i]);
  }
}

// One warp, one head of one row: eight consecutive dims per lane. RMSNorm, then rotation of the first 64 dims.
__device__ __forceinline__ void norm_and_rotate(const Arguments& args, const float* gain, const Rotation& rotation,
                                                int lane, float (&x)[8]) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) squares = fmaf(x[i], x[i], squares);
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, distance);
  const float scale = 1.0f / sqrtf(squares / dim + args.rms_eps);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = x[i] * scale * gain[lane * 8 + i];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float other = __shfl_xor_sync(0xffffffffu, x[i], 4);  // dims 0..31 lie in lanes 0..3, their partners in 4..7
    if (lane < 8) {
      const float s = rotation.sine[i], c = rotation.cosine[i];
      x[i] = lane < 4 ? x[i] * c - other * s : x[i] * c + other * s;
    }
  }
}

// Codes + 128 of eight values and their scale max|x| / 127 over the warp's 256.
__device__ __forceinline__ float quantise(const float (&x)[8], std::uint8_t (&codes)[8]) {
  float top = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) top = fmaxf(top, fabsf(x[i]));
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, distance));
  const float scale = fmaxf(top / 127.0f, 1e-20f);  // never zero: its logarithm is taken
#pragma unroll
  for (int i = 0; i < 8; ++i) codes[i] = static_cast<std::uint8_t>(__float2int_rn(x[i] / scale) + 128);
  return scale;
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

// Shared memory of the chunk kernel for MT matrix tiles of 16 query rows.
template <int MT, int STAGES>
struct Shared {
  std::uint8_t pages[STAGES][2 * page_bytes];
  uint4 queries[MT][16][32];  // A fragments
  uint4 weights[MT][4][32];   // the block's weights as A fragments
  float maxima[warps][MT * 16];
  float sums[warps][MT * 16];
  std::uint64_t full[STAGES];
};

// A tile of query rows: row m of the tile is segment row first + m / group, head m % group of the kv head's group.
struct Tile {
  int kv_head, group, first, rows, position;  // position: of the tile's first row
  __device__ int row(int m) const { return m / group; }
  __device__ bool valid(int m) const { return m / group < rows; }
};

// Rows m = 16 i + g (+ 8): two per matrix tile and thread.
template <int MT>
struct Running {
  float maximum[MT][2];
  float sum[MT][2];     // this thread's share within a chunk
  float out[MT][8][4];  // dims warp * 64 + 8 n + 2t, + 1
};

template <int MT, int STAGES>
__device__ __forceinline__ void load_queries(const Arguments& args, const SegmentEntry& segment, const Tile& tile,
                                             Shared<MT, STAGES>& shared) {
  // All reads first, then all stores: each store would hold back the reads behind it.
  constexpr int each = MT * 16 * 32 / threads;
  uint2 low[each], high[each];
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int j = 0; j < each; ++j) {
    const int step = (j * warps + threadIdx.x / 32) % 16, i = j * warps / 16;
    // Step 4 s + u takes dims 64 s + 16 t + 4 u + 0..3 of thread t: what one 16-byte read of a key row brings.
    const int d = step / 4 * 64 + t * 16 + step % 4 * 4;
    const int m0 = i * 16 + g, m1 = m0 + 8;
    auto at = [&](int m) {
      const std::int64_t row = segment.first_row + tile.first + tile.row(m);
      return reinterpret_cast<const uint2*>(
          args.queries + (row * args.query_heads + tile.kv_head * tile.group + m % tile.group) * dim + d);
    };
    low[j] = tile.valid(m0) ? *at(m0) : make_uint2(0, 0);
    high[j] = tile.valid(m1) ? *at(m1) : make_uint2(0, 0);
  }
#pragma unroll
  for (int j = 0; j < each; ++j) {
    shared.queries[j * warps / 16][(j * warps + threadIdx.x / 32) % 16][lane] =
        make_uint4(low[j].x, high[j].x, low[j].y, high[j].y);
  }
}

// Weights of one block of 64 positions: scores against this warp's 16 keys, maxima over the block, weights to shared
// memory as fp16 with the value scale inside: w = 2^(s + log2(scale) - maximum) <= 1, so fp16 never overflows and a
// tiny scale never underflows; the denominator sums 2^(s - maximum).
template <int MT, int STAGES>
__device__ __forceinline__ void weigh_block(const Tile& tile, int position, const std::uint8_t* pages,
                                            Shared<MT, STAGES>& shared, int warp, int lane, Running<MT>& run,
                                            float (&factors)[MT][2]) {
  const int g = lane / 4, t = lane % 4, in_page = warp % 2 * 16;
  const std::uint8_t* keys = pages + warp / 2 * page_bytes;
  float scores[MT][2][4] = {};
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    uint4 words[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int row = in_page + n * 8 + g;
      words[n] = *reinterpret_cast<const uint4*>(keys + row * dim + ((s * 64 + t * 16) ^ (row & 1) << 6));
    }
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      std::uint32_t b[2][2];
#pragma unroll
      for (int n = 0; n < 2; ++n)
        codes_to_fp16(u == 0 ? words[n].x : u == 1 ? words[n].y : u == 2 ? words[n].z : words[n].w, b[n]);
#pragma unroll
      for (int i = 0; i < MT; ++i) {
        const uint4 a = shared.queries[i][s * 4 + u][lane];
#pragma unroll
        for (int n = 0; n < 2; ++n) cuda::mma_fp16(scores[i][n], a.x, a.y, a.z, a.w, b[n][0], b[n][1]);
      }
    }
  }
  float value_logs[2][2];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int at = in_page + n * 8 + 2 * t;
    const float2 key_scales = *reinterpret_cast<const float2*>(keys + key_scales_offset + at * 4);
    const float2 value_scales = *reinterpret_cast<const float2*>(keys + value_scales_offset + at * 4);
    value_logs[n][0] = __log2f(value_scales.x), value_logs[n][1] = __log2f(value_scales.y);
    const int first = position + warp * 16 + n * 8 + 2 * t;
#pragma unroll
    for (int i = 0; i < MT; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int m = i * 16 + g + c / 2 * 8;
        const bool seen = tile.valid(m) && first + c % 2 <= tile.position + tile.row(m);
        scores[i][n][c] = seen ? scores[i][n][c] * (c % 2 ? key_scales.y : key_scales.x) : -INFINITY;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < MT; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = -INFINITY;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float score = scores[i][n][h * 2 + c];
          if (score != -INFINITY) top = fmaxf(top, score + value_logs[n][c]);
        }
      }
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      if (t == 0) shared.maxima[warp][i * 16 + h * 8 + g] = top;
    }
  }
  __syncthreads();  // also: everyone is done with the weights and the pages of the block before
#pragma unroll
  for (int i = 0; i < MT; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int m = i * 16 + h * 8 + g;
      float top = run.maximum[i][h];
#pragma unroll
      for (int w = 0; w < warps; ++w) top = fmaxf(top, shared.maxima[w][m]);
      factors[i][h] = power(run.maximum[i][h], top);
      run.maximum[i][h] = top;
      float sum = run.sum[i][h] * factors[i][h];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float w[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float score = scores[i][n][h * 2 + c];
          w[c] = score == -INFINITY ? 0.0f : exp2_fast(score + value_logs[n][c] - top);
          sum += power(score, top);
        }
        // Position 8 t' + 4 u + 2 pair + low bit of a page is thread t' of step u: t' = 2 (warp % 2) + n, u = t / 2,
        // pair = t % 2.
        reinterpret_cast<std::uint32_t*>(
            &shared.weights[i][warp / 2 * 2 + t / 2][g * 4 + warp % 2 * 2 + n])[t % 2 * 2 + h] =
            cuda::pack_fp16(w[0], w[1]);
      }
      run.sum[i][h] = sum;
    }
  }
  __syncthreads();
}

// out = out * factor + weights * values, this warp's 64 dims.
template <int MT, int STAGES>
__device__ __forceinline__ void add_values(const std::uint8_t* pages, const Shared<MT, STAGES>& shared, int warp,
                                           int lane, const float (&factors)[MT][2], Running<MT>& run) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < MT; ++i) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) run.out[i][n][c] *= factors[i][c / 2];
    }
  }
#pragma unroll
  for (int p = 0; p < 2; ++p) {
    uint4 a[MT][2];
#pragma unroll
    for (int i = 0; i < MT; ++i) a[i][0] = shared.weights[i][p * 2][lane], a[i][1] = shared.weights[i][p * 2 + 1][lane];
    // Several groups of dims at a time: eight or more independent sums, so that a product never waits for the one
    // before it.
    constexpr int together = MT > 3 ? 2 : 4;
#pragma unroll
    for (int first = 0; first < 8; first += together) {
      uint2 words[together];
#pragma unroll
      for (int n = 0; n < together; ++n) {
        words[n] = *reinterpret_cast<const uint2*>(pages + p * page_bytes + values_offset +
                                                   (warp * 64 + (first + n) * 8 + g) * page + t * 8);
      }
#pragma unroll
      for (int u = 0; u < 2; ++u) {
#pragma unroll
        for (int n = 0; n < together; ++n) {
          std::uint32_t b[2];
          codes_to_fp16(u == 0 ? words[n].x : words[n].y, b);
#pragma unroll
          for (int i = 0; i < MT; ++i)
            cuda::mma_fp16(run.out[i][first + n], a[i][u].x, a[i][u].y, a[i][u].z, a[i][u].w, b[0], b[1]);
        }
      }
    }
  }
}

// One step of the ordered merge, the same wherever it runs: (maximum, sum, out) <- with a chunk's.
__device__ __forceinline__ void merge_factors(float& maximum, float& sum, float chunk_maximum, float chunk_sum,
                                              float& keep, float& add) {
  const float top = fmaxf(maximum, chunk_maximum);
  keep = power(maximum, top), add = power(chunk_maximum, top);
  sum = fmaf(sum, keep, chunk_sum * add);
  maximum = top;
}

}  // namespace splash::ops::paged
