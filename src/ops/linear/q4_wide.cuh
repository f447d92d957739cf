// 4-bit linear for many token rows (33 and more: lanes in company, prefill): wgmma with the weights as register operand
// A.
//
// A block has two consumer warp groups of 64 output rows each and producer warps. A tile's codes become bf16(q * scale
// + bias), rounded once per weight, in registers; tokens come as panel groups from shared memory, so weights never
// travel as bf16. Accumulators run over all of K (or of a fixed part of it) without a stop. Unpacking 1024 weights is
// ~60 instructions of a warp against 4 wgmma of NB / 2 cycles each: hidden from 64 tokens on.
//
// A tile of 128 x 256 at K = 5120 runs at 95 % of the matrix unit (738 TFLOP/s over 258 tiles on 132 multiprocessors,
// H200); what is lost is lost in the last wave. So matrices of few output rows cut K in `parts`, always the same, and
// who reads the parts adds them up; and gate and up are one matrix of alternating strips, whose halves meet in the
// registers of one thread.
#pragma once

#include "backend/cuda/wgmma.cuh"
#include "ops/linear/q4_rows.cuh"
#include "ops/linear/q4_tile.cuh"

namespace splash::ops {

template <int NB_, int TILES_, int STAGES_, bool whole_>
struct Q4WideShape {
  static constexpr int NB = NB_;  // tokens per tile of work
  static constexpr int TILES = TILES_;
  static constexpr int STAGES = STAGES_;
  // Stages whose weights are asked for while the launch before still runs: not more than it can spare (0022).
  static constexpr int ahead_at_first = NB == 64 ? 4 : STAGES;
  // Few tokens: stream-K, all blocks share every matrix evenly. Many: whole tiles of work, block by block; partial sums
  // would cost more than the uneven end.
  static constexpr bool whole = whole_;
  static constexpr bool tail =
      whole && NB == 256;  // gated: tiles that fill no wave are done in quarters (work.tail_from)
  static constexpr int warps = 8;
  static constexpr int strips = 8;  // one per warp
  static constexpr int tile_bytes = strips * Q4Tile::bytes;  // [tile][strip]; gated [tile][gate, up][strip]
  static constexpr int weight_bytes = TILES * tile_bytes;
  static constexpr int group_bytes = NB / 8 * cuda::Panel::block_bytes;
  static constexpr int stage_bytes = weight_bytes + TILES * group_bytes;
  static constexpr int threads = warps * 32 + 128;  // the producer's warp group gives its registers to the consumers
  static constexpr std::size_t shared_bytes = std::size_t{stage_bytes} * STAGES + STAGES * 16;
  static constexpr std::size_t exchange_bytes = std::size_t{128} * strips * NB;  // per block
  static_assert(TILES % 2 == 0, "the two register buffers alternate inside a stage");
  static_assert(weight_bytes % 128 == 0);
};

// Where a block is in its work. Few tokens: stream-K, a run of units (tile, k) that may begin and end inside a tile.
// Many: items (tile, part of K), dealt to the blocks in turn.
template <class Shape>
struct WideWalk {
  int tile = 0, part = 0, k = 0, end = 0;  // k: of the K / 64 / TILES steps; the run of this item ends at `end`
  int item = 0, left = 0;                  // left: units (stream-K) or items
  int quarter = -1;                        // of the tile's tokens, in the tail; else all

