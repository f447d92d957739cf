// 4-bit linear for few token rows (8, 16 or 32), bound by the weights' bytes: 576 per 1024 weights, each read once.
//
// A block has one producer warp, which streams weight tiles and the panel's groups into a ring by bulk copies, and
// WARPS consumer warps of STRIPS strips each. Weights are operand A of m16n8k16, tokens operand B. A word of a tile
// line holds eight codes of one output row; codes become bf16 128 + q with one logic operation, and
//   y = sum over groups of  scale * (acc - 128 * X) + bias * X,   X = sum of the group's x (by a multiplication with
//   ones)
// so no weight is ever rounded. The loop is bound by instruction issue (about 75 per tile and warp, 124 issue slots per
// tile at 4.3 TB/s): more strips per warp share the x fragments and give independent chains.
#pragma once

#include "backend/cuda/panel.cuh"
#include "backend/cuda/ptx.cuh"
#include "ops/linear/q4_work.cuh"

namespace splash::ops {

template <int NT_, int WARPS_, int STRIPS_, int TILES_, int STAGES_, int PER_SM_>
struct Q4RowsShape {
  static constexpr int NT = NT_;          // tokens / 8
  static constexpr int WARPS = WARPS_;    // consumers
  static constexpr int STRIPS = STRIPS_;  // per warp
  static constexpr int TILES = TILES_;    // tiles of each strip per stage
  static constexpr int STAGES = STAGES_;
  static constexpr int PER_SM = PER_SM_;            // resident blocks per multiprocessor
  static constexpr int row_block = WARPS * STRIPS;  // strips per unit
  static constexpr int group_bytes = NT * cuda::Panel::block_bytes;
  static constexpr int weight_bytes = row_block * TILES * 576;
  static constexpr int stage_bytes = (weight_bytes + TILES * group_bytes + 127) / 128 * 128;
  static constexpr int threads = WARPS * 32 + 64;  // consumers, producer, the warp that adds up the input norm
  static constexpr int scales_offset = stage_bytes * STAGES + STAGES * 16 + 16;  // behind the barriers
  static constexpr std::size_t shared_bytes = std::size_t{scales_offset} + NT * 8 * 4;
  static constexpr std::size_t partial_floats = std::size_t{2} * row_block * NT * 128;  // per block
  static constexpr std::size_t exchange_bytes = std::size_t{1024} * row_block * NT;     // per block
};

template <class Shape, bool gated>
__device__ __forceinline__ void q4_rows_produce(const Q4Work& work, const UnitSplit& split, std::uint8_t* ring,
                                                std::uint32_t full, std::uint32_t empty, int lane) {
  const int begin = split.begin(blockIdx.x), count = static_cast<int>(split.begin(blockIdx.x + 1)) - begin;
  const std::uint64_t policy = cuda::stream_policy();
  // Where the next request reads: lane i follows strip i of the row block.
  int row_block = begin / split.k_steps, k_step = begin % split.k_steps;
  const std::uint8_t* weights = nullptr;
  auto find_strip = [&] {
    if (lane >= Shape::row_block) return;
    const Q4Strip place = locate_strip<gated>(work, min(row_block * Shape::row_block + lane, work.strips - 1));
    weights = work.matrices[place.matrix].tiles + static_cast<std::int64_t>(place.index) * work.tiles_k * 576;
  };
  auto tiles_at = [&](int step) { return min(Shape::TILES, work.tiles_k - step * Shape::TILES); };
  auto load_weights = [&](int stage) {
    const int tiles = tiles_at(k_step);
    if (lane == 0) cuda::barrier_expect(full + stage * 8, tiles * (Shape::row_block * 576 + Shape::group_bytes));
    __syncwarp();
    if (lane < Shape::row_block) {
      cuda::bulk_copy(cuda::shared_address(ring + stage * Shape::stage_bytes + lane * Shape::TILES * 576),
                      weights + k_step * (Shape::TILES * 576), tiles * 576, full + stage * 8, policy);
    }
  };
  auto load_panel = [&](int step, int stage) {
    if (lane != 0) return;
    cuda::bulk_copy(cuda::shared_address(ring + stage * Shape::stage_bytes + Shape::weight_bytes),
                    work.panel + static_cast<std::int64_t>(step) * Shape::TILES * Shape::group_bytes,
                    tiles_at(step) * Shape::group_bytes, full + stage * 8);
  };
  auto advance = [&] {
    if (++k_step < split.k_steps) return;
    k_step = 0, ++row_block;
    find_strip();
  };
  find_strip();
  // The first stages' weights are requested while the predecessor still runs; its output, our input, only after it.
  const int ahead = min(Shape::STAGES, count);
  for (int i = 0; i < ahead; ++i) {
    load_weights(i);
    advance();
  }
  cuda::dependents_may_start();
  cuda::wait_for_predecessors();
  for (int i = 0, step = begin % split.k_steps; i < ahead; ++i) {
    load_panel(step, i);
    if (++step == split.k_steps) step = 0;
  }
  int stage = 0, parity = 0;
  for (int i = Shape::STAGES; i < count; ++i) {
    cuda::barrier_wait(empty + stage * 8, parity);
    load_weights(stage);
    load_panel(k_step, stage);
    advance();
    if (++stage == Shape::STAGES) stage = 0, parity ^= 1;
  }
}

// One group of 64 inputs: STRIPS tiles against NT blocks of tokens.
template <class Shape>
__device__ __forceinline__ void q4_rows_group(const std::uint8_t* tiles, const std::uint8_t* blocks, int lane,
                                              float (&acc)[Shape::STRIPS][Shape::NT][4]) {
  constexpr int NT = Shape::NT;
  const int g = lane >> 2, t = lane & 3;
  // Lines t (k half j) of rows g and g + 8. Lanes t = 2, 3 read the two rows in the other order, so that the 32 lanes
  // of a load touch 32 banks.
  const int swap = t >> 1;
  const int first = t * 64 + g * 4 + 32 * swap, second = t * 64 + g * 4 + 32 * (1 - swap);
  std::uint32_t x[NT][2][4];
  float sums[NT][4];
  constexpr std::uint32_t ones = 0x3F803F80;
#pragma unroll
  for (int n = 0; n < NT; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n][i] = 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      cuda::load_matrices(x[n][j],
                          cuda::shared_address(blocks) + n * 1024 + j * 512 + (lane >> 3) * 128 + (lane & 7) * 16);
      cuda::mma_bf16(sums[n], ones, ones, ones, ones, x[n][j][0], x[n][j][1]);
      cuda::mma_bf16(sums[n], ones, ones, ones, ones, x[n][j][2], x[n][j][3]);
    }
  }
