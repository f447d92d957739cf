// 4-bit linear for many token rows (33 and more: lanes in company, prefill): wgmma with the weights as register operand
// A.
//
// A block has two consumer warp groups of 64 output rows each and a producer warp. A tile's codes become bf16(q * scale
// + bias), rounded once per weight, in registers; tokens come as panel groups from shared memory, so weights never
// travel as bf16. Accumulators run over all of K without a stop. Unpacking 1024 weights is ~60 instructions of a warp
// against 4 wgmma of NB / 2 cycles each: hidden from 64 tokens on.
#pragma once

#include "backend/cuda/wgmma.cuh"
#include "ops/linear/q4_rows.cuh"

namespace splash::ops {

template <int NB_, int TILES_, int STAGES_, bool whole_>
struct Q4WideShape {
  static constexpr int NB = NB_;  // tokens per tile of work
  static constexpr int TILES = TILES_;
  static constexpr int STAGES = STAGES_;
  // Few tokens: stream-K, all blocks share every matrix evenly. Many: whole tiles of work, block by block; partial sums
  // would cost more than the uneven end.
  static constexpr bool whole = whole_;
  static constexpr int warps = 8;
  static constexpr int strips = 8;  // one per warp
  static constexpr int weight_bytes = strips * TILES * 576;
  static constexpr int group_bytes = NB / 8 * cuda::Panel::block_bytes;
  static constexpr int stage_bytes = weight_bytes + TILES * group_bytes;
  static constexpr int producers = 4;  // one alone was late: eight copies a stage, each some 60 cycles to issue
  static constexpr int threads = warps * 32 + 128;  // the producer's warp group gives its registers to the consumers
  static constexpr std::size_t shared_bytes = std::size_t{stage_bytes} * STAGES + STAGES * 16;
  static constexpr std::size_t exchange_bytes = std::size_t{128} * strips * NB;  // per block
  static_assert(TILES % 2 == 0, "the two register buffers alternate inside a stage");
  static_assert(weight_bytes % 128 == 0);
};

// The order in which a block visits its units.
struct UnitOrder {
  UnitSplit split;
  bool whole = false;
  int count = 0;

  __device__ __forceinline__ int unit(int i) const {
    if (!whole) return split.begin(blockIdx.x) + i;
    return (static_cast<int>(blockIdx.x) + i / split.k_steps * static_cast<int>(gridDim.x)) * split.k_steps +
           i % split.k_steps;
  }
};

template <class Shape>
__device__ __forceinline__ UnitOrder wide_order(const Q4Work& work, int token_tiles) {
  UnitOrder order;
  order.split.k_steps = work.tiles_k / Shape::TILES;  // no rest: checked at launch
  const int tiles = (work.strips + Shape::strips - 1) / Shape::strips * token_tiles;
  order.split.units = tiles * order.split.k_steps;
  order.split.blocks = gridDim.x;
  order.whole = Shape::whole;
  if constexpr (Shape::whole) {
    order.count = (tiles - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) /
                  static_cast<int>(gridDim.x) * order.split.k_steps;
  } else {
    order.count = order.split.begin(blockIdx.x + 1) - order.split.begin(blockIdx.x);
  }
  return order;
}

// Producer `part` of four copies its share of the strips; the first also the panel.
template <class Shape>
__device__ __forceinline__ void q4_wide_produce(const Q4Work& work, const UnitOrder& order, int token_tiles,
                                                std::uint8_t* ring, std::uint32_t full, std::uint32_t empty, int part,
                                                int lane) {
  constexpr int share = Shape::strips / Shape::producers;
  auto request = [&](int i, int stage, bool weights, bool panel) {
    const int unit = order.unit(i), tile = unit / order.split.k_steps, k_step = unit % order.split.k_steps;
    const std::uint32_t base = cuda::shared_address(ring + stage * Shape::stage_bytes);
    if (weights) {
      if (lane == 0)
        cuda::barrier_expect(full + stage * 8,
                             share * Shape::TILES * 576 + (part == 0 ? Shape::TILES * Shape::group_bytes : 0));
      __syncwarp();
      if (lane < share) {
        const int here = part * share + lane;
        const int strip = min(tile / token_tiles * Shape::strips + here, work.strips - 1);
        const Q4Strip place = locate_strip<false>(work, strip);
        cuda::bulk_copy(base + here * Shape::TILES * 576,
                        work.matrices[place.matrix].tiles +
                            (static_cast<std::int64_t>(place.index) * work.tiles_k + k_step * Shape::TILES) * 576,
                        Shape::TILES * 576, full + stage * 8);
      }
    }
    if (panel && lane == 0 && part == 0) {
      cuda::bulk_copy(base + Shape::weight_bytes,
                      work.panel + tile % token_tiles * work.panel_tile_bytes +
                          static_cast<std::int64_t>(k_step) * Shape::TILES * Shape::group_bytes,
                      Shape::TILES * Shape::group_bytes, full + stage * 8);
    }
  };
  const int ahead = min(Shape::STAGES, order.count);
  for (int i = 0; i < ahead; ++i) request(i, i, true, false);
  cuda::dependents_may_start();
  cuda::wait_for_predecessors();
  for (int i = 0; i < ahead; ++i) request(i, i, false, true);
  for (int i = Shape::STAGES; i < order.count; ++i) {
    const int stage = i % Shape::STAGES;
    cuda::barrier_wait(empty + stage * 8, (i / Shape::STAGES & 1) ^ 1);
    request(i, stage, true, true);
  }
}

// A tile as four A fragments of 16 inputs: bf16(q * scale + bias) for rows g and g + 8.
__device__ __forceinline__ void dequantise_tile(const std::uint8_t* tile, int lane, std::uint32_t (&a)[16]) {
  const int g = lane >> 2, t = lane & 3, swap = t >> 1;
  const int first = t * 64 + g * 4 + 32 * swap, second = t * 64 + g * 4 + 32 * (1 - swap);
  auto broadcast = [&](int offset) {
    const std::uint32_t value = *reinterpret_cast<const std::uint16_t*>(tile + offset);
    const std::uint32_t both = value | value << 16;
    return *reinterpret_cast<const __nv_bfloat162*>(&both);
  };
  const __nv_bfloat162 scale0 = broadcast(512 + 2 * g), scale1 = broadcast(528 + 2 * g);
  const __nv_bfloat162 bias0 = broadcast(544 + 2 * g), bias1 = broadcast(560 + 2 * g);
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
    const std::uint32_t wa = *reinterpret_cast<const std::uint32_t*>(tile + j * 256 + first);
    const std::uint32_t wb = *reinterpret_cast<const std::uint32_t*>(tile + j * 256 + second);
    const std::uint32_t w0 = swap ? wb : wa, w1 = swap ? wa : wb;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Nibble pair i of a line meets core matrix 4j + i: two pairs make the 16 inputs of one instruction.
      a[(j * 2 + i / 2) * 4 + i % 2 * 2] = weight(w0 >> 4 * i, scale0, bias0);
      a[(j * 2 + i / 2) * 4 + i % 2 * 2 + 1] = weight(w1 >> 4 * i, scale1, bias1);
    }
  }
}