  __device__ __forceinline__ void begin(const Q4Work& work, const UnitSplit& split, int tiles) {
    if constexpr (Shape::whole) {
      const int items = min(tiles, work.tail_from) * work.parts + max(tiles - work.tail_from, 0) * 4;
      left = (items - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
      enter(work, split, blockIdx.x);
    } else {
      const int first = split.begin(blockIdx.x);
      left = split.begin(blockIdx.x + 1) - first;
      tile = first / split.k_steps, k = first % split.k_steps, end = split.k_steps;
    }
  }
  __device__ __forceinline__ void enter(const Q4Work& work, const UnitSplit& split, int next_item) {
    item = next_item;
    tile = item / work.parts, part = item % work.parts;
    if (item >= work.tail_from) {  // never with parts
      tile = work.tail_from + (item - work.tail_from) / 4, quarter = (item - work.tail_from) % 4;
    }
    k = split.k_steps * part / work.parts, end = split.k_steps * (part + 1) / work.parts;
  }
  __device__ __forceinline__ bool done() const { return left == 0; }
  __device__ __forceinline__ void next(const Q4Work& work, const UnitSplit& split) {
    ++k;
    if constexpr (Shape::whole) {
      if (k < end) return;
      if (--left > 0) enter(work, split, item + static_cast<int>(gridDim.x));
    } else {
      --left;
      if (k == end) k = 0, ++tile;
    }
  }
};

template <class Shape>
__device__ __forceinline__ UnitSplit wide_split(const Q4Work& work, int tiles) {
  UnitSplit split;
  split.k_steps = work.tiles_k / Shape::TILES;  // no rest: checked at launch
  split.units = tiles * split.k_steps;
  split.blocks = gridDim.x;
  return split;
}

// One thread. Weights of a stage lie in one piece, gated in one for each tile of gate and of up (q4_tile.h).
template <class Shape, bool gated>
__device__ __forceinline__ void q4_wide_produce(const Q4Work& work, const UnitSplit& split, int token_tiles, int tiles,
                                                std::uint8_t* ring, std::uint32_t full, std::uint32_t empty) {
  auto request_weights = [&](const WideWalk<Shape>& at, std::uint32_t to, std::uint32_t barrier, int panel_bytes) {
    constexpr int halves = gated ? 2 : 1, most = Shape::strips / halves;
    const int row_tile = at.tile / token_tiles, group = gated ? row_tile / 2 : row_tile;
    const int skipped = gated ? row_tile % 2 * most : 0;  // strips of the group
    const Q4Matrix& first = work.matrices[gated ? 0 : matrix_of(work, group)];
    const Q4Order order = order_of(work, first);
    const int of_matrix = group - first.first_group, of_group = order.group_strips(of_matrix);
    const int left = of_group - skipped, strips = gated ? min(most, left) : of_group;
    const bool whole = !gated && order.whole(of_matrix);
    const std::int64_t from =
        (order.group_begin(of_matrix) + static_cast<std::int64_t>(at.k) * Shape::TILES * of_group + skipped) *
        Q4Tile::bytes;
    if (left <= 0) return cuda::barrier_expect(barrier, panel_bytes);
    cuda::barrier_expect(barrier, Shape::TILES * halves * strips * Q4Tile::bytes + panel_bytes);
#pragma unroll
    for (int q = 0; q < Shape::TILES; ++q) {
      if (whole && q > 0) break;
#pragma unroll
      for (int half = 0; half < halves; ++half) {
        cuda::bulk_copy(to + q * Shape::tile_bytes + half * most * Q4Tile::bytes,
                        (half ? work.matrices[1] : first).tiles + from + q * of_group * Q4Tile::bytes,
                        (whole ? Shape::TILES : 1) * strips * Q4Tile::bytes, barrier);
      }
    }
  };
  auto request = [&](const WideWalk<Shape>& at, int stage, bool weights, bool panel) {
    const std::uint32_t base = cuda::shared_address(ring + stage * Shape::stage_bytes);
    const int group_bytes = at.quarter < 0 ? Shape::group_bytes : Shape::group_bytes / 4;
    if (weights) request_weights(at, base, full + stage * 8, Shape::TILES * group_bytes);
    if (panel) {
      const std::uint8_t* from = work.panel + at.tile % token_tiles * work.panel_tile_bytes +
                                 static_cast<std::int64_t>(at.k) * Shape::TILES * Shape::group_bytes;
      if (at.quarter < 0) {
        cuda::bulk_copy(base + Shape::weight_bytes, from, Shape::TILES * Shape::group_bytes, full + stage * 8);
      } else {
        for (int q = 0; q < Shape::TILES; ++q) {
          cuda::bulk_copy(base + Shape::weight_bytes + q * group_bytes,
                          from + q * Shape::group_bytes + at.quarter * group_bytes, group_bytes, full + stage * 8);
        }
      }
    }
  };
  WideWalk<Shape> walk, first;
  walk.begin(work, split, tiles);
  first = walk;
  int ahead = 0;
  for (; ahead < Shape::ahead_at_first && !walk.done(); ++ahead) {
    request(walk, ahead, true, false);
    walk.next(work, split);
  }
  cuda::dependents_may_start();
  cuda::wait_for_predecessors();
  for (int i = 0; i < ahead; ++i) {
    request(first, i, false, true);
    first.next(work, split);
  }
  for (; ahead < Shape::STAGES && !walk.done(); ++ahead) {
    request(walk, ahead, true, true);
    walk.next(work, split);
  }
  for (int stage = 0, parity = 0; !walk.done(); walk.next(work, split)) {
    cuda::barrier_wait(empty + stage * 8, parity);
    request(walk, stage, true, true);
    if (++stage == Shape::STAGES) stage = 0, parity ^= 1;
  }
}

// Two lines of eight output rows as four A fragments of 16 inputs: bf16(q * scale + bias) for row g of each. Of an
// ordinary tile, its rows 0..7 and 8..15; of a gated pair, the same eight rows (`side`) of gate and of up, whose tile
// lies `apart` bytes further.
template <bool gated>
__device__ __forceinline__ void dequantise_lines(const std::uint8_t* tile, int apart, int side, int lane,
                                                 std::uint32_t (&a)[16]) {
  const Q4Lines own(tile, lane), other(tile + (gated ? apart : 0), lane);
  auto broadcast = [](std::uint32_t pair, int half) {
    const std::uint32_t value = __byte_perm(pair, 0, half ? 0x3232 : 0x1010);
    return *reinterpret_cast<const __nv_bfloat162*>(&value);
  };
  const int first = gated ? side : 0, second = gated ? side : 1;
  const __nv_bfloat162 scale0 = broadcast(own.numbers.x, first), scale1 = broadcast(other.numbers.x, second);
  const __nv_bfloat162 bias0 = broadcast(own.numbers.y, first), bias1 = broadcast(other.numbers.y, second);
  auto word = [](const uint4& codes, int j, int half) {
    return j ? (half ? codes.w : codes.z) : (half ? codes.y : codes.x);
  };
  auto weight = [](std::uint32_t word, __nv_bfloat162 scale, __nv_bfloat162 bias) {
    const std::uint32_t biased = cuda::codes_plus_128(word), offset = 0x43004300;
    // 128 is taken off first: it is exact, while 128 * scale in bf16 would cost a quarter of a code step.
    const __nv_bfloat162 code =
        __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&biased), *reinterpret_cast<const __nv_bfloat162*>(&offset));
    const __nv_bfloat162 value = __hfma2(code, scale, bias);
    return *reinterpret_cast<const std::uint32_t*>(&value);
  };
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const std::uint32_t w0 = word(own.codes, j, first), w1 = word(other.codes, j, second);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Nibble pair i of a line meets core matrix 4j + i: two pairs make the 16 inputs of one instruction.
      a[(j * 2 + i / 2) * 4 + i % 2 * 2] = weight(w0 >> 4 * i, scale0, bias0);
      a[(j * 2 + i / 2) * 4 + i % 2 * 2 + 1] = weight(w1 >> 4 * i, scale1, bias1);
    }
  }
}