#pragma unroll
  for (int s = 0; s < Shape::STRIPS; ++s) {
    const std::uint8_t* tile = tiles + s * Shape::TILES * 576;
    float part[NT][4];
#pragma unroll
    for (int n = 0; n < NT; ++n) part[n][0] = part[n][1] = part[n][2] = part[n][3] = 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const std::uint32_t wa = *reinterpret_cast<const std::uint32_t*>(tile + j * 256 + first);
      const std::uint32_t wb = *reinterpret_cast<const std::uint32_t*>(tile + j * 256 + second);
      const std::uint32_t w0 = swap ? wb : wa, w1 = swap ? wa : wb;
      std::uint32_t low[4], high[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        low[i] = cuda::codes_plus_128(w0 >> 4 * i);
        high[i] = cuda::codes_plus_128(w1 >> 4 * i);
      }
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        cuda::mma_bf16(part[n], low[0], high[0], low[1], high[1], x[n][j][0], x[n][j][1]);
        cuda::mma_bf16(part[n], low[2], high[2], low[3], high[3], x[n][j][2], x[n][j][3]);
      }
    }
    const float scale0 = cuda::bf16_at(tile + 512 + 2 * g), scale1 = cuda::bf16_at(tile + 528 + 2 * g);
    const float offset0 = fmaf(-128.0f, scale0, cuda::bf16_at(tile + 544 + 2 * g));
    const float offset1 = fmaf(-128.0f, scale1, cuda::bf16_at(tile + 560 + 2 * g));
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      acc[s][n][0] = fmaf(scale0, part[n][0], fmaf(offset0, sums[n][0], acc[s][n][0]));
      acc[s][n][1] = fmaf(scale0, part[n][1], fmaf(offset0, sums[n][1], acc[s][n][1]));
      acc[s][n][2] = fmaf(scale1, part[n][2], fmaf(offset1, sums[n][0], acc[s][n][2]));
      acc[s][n][3] = fmaf(scale1, part[n][3], fmaf(offset1, sums[n][1], acc[s][n][3]));
    }
  }
}

