// 4-bit linear of the portable path (mma.sync, cp.async): two kernels, one order of sums.
//
// Weights are exact at every width, as in the few-row kernel of Hopper (q4_few.cuh): codes become bf16 128 + q,
//   y = sum over groups of  scale * (acc - 128 * X) + bias * X,   X = sum of the group's x (by a product with ones).
// K is cut in eight parts, always: groups in order inside a part, then parts in order. So a row's bits depend on
// nothing but its own numbers: not on the rows beside it, the kernel, the tile or the number of multiprocessors.
//
// rows kernel (up to 16 tokens, bound by the weights' bytes): a warp of a block takes a part; weights go from memory
//   straight into the registers that multiply them (q4_tile.h's order), a group ahead; the parts meet in shared memory.
// mid kernel (17 to 64): 128 or 256 output rows x all tokens a block, and of K some of the parts; groups through a ring of
//   cp.async.
// wide kernel (more tokens, bound by products): 128 output rows x 64 tokens a block, groups through a ring of cp.async.
#pragma once

#include "ops/linear/q4_rows.cuh"
#include "ops/linear/q4_tile.cuh"

namespace splash::ops::portable {

constexpr int k_parts = 8;
constexpr std::uint32_t ones = 0x3F803F80;  // two bf16
__device__ __forceinline__ int part_begin(int groups, int part) { return groups * part / k_parts; }

// Where a strip of a launch lies: its first tile (of the matrix's last strip past the end), and how far the next k is.
struct StripTiles {
  const std::uint8_t* first;
  int step;  // bytes
};
__device__ __forceinline__ StripTiles strip_tiles(const Q4Work& work, int strip) {
  const Q4Strip place = work.gated ? locate_strip<true>(work, strip) : locate_strip<false>(work, strip);
  const Q4Matrix& matrix = work.matrices[place.matrix];
  const Q4Order order = order_of(work, matrix);
  const int index = min(place.index, order.strips - 1);
  return {matrix.tiles + order.at(index, 0) * Q4Tile::bytes, order.step(index) * Q4Tile::bytes};
}
// Tokens first .. of a group in the panel, in blocks of 8. `row_tile`: of the panel.
__device__ __forceinline__ const std::uint8_t* panel_blocks(const Q4Work& work, int row_tile, int first_token) {
  return work.panel + first_token / row_tile * work.panel_tile_bytes +
         first_token % row_tile / 8 * cuda::Panel::block_bytes;
}

// The sums of 8 tokens' inputs: c0, c1 of every lane are tokens 2t, 2t + 1.
__device__ __forceinline__ void sum_inputs(const std::uint32_t (&x)[8], float (&sums)[4]) {
#pragma unroll
  for (int m = 0; m < 4; ++m) cuda::mma_bf16(sums, ones, ones, ones, ones, x[2 * m], x[2 * m + 1]);
}
// A strip against 8 tokens.
__device__ __forceinline__ void multiply(const std::uint32_t (&a)[16], const std::uint32_t (&x)[8], float (&part)[4]) {
#pragma unroll
  for (int m = 0; m < 4; ++m)
    cuda::mma_bf16(part, a[m * 4], a[m * 4 + 1], a[m * 4 + 2], a[m * 4 + 3], x[2 * m], x[2 * m + 1]);
}

// Up to NT * 8 tokens, which are one tile of the panel. Grid: blocks of STRIPS strips.
constexpr int rows_threads = k_parts * 32;
template <int NT, int STRIPS>
constexpr std::size_t rows_shared_bytes = std::size_t{k_parts} * STRIPS * NT * 32 * sizeof(float4);

template <int NT, int STRIPS>
__global__ void __launch_bounds__(rows_threads)
    q4_portable_rows_kernel(const __grid_constant__ Q4Work work) {
  extern __shared__ __align__(16) float4 meet[];  // [part][strip][8 tokens][lane]
  const int part = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int strip = blockIdx.x * STRIPS;
  const int begin = part_begin(work.tiles_k, part), end = part_begin(work.tiles_k, part + 1);
  const std::uint8_t* tiles[STRIPS];
  const int step = strip_tiles(work, strip).step;  // of all: they lie in one group, or in the same of gate and up
#pragma unroll
  for (int s = 0; s < STRIPS; ++s) tiles[s] = strip_tiles(work, strip + s).first + static_cast<std::int64_t>(begin) * step;
  constexpr int group_bytes = NT * cuda::Panel::block_bytes;
  const std::uint8_t* panel = work.panel + begin * group_bytes + lane * 4;
  float acc[STRIPS][NT][4] = {};
  uint4 codes[STRIPS];
  uint2 numbers[STRIPS];
  std::uint32_t next[NT][8];
  auto load = [&](int group) {  // past the end the last one again: loads without branches
    group = min(group, end - 1 - begin);
    // A lane's word of core matrix i is its element of operand B: 128 bytes of a warp, side by side.
    const std::uint8_t* blocks = panel + group * group_bytes;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        next[n][i] = __ldg(reinterpret_cast<const std::uint32_t*>(blocks + n * cuda::Panel::block_bytes + i * 128));
    }
    const int at = group * step;
#pragma unroll
    for (int s = 0; s < STRIPS; ++s) {
      codes[s] = __ldcs(reinterpret_cast<const uint4*>(tiles[s] + at + lane * 16));
      numbers[s] = __ldcs(reinterpret_cast<const uint2*>(tiles[s] + at + Q4Tile::scales_offset + (lane >> 2) * 8));
    }
  };
  if (begin < end) load(0);
  for (int group = 0; group < end - begin; ++group) {
    std::uint32_t x[NT][8];
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int i = 0; i < 8; ++i) x[n][i] = next[n][i];
    }
    Q4Lines lines[STRIPS];