// A warp's sixteen rows against the tile of tokens, as parts of a sum that its reader completes: [part][token][row].
template <int NT>
__device__ __forceinline__ void store_part(const Q4Work& work, int part, int strip, int first_token, int lane,
                                           const float (&acc)[NT * 4]) {
  const int rows = work.matrices[0].rows, g = lane >> 2, t = lane & 3;
  float* to = work.partials + static_cast<std::int64_t>(part) * work.tokens * rows + strip * 16 + g;
#pragma unroll
  for (int n = 0; n < NT; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = first_token + n * 8 + 2 * t + (i & 1);
      if (token < work.tokens && strip * 16 + g + (i >> 1) * 8 < rows)
        to[static_cast<std::int64_t>(token) * rows + (i >> 1) * 8] = acc[n * 4 + i];
    }
  }
}

// Eight columns of silu(gate) * up: a thread has column g of two tokens per step. Lanes g and g ^ 2 trade a token each:
// elements e and e + 2 of a line are neighbours in the panel, so that four bytes are stored at once.
template <int NT>
__device__ __forceinline__ void store_gated(const Q4Work& work, int column, int first_token, int lane,
                                            const float (&acc)[NT * 4]) {
  const int g = lane >> 2, t = lane & 3, odd = g >> 1 & 1;
  const bool exists = column < work.matrices[0].rows;  // rows come in eights, else no panel (checked at launch)
  const int line = column % cuda::Panel::group / 8;
  std::byte* to = cuda::panel_row(work.gated_panel, first_token, column) + line / 4 * 512 + line % 4 * 4 +
                  ((g & 1) * 2 + (g >> 2)) * 128;
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    float value[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float gate = acc[n * 4 + i], up = acc[n * 4 + 2 + i];
      value[i] = gate / (1.0f + __expf(-gate)) * up;
    }
    if (work.matrices[0].out && exists) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = first_token + n * 8 + 2 * t + i;
        if (token < work.tokens) work.matrices[0].out[token * work.matrices[0].out_stride + column + g] = value[i];
      }
    }
    const float other = __shfl_xor_sync(0xffffffffu, odd ? value[0] : value[1], 8);
    const std::uint32_t pair = odd ? cuda::pack_bf16(other, value[1]) : cuda::pack_bf16(value[0], other);
    if (exists && first_token + n * 8 + 2 * t + odd < work.tokens)
      *reinterpret_cast<std::uint32_t*>(to + n * cuda::Panel::block_bytes + (2 * t + odd) * 16) = pair;
  }
}