// 1 / rms of every token into shared memory, by one warp beside the others: the parts' sums of squares in a fixed
// order, the same for every width.
template <int NT>
__device__ __forceinline__ void q4_input_scales(const Q4Work& work, int lane, float* scales) {
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    float sum = 0;
#pragma unroll 20
    for (int part = lane >> 3; part < work.square_parts; part += 4) {
      sum += __ldcg(work.squares_in + part * Q4Work::squares_stride + n * 8 + (lane & 7));
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 8);
    sum += __shfl_xor_sync(0xffffffffu, sum, 16);
    if (lane < 8) scales[n * 8 + lane] = 1.0f / sqrtf(sum / static_cast<float>(work.tiles_k * 64) + work.norm_eps);
  }
}

// Writes finished fragments of STRIPS strips from `strip` on. Fragment: rows g, g + 8 of the strip; tokens 8n + 2t,
// + 1. `part`: this warp's place among the sums of squares (norm only).
template <int STRIPS, int NT, bool gated, bool norm = false>
__device__ __forceinline__ void q4_store(const Q4Work& work, int strip, int first_token, int lane,
                                         float (&acc)[STRIPS][NT][4], int part = 0) {
  const int g = lane >> 2, t = lane & 3;
  if constexpr (gated) {
    static_assert(STRIPS % 2 == 0);
#pragma unroll
    for (int s = 0; s < STRIPS; s += 2) {
      if (strip + s >= work.strips) return;
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
    float gains[STRIPS][2] = {};
#pragma unroll
    for (int s = 0; s < STRIPS; ++s) {
      if (strip + s >= work.strips) break;
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
      if constexpr (norm) {
        if (work.gain) {
#pragma unroll
          for (int h = 0; h < 2; ++h)
            gains[s][h] = __ldg(work.gain + min(place.index * 16 + g + h * 8, matrix.rows - 1));
        }
      }
    }
    float squares[NT][2] = {};
#pragma unroll
    for (int s = 0; s < STRIPS; ++s) {
      if (strip + s >= work.strips) break;
      const Q4Strip place = locate_strip<false>(work, strip + s);
      const Q4Matrix& matrix = work.matrices[place.matrix];
#pragma unroll
      for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = place.index * 16 + g + (i >> 1) * 8, token = first_token + n * 8 + 2 * t + (i & 1);
          if (column >= matrix.rows || token >= work.tokens) continue;
          const float value = acc[s][n][i];
          matrix.out[token * matrix.out_stride + column] = value;
          if constexpr (norm) {
            if (work.gain) {
              cuda::store_element(work.normed_panel, token, column, value * gains[s][i >> 1]);
              squares[n][i & 1] = fmaf(value, value, squares[n][i & 1]);
            }
          }
        }
      }
    }
    if constexpr (norm) {
      if (!work.gain) return;
#pragma unroll
      for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int distance = 4; distance < 32; distance <<= 1)
            squares[n][i] += __shfl_xor_sync(0xffffffffu, squares[n][i], distance);
        }
        if (g == 0) {
          *reinterpret_cast<float2*>(work.squares_out + part * Q4Work::squares_stride + n * 8 + 2 * t) =
              make_float2(squares[n][0], squares[n][1]);
        }
      }
    }
  }
}

