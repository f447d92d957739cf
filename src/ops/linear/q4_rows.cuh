// The end of a row block in the wide kernel (q4_wide.cuh): parts of several blocks meet, results go out. (The kernel for
// few rows has its own, q4_few.cuh.)
#pragma once

#include "backend/cuda/panel.cuh"
#include "backend/cuda/ptx.cuh"
#include "ops/linear/q4_work.cuh"

namespace splash::ops {

// Writes finished fragments of STRIPS strips from `strip` on. Fragment: rows g, g + 8 of the strip; tokens 8n + 2t,
// + 1.
template <int STRIPS, int NT, bool gated>
__device__ __forceinline__ void q4_store(const Q4Work& work, int strip, int first_token, int lane,
                                         float (&acc)[STRIPS][NT][4]) {
  const int g = lane >> 2, t = lane & 3;
  if constexpr (gated) {
    static_assert(STRIPS % 2 == 0);
#pragma unroll
    for (int s = 0; s < STRIPS; s += 2) {
#pragma unroll
      for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = (strip + s) / 2 * 16 + g + (i >> 1) * 8, token = first_token + n * 8 + 2 * t + (i & 1);
          if (column >= work.matrices[0].rows || token >= work.tokens) continue;
          const float gate = acc[s][n][i], up = acc[s + 1][n][i];
          const float value = gate / (1.0f + __expf(-gate)) * up;
          if (work.matrices[0].out) work.matrices[0].out[token * work.matrices[0].out_stride + column] = value;
          cuda::store_element(work.gated_panel, token, column, value);
        }
      }
    }
  } else {
    // Everything is read before anything is written: between a store and a load through other pointers the compiler
    // keeps the order, and sixteen round trips to memory would follow each other.
#pragma unroll
    for (int s = 0; s < STRIPS; ++s) {
      const Q4Strip place = locate_strip<false>(work, strip + s);
      const Q4Matrix& matrix = work.matrices[place.matrix];
      if (matrix.accumulate) {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int column = place.index * 16 + g + (i >> 1) * 8, token = first_token + n * 8 + 2 * t + (i & 1);
            if (column < matrix.rows && token < work.tokens)
              acc[s][n][i] += __ldcg(matrix.out + token * matrix.out_stride + column);
          }
        }
      }
    }
#pragma unroll
    for (int s = 0; s < STRIPS; ++s) {
      const Q4Strip place = locate_strip<false>(work, strip + s);
      const Q4Matrix& matrix = work.matrices[place.matrix];
#pragma unroll
      for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = place.index * 16 + g + (i >> 1) * 8, token = first_token + n * 8 + 2 * t + (i & 1);
          if (column >= matrix.rows || token >= work.tokens) continue;
          matrix.out[token * matrix.out_stride + column] = acc[s][n][i];
        }
      }
    }
  }
}

// A sum and its flag travel in one 8-byte word, the block in which the row block begins polls
// the others' words, adds them in block order and leaves zeros. It does its share of the row block last, so it seldom
// waits. (Fence, counter and fence took 3 us of each launch. But the longer
// a part, the more round trips follow each other here: for 8 tokens and the wide kernel.) All blocks of a launch are
// resident at once (checked at launch), so waiting ends.
template <int STRIPS, int NT>
__device__ __forceinline__ bool q4_exchange(const Q4Work& work, const UnitSplit& split, int row_block, int warp,
                                            int warps, int lane, float (&acc)[STRIPS][NT][4]) {
  const int block = blockIdx.x, first = split.first_block(row_block), last = split.last_block(row_block);
  if (first == last) return true;
  constexpr int vectors = STRIPS * NT * 2;  // of a lane and part: {sum, flag, sum, flag}
  auto part_of = [&](int from) {
    return work.exchange + (static_cast<std::int64_t>(from) * warps + warp) * (vectors * 32) + lane;
  };
  if (block != first) {
    uint4* mine = part_of(block);
#pragma unroll
    for (int s = 0; s < STRIPS; ++s) {
#pragma unroll
      for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          cuda::store_volatile(
              mine + ((s * NT + n) * 2 + i / 2) * 32,
              make_uint4(__float_as_uint(acc[s][n][i]), 1, __float_as_uint(acc[s][n][i + 1]), 1));
        }
      }
    }
    return false;
  }
  // Words on their way at once: of two parts where they are short.
  constexpr int chunk = vectors < 8 ? vectors : 8, together = vectors <= 4 ? 2 : 1;
  for (int next = first + 1; next <= last; next += together) {
#pragma unroll
    for (int c = 0; c < vectors; c += chunk) {
      uint4 got[together][chunk];
#pragma unroll
      for (int p = 0; p < together; ++p) {
#pragma unroll
        for (int v = 0; v < chunk; ++v) got[p][v] = cuda::load_volatile(part_of(min(next + p, last)) + (c + v) * 32);
      }
#pragma unroll
      for (int p = 0; p < together; ++p) {
        if (next + p > last) break;
        uint4* from = part_of(next + p) + c * 32;
#pragma unroll
        for (int v = 0; v < chunk; ++v) {
          while (got[p][v].y == 0 || got[p][v].w == 0) got[p][v] = cuda::load_volatile(from + v * 32);
          from[v * 32] = make_uint4(0, 0, 0, 0);
          float(&to)[4] = acc[(c + v) / 2 / NT][(c + v) / 2 % NT];
          to[v % 2 * 2] += __uint_as_float(got[p][v].x);
          to[v % 2 * 2 + 1] += __uint_as_float(got[p][v].z);
        }
      }
    }
  }
  return true;
}

}  // namespace splash::ops