// A run of steps of one item over NB tokens, a stage each: all of Shape's, or a quarter of them in the tail.
struct WideRing {
  const std::uint8_t* memory;
  std::uint32_t full, empty;
  int stage = 0, parity = 0;
};
template <class Shape, bool gated, int NB>
__device__ __forceinline__ void multiply_run(WideRing& ring, int steps, int warp, int lane, float (&acc)[NB / 2]) {
  // Ordinary: a strip per warp. Gated: two warps share a strip of gate and one of up, eight rows of each per warp.
  constexpr int apart = Shape::strips / 2 * Q4Tile::bytes;
  const int side = warp & 1;
  const int tiles = (gated ? warp >> 1 : warp) * Q4Tile::bytes;
  constexpr int group_bytes = NB / 8 * cuda::Panel::block_bytes;
  std::uint32_t a[2][16];
#pragma unroll
  for (int n = 0; n < NB / 2; ++n) acc[n] = 0;
  int in_flight = -1;  // the stage that the wgmma not yet waited for reads
  for (int step = 0; step < steps; ++step) {
    cuda::barrier_wait(ring.full + ring.stage * 8, ring.parity);
    const std::uint8_t* base = ring.memory + ring.stage * Shape::stage_bytes;
    // From lane 0: see q4_multiply_together.
    const std::uint32_t blocks = __shfl_sync(0xffffffffu, cuda::shared_address(base + Shape::weight_bytes), 0);
#pragma unroll
    for (int q = 0; q < Shape::TILES; ++q) {
      dequantise_lines<gated>(base + tiles + q * Shape::tile_bytes, apart, side, lane, a[q & 1]);
      cuda::wgmma_fence();
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        cuda::Wgmma<NB>::run(acc, &a[q & 1][m * 4],
                             cuda::matrix_descriptor(blocks + q * group_bytes + m * 256, 128, 1024), 1);
      }
      cuda::wgmma_commit();
      cuda::wgmma_wait<1>();  // the one before is done: its registers and, at a stage's start, its stage are free
      if (q == 0 && in_flight >= 0 && lane == 0) cuda::barrier_arrive(ring.empty + in_flight * 8);
    }
    in_flight = ring.stage;
    if (++ring.stage == Shape::STAGES) ring.stage = 0, ring.parity ^= 1;
  }
  cuda::wgmma_wait<0>(acc);
  if (lane == 0) cuda::barrier_arrive(ring.empty + in_flight * 8);
}