#pragma unroll
    for (int s = 0; s < STRIPS; ++s) lines[s] = Q4Lines(codes[s], numbers[s]);
    load(group + 1);
    float sums[NT][4] = {};
#pragma unroll
    for (int n = 0; n < NT; ++n) sum_inputs(x[n], sums[n]);
#pragma unroll
    for (int s = 0; s < STRIPS; ++s) {
      std::uint32_t a[16];
      lines[s].unpack(a);
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        float product[4] = {};
        multiply(a, x[n], product);
        lines[s].add(product, make_float2(sums[n][0], sums[n][1]), acc[s][n]);
      }
    }
  }
#pragma unroll
  for (int s = 0; s < STRIPS; ++s) {
#pragma unroll
    for (int n = 0; n < NT; ++n)
      meet[((part * STRIPS + s) * NT + n) * 32 + lane] = make_float4(acc[s][n][0], acc[s][n][1], acc[s][n][2], acc[s][n][3]);
  }
  __syncthreads();
  auto total = [&](int s, int n, float(&sum)[4]) {
#pragma unroll
    for (int p = 0; p < k_parts; ++p) {
      const float4 one = meet[((p * STRIPS + s) * NT + n) * 32 + lane];
      sum[0] += one.x, sum[1] += one.y, sum[2] += one.z, sum[3] += one.w;
    }
  };
  // Warp w finishes fragments w, w + 8, ...; gated, a pair of strips is one.
  if (work.gated) {
    for (int i = part; i < STRIPS / 2 * NT; i += k_parts) {
      float sums[2][1][4] = {};
      total(i / NT * 2, i % NT, sums[0][0]);
      total(i / NT * 2 + 1, i % NT, sums[1][0]);
      q4_store<2, 1, true>(work, strip + i / NT * 2, i % NT * 8, lane, sums);
    }
  } else {
    for (int i = part; i < STRIPS * NT; i += k_parts) {
      float sums[1][1][4] = {};
      total(i / NT, i % NT, sums[0][0]);
      q4_store<1, 1, false>(work, strip + i / NT, i % NT * 8, lane, sums);
    }
  }
}