// The end of a row block for one warp: alone, it is done; else its part goes to scratch, and the last warp to arrive
// adds all parts in block order (its own included, so that the order never depends on who is last).
template <int STRIPS, int NT>
__device__ __forceinline__ bool q4_combine(const Q4Work& work, const UnitSplit& split, int row_block, int warp,
                                           int warps, int lane, float (&acc)[STRIPS][NT][4]) {
  const int first = split.first_block(row_block), last = split.last_block(row_block);
  if (first == last) return true;
  const int warp_floats = STRIPS * NT * 128;
  auto part_of = [&](int slot) {
    return reinterpret_cast<float4*>(work.partials + (static_cast<std::int64_t>(slot) * warps + warp) * warp_floats) +
           lane;
  };
  float4* mine = part_of(split.slot(blockIdx.x, row_block));
#pragma unroll
  for (int s = 0; s < STRIPS; ++s) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      __stcg(mine + (s * NT + n) * 32, make_float4(acc[s][n][0], acc[s][n][1], acc[s][n][2], acc[s][n][3]));
    }
  }
  __syncwarp();
  int arrived = 0;
  int* counter = work.counters + row_block * warps + warp;
  if (lane == 0) {
    __threadfence();  // cumulative: covers what the warp wrote before the barrier
    arrived = atomicAdd(counter, 1);
    __threadfence();
  }
  arrived = __shfl_sync(0xffffffffu, arrived, 0);
  if (arrived != last - first) return false;
#pragma unroll
  for (int s = 0; s < STRIPS; ++s) {
#pragma unroll
    for (int n = 0; n < NT; ++n) acc[s][n][0] = acc[s][n][1] = acc[s][n][2] = acc[s][n][3] = 0;
  }
  const int first_slot = split.slot(first, row_block);
#pragma unroll 4
  for (int block = first; block <= last; ++block) {
    const float4* part = part_of(block == first ? first_slot : block * 2);
#pragma unroll
    for (int s = 0; s < STRIPS; ++s) {
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        const float4 value = __ldcg(part + (s * NT + n) * 32);
        acc[s][n][0] += value.x;
        acc[s][n][1] += value.y;
        acc[s][n][2] += value.z;
        acc[s][n][3] += value.w;
      }
    }
  }
  if (lane == 0) *counter = 0;  // for the next launch
  return true;
}

// The same without a fence: a sum and its flag travel in one 8-byte word, the block in which the row block begins polls
// the others' words, adds them in block order and leaves zeros. It does its share of the row block last, so it seldom
// waits; the sum has the same bits as q4_combine's. (Fence, counter and fence took 3 us of each launch. But the longer
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