template <class Shape>
__device__ __forceinline__ void q4_wide_consume(const Q4Work& work, const UnitOrder& order, int token_tiles,
                                                std::uint8_t* ring, std::uint32_t full, std::uint32_t empty, int warp,
                                                int lane) {
  constexpr int NT = Shape::NB / 8;
  cuda::wait_for_predecessors();
  int stage = 0, parity = 0;
  const int k_steps = order.split.k_steps;
  for (int i = 0; i < order.count;) {
    const int unit = order.unit(i), tile = unit / k_steps;
    const int steps = min(k_steps - unit % k_steps, order.count - i);
    float acc[NT * 4];
    std::uint32_t a[2][16];
#pragma unroll
    for (int n = 0; n < NT * 4; ++n) acc[n] = 0;
    int in_flight = -1;  // the stage that the wgmma not yet waited for reads
    for (int step = 0; step < steps; ++step) {
      cuda::barrier_wait(full + stage * 8, parity);
      const std::uint8_t* base = ring + stage * Shape::stage_bytes;
      const std::uint32_t blocks = cuda::shared_address(base + Shape::weight_bytes);
#pragma unroll
      for (int q = 0; q < Shape::TILES; ++q) {
        dequantise_tile(base + (warp * Shape::TILES + q) * 576, lane, a[q & 1]);
        cuda::wgmma_fence();
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          cuda::Wgmma<Shape::NB>::run(acc, &a[q & 1][m * 4],
                                      cuda::matrix_descriptor(blocks + q * Shape::group_bytes + m * 256, 128, 1024), 1);
        }
        cuda::wgmma_commit();
        cuda::wgmma_wait<1>();  // the one before is done: its registers and, at a stage's start, its stage are free
        if (q == 0 && in_flight >= 0 && lane == 0) cuda::barrier_arrive(empty + in_flight * 8);
      }
      in_flight = stage;
      if (++stage == Shape::STAGES) stage = 0, parity ^= 1;
    }
    cuda::wgmma_wait<0>();
    if (lane == 0) cuda::barrier_arrive(empty + in_flight * 8);
    float fragments[1][NT][4];
#pragma unroll
    for (int n = 0; n < NT * 4; ++n) fragments[0][n / 4][n % 4] = acc[n];
    if (Shape::whole || q4_exchange<1, NT>(work, order.split, tile, warp, Shape::warps, lane, fragments)) {
      q4_store<1, NT, false>(work, tile / token_tiles * Shape::strips + warp, tile % token_tiles * Shape::NB, lane,
                             fragments);
    }
    i += steps;
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    q4_wide_kernel(const __grid_constant__ Q4Work work, int token_tiles) {
  extern __shared__ __align__(128) std::uint8_t ring[];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const std::uint32_t full = cuda::shared_address(ring + Shape::stage_bytes * Shape::STAGES);
  const std::uint32_t empty = full + Shape::STAGES * 8;
  const UnitOrder order = wide_order<Shape>(work, token_tiles);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::STAGES; ++i) {
      cuda::barrier_init(full + i * 8, Shape::producers);
      cuda::barrier_init(empty + i * 8, Shape::warps);
    }
    cuda::barrier_init_done();
  }
  __syncthreads();
  if (warp >= Shape::warps) {
    cuda::give_registers<40>();
    q4_wide_produce<Shape>(work, order, token_tiles, ring, full, empty, warp - Shape::warps, lane);
  } else {
    cuda::take_registers<232>();
    q4_wide_consume<Shape>(work, order, token_tiles, ring, full, empty, warp, lane);
  }
}

}  // namespace splash::ops