// Grid: row blocks of 8 * STRIPS strips x splits. A block has some of the eight parts of K, a warp of it STRIPS strips with
// NT * 8 tokens (of SIDES times as many), so that a group of the panel is read once for all strips of a row block. Where a
// row block is split, what its blocks make goes to `partials` and the last one to arrive adds it up: nobody waits, and the
// order is that of the parts whoever it is.
template <int SIDES, int STRIPS_>
struct alignas(16) MidShared {
  static constexpr int STRIPS = STRIPS_, strips = 8 * STRIPS;  // of a warp, of a block
  static constexpr int NT = 4, blocks8 = NT * SIDES;  // of 8 tokens: of a warp, of a block
  static constexpr int threads = SIDES * 256;
  static constexpr int resident = SIDES == 2 ? 1 : STRIPS == 2 ? 2 : 3;  // blocks of a multiprocessor
  struct Group {
    std::uint8_t tiles[strips][Q4Tile::bytes];
    std::uint8_t panel[blocks8][cuda::Panel::block_bytes];
  };
  // So that as many blocks as are to be resident fit the 100 KB that a multiprocessor of 8.6, 8.9 and 12.0 has.
  static constexpr int stages_count = SIDES == 1 ? 3 : 4;
  Group stages[stages_count];
  float sums[2][blocks8 * 8];  // of a group's inputs, by turns
  int last;
  // What a thread has of finished parts: in shared memory behind this, where a row block is not split.
  static constexpr int total_words = STRIPS * NT;
  static constexpr std::size_t total_bytes = std::size_t{total_words} * threads * sizeof(float4);
  static constexpr bool holds_total = SIDES == 1;  // both sides' would be more than the 99 KB that every device has
};
// What a split row block leaves: the sum of the first block's parts, then every other part.
__host__ __device__ constexpr int mid_slots(int splits) { return 1 + k_parts - k_parts / splits; }