// Parts of a tile that several blocks worked on; whether this one finishes it.
template <class Shape>
__device__ __forceinline__ bool exchange_fragments(const Q4Work& work, const UnitSplit& split, int tile, int warp,
                                                   int lane, float (&acc)[Shape::NB / 2]) {
  return q4_exchange<1, Shape::NB / 8>(work, split, tile, warp, Shape::warps, lane,
                                       *reinterpret_cast<float(*)[1][Shape::NB / 8][4]>(&acc));
}

template <class Shape, bool gated>
__device__ __forceinline__ void q4_wide_consume(const Q4Work& work, const UnitSplit& split, int token_tiles, int tiles,
                                                WideRing ring, int warp, int lane) {
  constexpr int NT = Shape::NB / 8;
  cuda::wait_for_predecessors();
  WideWalk<Shape> walk;
  for (walk.begin(work, split, tiles); !walk.done(); walk.next(work, split)) {
    const int tile = walk.tile, part = walk.part;
    const int first_strip = tile / token_tiles * Shape::strips, first_token = tile % token_tiles * Shape::NB;
    int steps = walk.end - walk.k;
    if constexpr (Shape::whole) {
      walk.k = walk.end - 1;
    } else {
      steps = min(steps, walk.left);
      walk.left -= steps - 1, walk.k += steps - 1;
    }
    if constexpr (gated) {
      const int column = (first_strip / 2 + warp / 2) * 16 + (warp & 1) * 8;
      if constexpr (Shape::tail) {
        if (walk.quarter >= 0) {
          constexpr int quarter = Shape::NB / 4;
          float acc[quarter / 2];
          multiply_run<Shape, gated, quarter>(ring, steps, warp, lane, acc);
          store_gated<quarter / 8>(work, column, first_token + walk.quarter * quarter, lane, acc);
          continue;
        }
      }
      float acc[NT * 4];
      multiply_run<Shape, gated, Shape::NB>(ring, steps, warp, lane, acc);
      if (Shape::whole || exchange_fragments<Shape>(work, split, tile, warp, lane, acc))
        store_gated<NT>(work, column, first_token, lane, acc);
    } else {
      float acc[NT * 4];
      multiply_run<Shape, gated, Shape::NB>(ring, steps, warp, lane, acc);
      if (Shape::whole && work.parts > 1) {
        store_part<NT>(work, part, first_strip + warp, first_token, lane, acc);
        continue;
      }
      if (!Shape::whole && !exchange_fragments<Shape>(work, split, tile, warp, lane, acc)) continue;
      q4_store<1, NT, false>(work, first_strip + warp, first_token, lane, *reinterpret_cast<float(*)[1][NT][4]>(&acc));
    }
  }
}

template <class Shape, bool gated>
__global__ void __launch_bounds__(Shape::threads, 1)
    q4_wide_kernel(const __grid_constant__ Q4Work work, int token_tiles) {
  extern __shared__ __align__(128) std::uint8_t ring[];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const std::uint32_t full = cuda::shared_address(ring + Shape::stage_bytes * Shape::STAGES);
  const std::uint32_t empty = full + Shape::STAGES * 8;
  const int tiles = work.groups * token_tiles;
  const UnitSplit split = wide_split<Shape>(work, tiles);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::STAGES; ++i) {
      cuda::barrier_init(full + i * 8, 1);
      cuda::barrier_init(empty + i * 8, Shape::warps);
    }
    cuda::barrier_init_done();
  }
  __syncthreads();
  if (warp >= Shape::warps) {
    cuda::give_registers<40>();
    if (threadIdx.x == Shape::warps * 32) q4_wide_produce<Shape, gated>(work, split, token_tiles, tiles, ring, full, empty);
  } else {
    cuda::take_registers<232>();
    q4_wide_consume<Shape, gated>(work, split, token_tiles, tiles, {ring, full, empty}, warp, lane);
  }
}

}  // namespace splash::ops