template <class Shape, bool gated>
__global__ void __launch_bounds__(Shape::threads, Shape::PER_SM) q4_rows_kernel(const __grid_constant__ Q4Work work) {
  extern __shared__ __align__(128) std::uint8_t ring[];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const std::uint32_t full = cuda::shared_address(ring + Shape::stage_bytes * Shape::STAGES);
  const std::uint32_t empty = full + Shape::STAGES * 8, scales_ready = empty + Shape::STAGES * 8;
  float* scales = reinterpret_cast<float*>(ring + Shape::scales_offset);
  UnitSplit split;
  split.k_steps = (work.tiles_k + Shape::TILES - 1) / Shape::TILES;
  split.units = (work.strips + Shape::row_block - 1) / Shape::row_block * split.k_steps;
  split.blocks = gridDim.x;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::STAGES; ++i) {
      cuda::barrier_init(full + i * 8, 1);
      cuda::barrier_init(empty + i * 8, Shape::WARPS);
    }
    cuda::barrier_init(scales_ready, 1);
    cuda::barrier_init_done();
  }
  __syncthreads();
  if (warp == Shape::WARPS) {
    q4_rows_produce<Shape, gated>(work, split, ring, full, empty, lane);
    return;
  }
  if (warp == Shape::WARPS + 1) {
    if (!work.squares_in) return;
    cuda::wait_for_predecessors();
    q4_input_scales<Shape::NT>(work, lane, scales);
    __syncwarp();
    if (lane == 0) cuda::barrier_arrive(scales_ready);
    return;
  }
  cuda::wait_for_predecessors();  // before the scratch and the outputs that a predecessor may still use
  float acc[Shape::STRIPS][Shape::NT][4] = {};
  const int begin = split.begin(blockIdx.x), end = split.begin(blockIdx.x + 1);
  int stage = 0, parity = 0, k_step = begin % split.k_steps, row_block = begin / split.k_steps;
  for (int unit = begin; unit < end; ++unit) {
    cuda::barrier_wait(full + stage * 8, parity);
    const std::uint8_t* base = ring + stage * Shape::stage_bytes;
    const int tiles = min(Shape::TILES, work.tiles_k - k_step * Shape::TILES);
    auto multiply = [&](int q) {
      q4_rows_group<Shape>(base + (warp * Shape::STRIPS * Shape::TILES + q) * 576,
                           base + Shape::weight_bytes + q * Shape::group_bytes, lane, acc);
    };
    if (Shape::NT == 1 && tiles == Shape::TILES) {
      // No branch between tiles, so that they overlap: 256 linears of 8 rows 5.30 -> 5.15 ms.
#pragma unroll
      for (int q = 0; q < Shape::TILES; ++q) multiply(q);
    } else {
      constexpr int unrolled = Shape::NT == 1 ? 1 : Shape::TILES;
#pragma unroll unrolled
      for (int q = 0; q < Shape::TILES; ++q) {
        if (q < tiles) multiply(q);
      }
    }
    __syncwarp();
    if (lane == 0) cuda::barrier_arrive(empty + stage * 8);
    if (++stage == Shape::STAGES) stage = 0, parity ^= 1;
    if (++k_step == split.k_steps || unit == end - 1) {
      bool finished;
      if constexpr (Shape::NT == 1) {
        finished = q4_exchange<Shape::STRIPS, Shape::NT>(work, split, row_block, warp, Shape::WARPS, lane, acc);
      } else {
        finished = q4_combine<Shape::STRIPS, Shape::NT>(work, split, row_block, warp, Shape::WARPS, lane, acc);
      }
      if (finished) {
        if (work.squares_in) {
          cuda::barrier_wait(scales_ready, 0);
#pragma unroll
          for (int n = 0; n < Shape::NT; ++n) {
            const float2 scale = *reinterpret_cast<const float2*>(scales + n * 8 + (lane & 3) * 2);
#pragma unroll
            for (int s = 0; s < Shape::STRIPS; ++s) {
              acc[s][n][0] *= scale.x, acc[s][n][1] *= scale.y;
              acc[s][n][2] *= scale.x, acc[s][n][3] *= scale.y;
            }
          }
        }
        q4_store<Shape::STRIPS, Shape::NT, gated, true>(work, row_block * Shape::row_block + warp * Shape::STRIPS, 0,
                                                        lane, acc, row_block * Shape::WARPS + warp);
      }
#pragma unroll
      for (int s = 0; s < Shape::STRIPS; ++s) {
#pragma unroll
        for (int n = 0; n < Shape::NT; ++n) acc[s][n][0] = acc[s][n][1] = acc[s][n][2] = acc[s][n][3] = 0;
      }
      if (k_step == split.k_steps) k_step = 0, ++row_block;
    }
  }
}

}  // namespace splash::ops