template <class Shared>
__global__ void __launch_bounds__(Shared::threads, Shared::resident)
    q4_portable_mid_kernel(const __grid_constant__ Q4Work work, int splits) {
  extern __shared__ __align__(128) std::uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  constexpr int STRIPS = Shared::STRIPS, NT = Shared::NT, stages = Shared::stages_count, threads = Shared::threads,
                blocks8 = Shared::blocks8, words = Shared::total_words;
  const int thread = static_cast<int>(threadIdx.x), warp = thread >> 5, lane = thread & 31, side = warp / 8, place = warp % 8;
  const int row_block = static_cast<int>(blockIdx.x) / splits, split = static_cast<int>(blockIdx.x) % splits;
  const int first_strip = row_block * Shared::strips, per_split = k_parts / splits;
  int part = split * per_split;
  const int begin = part_begin(work.tiles_k, part), end = part_begin(work.tiles_k, part + per_split);

  // What this thread copies of every group, in pieces of 16 bytes.
  constexpr int tile_pieces = Q4Tile::bytes / 16, weight_pieces = Shared::strips * tile_pieces;
  constexpr int rounds = (weight_pieces + threads - 1) / threads;
  constexpr int panel_pieces = blocks8 * cuda::Panel::block_bytes / 16;
  static_assert(panel_pieces == threads);
  const std::uint8_t* from[rounds];
  int step[rounds];
#pragma unroll
  for (int i = 0; i < rounds; ++i) {
    const int piece = min(thread + i * threads, weight_pieces - 1);
    const StripTiles tiles = strip_tiles(work, first_strip + piece / tile_pieces);
    step[i] = tiles.step;
    from[i] = tiles.first + static_cast<std::int64_t>(begin) * tiles.step + piece % tile_pieces * 16;
  }
  constexpr int group_bytes = blocks8 * cuda::Panel::block_bytes;
  const std::uint8_t* panel = work.panel + static_cast<std::int64_t>(begin) * group_bytes + thread * 16;
  int asked = begin, ask_stage = 0;
  auto request = [&] {
    if (asked < end) {
      const std::uint32_t to = cuda::shared_address(&shared.stages[ask_stage]) + thread * 16;
#pragma unroll
      for (int i = 0; i < rounds; ++i) {
        if ((i + 1) * threads <= weight_pieces || thread + i * threads < weight_pieces)
          cuda::copy_16(to + i * threads * 16, from[i]);
        from[i] += step[i];
      }
      cuda::copy_16(to + Shared::strips * Q4Tile::bytes, panel);
      panel += group_bytes;
    }
    cuda::commit_copies();
    ++asked;
    ask_stage = ask_stage + 1 == stages ? 0 : ask_stage + 1;
  };
  auto inputs_at = [&](const typename Shared::Group& group, int n, int j) {
    return cuda::shared_address(group.panel[n]) + j * 512 + (lane >> 3) * 128 + (lane & 7) * 16;
  };
  auto add_up_inputs = [&](int stage, int turn) {  // a warp per 8 tokens
    if (warp >= blocks8) return;
    std::uint32_t x[8];
#pragma unroll
    for (int j = 0; j < 2; ++j)
      cuda::load_matrices(*reinterpret_cast<std::uint32_t(*)[4]>(&x[j * 4]), inputs_at(shared.stages[stage], warp, j));
    float sums[4] = {};
    sum_inputs(x, sums);
    if (lane < 4) *reinterpret_cast<float2*>(&shared.sums[turn][warp * 8 + lane * 2]) = make_float2(sums[0], sums[1]);
  };

#pragma unroll
  for (int i = 0; i < stages - 1; ++i) request();
  float acc[STRIPS][NT][4] = {};
  auto* total = reinterpret_cast<float4*>(memory + sizeof(Shared)) + thread;
  const auto partials = [&](int slot) {
    return reinterpret_cast<float4*>(work.partials) +
           static_cast<std::int64_t>(row_block * mid_slots(splits) + slot) * (words * threads) + thread;
  };
  const bool unsplit = Shared::holds_total && splits == 1;
  if (unsplit) {
#pragma unroll
    for (int i = 0; i < words; ++i) total[i * threads] = make_float4(0, 0, 0, 0);
  }
  cuda::wait_copies<stages - 2>();
  __syncthreads();
  if (begin < end) add_up_inputs(0, 0);
  int part_end = part_begin(work.tiles_k, part + 1);
  const int past = part + per_split;
  auto finish_part = [&] {
    float4* slot = unsplit ? total : partials(split == 0 ? 0 : 1 + part - per_split);
    const bool adds = unsplit || (split == 0 && part > 0);
#pragma unroll
    for (int s = 0; s < STRIPS; ++s) {
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        float4& to = slot[(s * NT + n) * threads];
        float(&sum)[4] = acc[s][n];
        if (adds) {
          const float4 before = to;
          sum[0] = before.x + sum[0], sum[1] = before.y + sum[1], sum[2] = before.z + sum[2], sum[3] = before.w + sum[3];
        }
        to = make_float4(sum[0], sum[1], sum[2], sum[3]);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] = 0;
      }
    }
    ++part;
    part_end = part_begin(work.tiles_k, part + 1);
  };
  int at = 0, turn = 0;
  for (int group = begin; group < end; ++group, turn ^= 1) {
    // The next group has arrived too; everyone has left the stage that is filled again.
    cuda::wait_copies<stages - 3>();
    __syncthreads();
    request();
    const int next = at + 1 == stages ? 0 : at + 1;
    if (group + 1 < end) add_up_inputs(next, turn ^ 1);
    while (part_end == group) finish_part();  // parts without a group add nothing
    const typename Shared::Group& stage = shared.stages[at];
#pragma unroll
    for (int s = 0; s < STRIPS; ++s) {
      const Q4Lines lines(stage.tiles[place * STRIPS + s], lane);
      float product[NT][4] = {};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        std::uint32_t x[NT][4], a[8];
#pragma unroll
        for (int n = 0; n < NT; ++n) cuda::load_matrices(x[n], inputs_at(stage, side * NT + n, j));
        lines.unpack_half(j, a);
        // Products that do not wait for each other follow each other.
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int n = 0; n < NT; ++n)
            cuda::mma_bf16(product[n], a[m * 4], a[m * 4 + 1], a[m * 4 + 2], a[m * 4 + 3], x[n][2 * m], x[n][2 * m + 1]);
        }
      }
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        const float2 pair = *reinterpret_cast<const float2*>(&shared.sums[turn][(side * NT + n) * 8 + (lane & 3) * 2]);
        lines.add(product[n], pair, acc[s][n]);
      }
    }
    at = next;
  }
#pragma unroll 1
  while (part < past) finish_part();
  if (!unsplit) {
    // Everybody's sums are in memory before the count says so.
    __syncthreads();
    auto* arrived = reinterpret_cast<unsigned*>(work.exchange) + row_block;
    if (thread == 0) {
      __threadfence();
      shared.last = atomicAdd(arrived, 1u) == static_cast<unsigned>(splits) - 1;
      if (shared.last) *arrived = 0;
      __threadfence();
    }
    __syncthreads();
    if (!shared.last) return;
  }
  const int slots = mid_slots(splits);
#pragma unroll
  for (int s = 0; s < STRIPS; ++s) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      if (unsplit) {
        cuda::take_four(total[(s * NT + n) * threads], acc[s][n]);
        continue;
      }
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
      for (int i = 0; i < slots; ++i) {
        const float4 one = __ldcg(partials(i) + (s * NT + n) * threads);
        sum.x += one.x, sum.y += one.y, sum.z += one.z, sum.w += one.w;
      }
      cuda::take_four(sum, acc[s][n]);
    }
  }
  const int strip = first_strip + place * STRIPS;
  if constexpr (STRIPS % 2 == 0) {
    if (work.gated) return q4_store<STRIPS, NT, true>(work, strip, side * NT * 8, lane, acc);
  }
  q4_store<STRIPS, NT, false>(work, strip, side * NT * 8, lane, acc);
}

// A group of a block's work in shared memory, as it lies in memory.
constexpr int wide_strips = 8, wide_tokens = 64, wide_stages = 3, wide_threads = 256;
struct WideStage {
  std::uint8_t tiles[wide_strips][Q4Tile::bytes];
  std::uint8_t panel[wide_tokens / 8][cuda::Panel::block_bytes];
};
struct WideShared {
  WideStage stages[wide_stages];
  float sums[2][wide_tokens];  // of a group's inputs, by turns
  // What a thread has of the finished parts: touched eight times, so that the registers suffice for two blocks.
  float total[wide_strips * 16 * wide_tokens / wide_threads][wide_threads];
};

// Grid: tiles of tokens x blocks of strips. Warp (r, c) of 4 x 2: strips 2r, 2r + 1; tokens 32c .. 32c + 31.
__global__ void __launch_bounds__(wide_threads, 2) q4_portable_wide_kernel(const __grid_constant__ Q4Work work, int row_tile) {
  extern __shared__ __align__(128) std::uint8_t memory[];
  auto& shared = *reinterpret_cast<WideShared*>(memory);
  constexpr int STRIPS = 2, NT = 4;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = warp >> 1, side = warp & 1;
  const int first_strip = blockIdx.y * wide_strips, first_token = blockIdx.x * wide_tokens;
  const int group_bytes = row_tile / 8 * cuda::Panel::block_bytes, groups = work.tiles_k;

  // What this thread copies of every group, in pieces of 16 bytes: one of the tiles; one of the tiles or (most threads) of
  // the panel; one of the panel, and where there is another, 256 pieces behind it.
  constexpr int tile_pieces = Q4Tile::bytes / 16, weight_pieces = wide_strips * tile_pieces;
  constexpr int pieces = sizeof(WideStage) / 16, more = weight_pieces - wide_threads;
  static_assert(more > 0 && more <= wide_threads && pieces > 3 * wide_threads && pieces - 3 * wide_threads <= more);
  const int thread = static_cast<int>(threadIdx.x);
  auto tile_piece = [&](int piece) {
    return strip_tiles(work, first_strip + piece / tile_pieces).first + piece % tile_pieces * 16;
  };
  const int step = strip_tiles(work, first_strip).step;
  const std::uint8_t* panel = panel_blocks(work, row_tile, first_token) + (thread - more) * 16;
  const std::uint8_t *first = tile_piece(thread), *second = thread < more ? tile_piece(wide_threads + thread) : panel;
  panel += wide_threads * 16;
  auto request = [&](int group) {  // in ascending order
    if (group < groups) {
      const std::uint32_t to = cuda::shared_address(&shared.stages[group % wide_stages]) + thread * 16;
      cuda::copy_16(to, first);
      cuda::copy_16(to + wide_threads * 16, second);
      cuda::copy_16(to + 2 * wide_threads * 16, panel);
      if (thread < pieces - 3 * wide_threads) cuda::copy_16(to + 3 * wide_threads * 16, panel + wide_threads * 16);
      first += step;
      second += thread < more ? step : group_bytes;
      panel += group_bytes;
    }
    cuda::commit_copies();
  };
  auto load_inputs = [&](const WideStage& stage, int n, std::uint32_t(&x)[8]) {
    std::uint32_t half[4];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      cuda::load_matrices(half, cuda::shared_address(stage.panel[n]) + j * 512 + (lane >> 3) * 128 + (lane & 7) * 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[j * 4 + i] = half[i];
    }
  };
  auto add_up_inputs = [&](int group) {  // a warp per 8 tokens
    std::uint32_t x[8];
    float sums[4] = {};
    load_inputs(shared.stages[group % wide_stages], warp, x);
    sum_inputs(x, sums);
    if (lane < 4) *reinterpret_cast<float2*>(&shared.sums[group & 1][warp * 8 + lane * 2]) = make_float2(sums[0], sums[1]);
  };

#pragma unroll
  for (int group = 0; group < wide_stages - 1; ++group) request(group);
  cuda::wait_copies<wide_stages - 2>();
  __syncthreads();
  add_up_inputs(0);
  float acc[STRIPS][NT][4] = {};
#pragma unroll
  for (int i = 0; i < STRIPS * NT * 4; ++i) shared.total[i][threadIdx.x] = 0;
  int part = 0;
  for (int group = 0; group < groups; ++group) {
    // The next group has arrived too; everyone has left the stage that is filled again.
    cuda::wait_copies<wide_stages - 3>();
    __syncthreads();
    request(group + wide_stages - 1);
    if (group + 1 < groups) add_up_inputs(group + 1);
    const WideStage& stage = shared.stages[group % wide_stages];
    Q4Lines lines[STRIPS];
    std::uint32_t a[STRIPS][16];
#pragma unroll
    for (int s = 0; s < STRIPS; ++s) {
      lines[s] = Q4Lines(stage.tiles[row * STRIPS + s], lane);
      lines[s].unpack(a[s]);
    }
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      std::uint32_t x[8];
      load_inputs(stage, side * NT + n, x);
      const float2 pair = *reinterpret_cast<const float2*>(&shared.sums[group & 1][(side * NT + n) * 8 + (lane & 3) * 2]);
#pragma unroll
      for (int s = 0; s < STRIPS; ++s) {
        float product[4] = {};
        multiply(a[s], x, product);
        lines[s].add(product, pair, acc[s][n]);
      }
    }
    while (part < k_parts && part_begin(groups, part + 1) <= group + 1) {  // parts without a group add nothing
      ++part;
#pragma unroll
      for (int s = 0; s < STRIPS; ++s) {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            shared.total[(s * NT + n) * 4 + i][threadIdx.x] += acc[s][n][i];
            acc[s][n][i] = 0;
          }
        }
      }
    }
  }
#pragma unroll
  for (int s = 0; s < STRIPS; ++s) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[s][n][i] = shared.total[(s * NT + n) * 4 + i][threadIdx.x];
    }
  }
  const int strip = first_strip + row * STRIPS;
  if (work.gated) {
    q4_store<STRIPS, NT, true>(work, strip, first_token + side * NT * 8, lane, acc);
  } else {
    q4_store<STRIPS, NT, false>(work, strip, first_token + side * NT * 8, lane, acc);
  }
}

}  // namespace splash::ops::portable
