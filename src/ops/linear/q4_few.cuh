// 4-bit linear for few token rows (8, 16 or 32), bound by the weights' bytes: 576 per 1024 weights, each read once.
//
// One block on every multiprocessor. A weight warp and a panel warp fill a ring of stages (16 strips x 4 tiles of 64
// inputs) by bulk copies, a warp adds up the input norm, the others multiply: weights are operand A of the matrix unit,
// tokens operand B. A word holds eight codes of one output row; codes become bf16 128 + q with one logic operation, and
//   y = sum over groups of  scale * (acc - 128 * X) + bias * X,   X = sum of the group's x (with the panel)
// so no weight is ever rounded. 46 instructions of a warp per tile at 8 rows, 86 at 32: while the matrix unit works a
// scheduler issues nothing else (decision 0018), so both add up.
//
// What a launch costs beside its bytes (about 5 us) is its end: sums of a row block meet in the block and between
// blocks, results go out. Nothing of it may touch local memory: nearly all of the L1 is the ring, so a spill is a trip
// to the L2 (128 bytes of it per thread made the whole kernel 1.6 times as slow).
#pragma once

#include "backend/cuda/panel.cuh"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/wgmma.cuh"
#include "ops/linear/q4_tile.cuh"
#include "ops/linear/q4_work.cuh"

namespace splash::ops {

// A row block that several blocks add up: `count` of them from `first` on, this one is number `mine`. Of more than 8
// tokens number i finishes tokens i, i + count ...: so all end alike, and nobody reads more than a part's worth.
struct Q4Share {
  int row_block, first, count, mine;
};

// K is cut four ways inside a block ("quarters"): a stage's first or second two tiles, of even or odd stages. A side is
// four warps that see the same stages: four sides with a quarter each, or two with two.
template <int NT_, int SIDES_, int STAGES_, int REGISTERS_, int PRODUCER_REGISTERS_>
struct Q4FewShape {
  static constexpr int NT = NT_;  // tokens / 8
  static constexpr int SIDES = SIDES_;
  static constexpr int STAGES = STAGES_;
  static constexpr int REGISTERS = REGISTERS_;  // of a consumer
  static constexpr int PRODUCER_REGISTERS = PRODUCER_REGISTERS_;
  static constexpr int WARPS = 4;   // of a side
  static constexpr int STRIPS = 4;  // of a warp
  static constexpr int TILES = 4;   // of each strip in a stage
  static constexpr int row_block = q4_row_block;
  static constexpr bool all_finish = NT > 1;  // shared row blocks; else the block in which one begins (0020)
  static_assert(WARPS * STRIPS == row_block);
  static constexpr int consumers = WARPS * SIDES;
  static constexpr int quarters = 4 / SIDES;  // of a warp
  static constexpr int group_bytes = NT * (cuda::Panel::block_bytes + 8 * 4);  // with sums
  // Weights of a stage: [half][tile][strip of the half].
  static constexpr int tile_bytes = Q4Order::group * Q4Tile::bytes;
  static constexpr int half_bytes = TILES * tile_bytes;
  static constexpr int weight_bytes = 2 * half_bytes;
  static constexpr int stage_bytes = weight_bytes + TILES * group_bytes;
  static constexpr int threads = consumers * 32 + 128;
  // Where the sides' sums of 8 tokens meet: lines of 8 output rows, [token][row] and padding, so that lanes read lines
  // from different banks.
  static constexpr int line_floats = 68;
  static constexpr int block_floats = row_block * 2 * line_floats;  // of 8 tokens
  static constexpr int meets = SIDES == 4 ? SIDES : 1;  // two sides share theirs
  static constexpr int meet_offset = stage_bytes * STAGES;
  static constexpr int work_offset = meet_offset + meets * NT * block_floats * 4;
  static constexpr int shares_offset = work_offset + sizeof(Q4Work);
  static constexpr int barriers_offset = shares_offset + (all_finish ? 2 * sizeof(Q4Share) : 0);
  static constexpr int scales_offset = barriers_offset + STAGES * 24 + (all_finish ? 16 : 8);
  static constexpr std::size_t shared_bytes = std::size_t{scales_offset} + NT * 8 * 4;
  static_assert(shared_bytes <= 227 * 1024);
  static constexpr std::size_t part_bytes = std::size_t{all_finish ? 2 : 1} * NT * 8 * 1024;  // per block (part_of)
};

__device__ __forceinline__ UnitSplit split_of(const Q4Work& work) {
  UnitSplit split;
  split.k_steps = work.tiles_k;
  split.units = static_cast<unsigned>((work.groups + 1) / 2 * work.tiles_k);
  split.blocks = min(gridDim.x, split.units);
  return split;
}

// The tiles of a block in a linear, cut at the ends of row blocks.
struct Q4Walk {
  const Q4Work& work;
  int tile = 0, end = 0;                // the segment begins at tile
  int row_block = 0, k = 0, count = 0;  // and is [k, k + count) of the row block

  __device__ __forceinline__ explicit Q4Walk(const Q4Work& of) : work(of) {
    const UnitSplit split = split_of(work);
    const unsigned block = min(blockIdx.x, split.blocks);
    tile = split.begin(block), end = block < split.blocks ? split.begin(block + 1) : tile;
  }
  __device__ __forceinline__ bool next() {
    tile += count;
    if (tile >= end) return false;
    row_block = tile / work.tiles_k;
    k = tile - row_block * work.tiles_k;
    count = min(end - tile, work.tiles_k - k);
    return true;
  }
  // Row blocks that begin or end in other blocks: at most a block's first segment (not from k = 0 on) and its last.
  __device__ __forceinline__ bool shared() const { return count < work.tiles_k; }
};

// Place and phase of the ring's stages.
template <int STAGES>
struct Q4Ring {
  int stage = 0, parity = 0;
  __device__ __forceinline__ void advance(int stages) {
    stage += stages;
    while (stage >= STAGES) stage -= STAGES, parity ^= 1;
  }
  // The same without a loop: every few tiles, where each instruction counts.
  template <int stages>
  __device__ __forceinline__ void step() {
    static_assert(stages <= STAGES);
    const bool wraps = stage >= STAGES - stages;
    stage += wraps ? stages - STAGES : stages;
    parity ^= wraps;
  }
};

// The barriers of a ring's stages: weights are there, panel is there, consumers have left.
template <class Shape>
struct Q4Barriers {
  std::uint32_t first;
  __device__ __forceinline__ std::uint32_t weights(int stage) const { return first + stage * 24; }
  __device__ __forceinline__ std::uint32_t panel(int stage) const { return first + stage * 24 + 8; }
  __device__ __forceinline__ std::uint32_t empty(int stage) const { return first + stage * 24 + 16; }
  __device__ __forceinline__ std::uint32_t scales_ready() const { return first + Shape::STAGES * 24; }
  __device__ __forceinline__ std::uint32_t plan_ready() const { return scales_ready() + 8; }
};

// By a thread for each half of the row blocks. The first stages' weights are requested while the predecessor still runs.
// Not more than `ahead` stages are on their way at a time: enough for the latency of memory at full speed (one is not,
// three gain nothing). What a stage has of a half lies in one piece (q4_tile.h): a bulk copy costs its warp some ten
// instructions, and a warp that only fetches gets few turns while others multiply (decision 0018).
template <class Shape>
__device__ __forceinline__ void q4_few_weights(const Q4Work& work, std::uint8_t* ring,
                                               const Q4Barriers<Shape>& barriers, int half) {
  constexpr int ahead = 2;
  Q4Ring<Shape::STAGES> at;
  const std::uint64_t policy = cuda::stream_policy();
  ring += half * Shape::half_bytes;
  for (Q4Walk walk(work); walk.next();) {
    const Q4Half mine = half_of(work, walk.row_block, half);
    const Q4Matrix& matrix = work.matrices[mine.matrix];
    const std::uint8_t* from =
        matrix.tiles + (order_of(work, matrix).group_begin(mine.group) + walk.k * mine.strips) * Q4Tile::bytes;
    const int tile = mine.strips * Q4Tile::bytes;
    for (int done = 0; done < walk.count; done += Shape::TILES) {
      const int tiles = min(Shape::TILES, walk.count - done);
      const int before = at.stage - ahead;  // nothing yet: a fresh barrier's phase before the first is over
      cuda::barrier_wait(barriers.weights(before < 0 ? before + Shape::STAGES : before), at.parity ^ (before < 0));
      cuda::barrier_wait(barriers.empty(at.stage), at.parity ^ 1);
      cuda::barrier_expect(barriers.weights(at.stage), tiles * tile);
      std::uint32_t to = cuda::shared_address(ring + at.stage * Shape::stage_bytes);
      // A group of fewer strips leaves room behind each tile.
      int pieces = mine.whole ? 1 : tile > 0 ? tiles : 0;
      const int bytes = mine.whole ? tiles * tile : tile;
#pragma unroll 1
      for (const std::uint8_t* piece = from; pieces > 0; --pieces, piece += tile, to += Shape::tile_bytes) {
        cuda::bulk_copy(to, piece, bytes, barriers.weights(at.stage), policy);
      }
      from += tiles * tile;
      at.template step<1>();
    }
  }
}

// One lane.
template <class Shape>
__device__ __forceinline__ void q4_few_panels(const Q4Work& work, std::uint8_t* ring,
                                              const Q4Barriers<Shape>& barriers) {
  Q4Ring<Shape::STAGES> at;
  for (Q4Walk walk(work); walk.next();) {
    for (int done = 0; done < walk.count; done += Shape::TILES) {
      const int bytes = min(Shape::TILES, walk.count - done) * Shape::group_bytes;
      cuda::barrier_wait(barriers.empty(at.stage), at.parity ^ 1);
      cuda::barrier_expect(barriers.panel(at.stage), bytes);
      cuda::bulk_copy(cuda::shared_address(ring + at.stage * Shape::stage_bytes + Shape::weight_bytes),
                      work.panel + static_cast<std::int64_t>(walk.k + done) * Shape::group_bytes, bytes,
                      barriers.panel(at.stage));
      at.template step<1>();
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

// The group's sums of tokens 8n + 2t and 8n + 2t + 1.
template <class Shape>
__device__ __forceinline__ float2 q4_sums(const std::uint8_t* blocks, int lane, int n) {
  return *reinterpret_cast<const float2*>(blocks + Shape::NT * cuda::Panel::block_bytes + n * 32 + (lane & 3) * 8);
}

// One group of 64 inputs: a warp's strips against 8 tokens, by m16n8k16.
template <class Shape>
__device__ __forceinline__ void q4_multiply(const std::uint8_t* tiles, const std::uint8_t* blocks, int lane,
                                            float (&acc)[Shape::STRIPS][4]) {
  std::uint32_t x[2][4];
#pragma unroll
  for (int j = 0; j < 2; ++j)
    cuda::load_matrices(x[j], cuda::shared_address(blocks) + j * 512 + (lane >> 3) * 128 + (lane & 7) * 16);
  const float2 sums = q4_sums<Shape>(blocks, lane, 0);
#pragma unroll
  for (int s = 0; s < Shape::STRIPS; ++s) {
    const Q4Lines lines(tiles + s * Q4Tile::bytes, lane);
    std::uint32_t a[16];
    lines.unpack(a);
    float part[4] = {};
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      cuda::mma_bf16(part, a[m * 4], a[m * 4 + 1], a[m * 4 + 2], a[m * 4 + 3], x[m / 2][m % 2 * 2],
                     x[m / 2][m % 2 * 2 + 1]);
    }
    lines.add(part, sums, acc[s]);
  }
}

// The same for 16 or 32 tokens, by the side's four warps together: m64nNk16 with the tokens read from shared memory.
// Both instructions make the same bits (decision 0009, LinearCuda.WidthsKeepBits).
template <class Shape>
__device__ __forceinline__ void q4_multiply_together(const std::uint8_t* tiles, const std::uint8_t* blocks, int lane,
                                                     float (&acc)[Shape::STRIPS][Shape::NT * 4]) {
  constexpr int N = Shape::NT * 4;
  using Product = cuda::Wgmma<Shape::NT * 8>;
  // From lane 0, so that the compiler knows it for the same in all lanes: descriptors are then worked out in uniform
  // registers, where wgmma takes them from.
  const std::uint32_t x = __shfl_sync(0xffffffffu, cuda::shared_address(blocks), 0);
  float part[N];
  float2 sums[Shape::NT];
#pragma unroll
  for (int n = 0; n < Shape::NT; ++n) sums[n] = q4_sums<Shape>(blocks, lane, n);
  std::uint32_t a[2][16];
  Q4Lines next(tiles, lane);
  next.unpack(a[0]);
#pragma unroll
  for (int s = 0; s < Shape::STRIPS; ++s) {
    const Q4Lines lines = next;
    cuda::wgmma_fence();
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      Product::run(part, &a[s & 1][m * 4], cuda::matrix_descriptor(x + m * 256, 128, 1024), m > 0);
    }
    cuda::wgmma_commit();
    if (s + 1 < Shape::STRIPS) {
      next = Q4Lines(tiles + (s + 1) * Q4Tile::bytes, lane);
      next.unpack(a[(s + 1) & 1]);
    }
    cuda::wgmma_wait<0>(part);
#pragma unroll
    for (int n = 0; n < Shape::NT; ++n) {
      lines.add(*reinterpret_cast<float(*)[4]>(&part[n * 4]), sums[n],
                *reinterpret_cast<float(*)[4]>(&acc[s][n * 4]));
    }
  }
}

// The end of a row block's token, by a warp: a lane has a line of the row block, eight output rows that are neighbours
// in the output, so that every access to memory below is whole sectors, and the warp sees all that the row block has of
// the token.
template <class Shape>
struct Q4Finish {
  const Q4Work& work;
  int row_block, token, lane;

  // What this lane's line is: of a matrix, `valid` rows from `column` on; none past the end.
  const Q4Matrix* matrix = nullptr;
  int column = 0, valid = 0;
  float before[8];  // what the results are added to, read before anything is waited for
  float values[8];

  // Lane l has line l; gated, lanes l and l ^ 2 have the same line of gate (l & 2 is 0) and up, half a row block apart,
  // such that sixteen lanes have eight lines.
  __device__ __forceinline__ int line_of() const {
    return work.gated ? (lane & 2) * 8 + (lane >> 2) * 2 + (lane & 1) : lane;
  }
  // Eight warps finish at once, whether there are as many tokens or not.
  __device__ __forceinline__ bool exists() const { return Shape::all_finish || token < work.tokens; }
  __device__ __forceinline__ float* row_at() const { return matrix->out + token * matrix->out_stride + column; }
  static __device__ __forceinline__ bool vectors_at(const float* at) {
    return (reinterpret_cast<std::uintptr_t>(at) & 15) == 0;
  }

  // (quarter 0 + 1) + (2 + 3) of this lane's line.
  __device__ __forceinline__ void read_sums(const float* meet) {
    float part[Shape::meets][8];
    const int line = line_of();
#pragma unroll
    for (int m = 0; m < Shape::meets; ++m) {
      const int eight = Shape::NT == 1 ? 0 : token / 8;
      const auto* at = reinterpret_cast<const float4*>(meet + (m * Shape::NT + eight) * Shape::block_floats +
                                                       line * Shape::line_floats + (token - eight * 8) * 8);
      cuda::take_eight(at[0], at[1], part[m]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (Shape::meets == 4) {
        values[i] = (part[0][i] + part[1][i]) + (part[2][i] + part[3][i]);
      } else {
        values[i] = part[0][i];
      }
    }
  }
  __device__ __forceinline__ void find_line() {
    const int line = line_of();
    const Q4Half half = half_of(work, row_block, line >> 4);
    if (half.strips <= 0) return;
    matrix = &work.matrices[half.matrix];
    column = half.group * (Q4Order::group * 16) + (line & 15) * 8;
    valid = min(8, matrix->rows - column);
  }
  __device__ __forceinline__ void read_ahead() {
#pragma unroll
    for (int i = 0; i < 8; ++i) before[i] = 0;
    if (valid <= 0 || !matrix->accumulate || !exists()) return;
    const float* at = row_at();
    if (valid == 8 && vectors_at(at)) {
      cuda::take_eight(__ldcg(reinterpret_cast<const float4*>(at)), __ldcg(reinterpret_cast<const float4*>(at) + 1), before);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (i < valid) before[i] = __ldcg(at + i);
      }
    }
  }

  // The parts of a row block that several blocks worked on. A word of the exchange that nobody has written holds
  // `q4_absent`, a NaN that no sum has (arithmetic makes another one): so the words carry their own flags. Whoever
  // finishes the token polls the words, adds them in block order and leaves `q4_absent`. All blocks are resident at
  // once (checked at launch) and nobody polls before he has sent what earlier blocks wait for, so waiting ends.
  // Where all blocks finish, a block has two parts, the second of the row block that begins in it; else one.
  __device__ __forceinline__ uint4* part_of(int block, bool begins) const {
    const std::int64_t part = Shape::all_finish ? static_cast<std::int64_t>(block) * 2 + begins : block;
    return work.sums + (part * (Shape::NT * 8) + token) * 64 + lane;
  }
  __device__ __forceinline__ void send(bool begins) const {
    uint4* to = part_of(blockIdx.x, begins);
    auto word = [](float value) {
      const std::uint32_t bits = __float_as_uint(value);
      return bits == q4_absent ? 0x7fffffffu : bits;
    };
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const float* from = &values[v * 4];
      cuda::store_volatile(to + v * 32, make_uint4(word(from[0]), word(from[1]), word(from[2]), word(from[3])));
    }
  }
  // Adds parts number `next` on to `values`; `at(i)`: where number i lies. `count` is read where it is used: no register.
  template <class At>
  __device__ __forceinline__ void add_parts(int next, const int& count, At&& at) {
    constexpr int together = 7;  // read at once
    for (; next < count; next += together) {
      uint4 got[together][2] = {};
#pragma unroll
      for (int p = 0; p < together; ++p) {
        // Where all blocks read at once, no more than the L2 must deliver. Else whether needed or not: what only some
        // paths set, the compiler keeps registers for everywhere.
        if (Shape::all_finish && next + p >= count) break;
        uint4* from = at(min(next + p, count - 1));
        got[p][0] = cuda::load_volatile(from), got[p][1] = cuda::load_volatile(from + 32);
      }
#pragma unroll
      for (int p = 0; p < together; ++p) {
        if (next + p >= count) break;
        uint4* from = at(next + p);
#pragma unroll
        for (int v = 0; v < 2; ++v) {
          uint4& word = got[p][v];
          while (word.x == q4_absent || word.y == q4_absent || word.z == q4_absent || word.w == q4_absent) {
            word = cuda::load_volatile(from + v * 32);
          }
          from[v * 32] = make_uint4(q4_absent, q4_absent, q4_absent, q4_absent);
          float* to = &values[v * 4];
          to[0] += __uint_as_float(word.x), to[1] += __uint_as_float(word.y);
          to[2] += __uint_as_float(word.z), to[3] += __uint_as_float(word.w);
        }
      }
    }
  }

  __device__ __forceinline__ void store_plain() {
    const bool mine = valid > 0 && exists();
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[i] += before[i];
      squares = fmaf(values[i], values[i], squares);
    }
    if (mine) {
      float* to = row_at();
      if (valid == 8 && vectors_at(to)) {
        reinterpret_cast<float4*>(to)[0] = make_float4(values[0], values[1], values[2], values[3]);
        reinterpret_cast<float4*>(to)[1] = make_float4(values[4], values[5], values[6], values[7]);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (i < valid) to[i] = values[i];
        }
      }
    }
    if (!work.gain) return;
    if (mine) {  // of all eight lines of a group or of none
      float gain[8];
      cuda::take_eight(__ldg(reinterpret_cast<const float4*>(work.gain + column)),
           __ldg(reinterpret_cast<const float4*>(work.gain + column) + 1), gain);
#pragma unroll
      for (int i = 0; i < 8; ++i) gain[i] *= values[i];
      cuda::store_line(work.normed_panel, token, column, gain);
    }
    if (!mine) squares = 0;
#pragma unroll
    for (int distance = 1; distance < 32; distance <<= 1) squares += __shfl_xor_sync(0xffffffffu, squares, distance);
    if (lane == 0) work.squares_out[row_block * Q4Work::squares_stride + token] = squares;
  }
  // Two lanes share a line's eight outputs, the gate lane takes the first four. Sixteen lanes have a group of the panel.
  __device__ __forceinline__ void store_gated() {
    const bool second = lane & 2;
    float out[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float mine = second ? values[4 + i] : values[i];
      const float other = __shfl_xor_sync(0xffffffffu, second ? values[i] : values[4 + i], 2);
      const float gate = second ? other : mine, up = second ? mine : other;
      out[i] = gate / (1.0f + __expf(-gate)) * up;
    }
    if (valid <= 0 || !exists()) return;
    if (work.matrices[0].out) {
      float* to = work.matrices[0].out + token * work.matrices[0].out_stride + column + second * 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (second * 4 + i < valid) to[i] = out[i];
      }
    }
    cuda::store_half_line(work.gated_panel, token, column + second * 4, out);
  }
  __device__ __forceinline__ void store(const float* scales) {
    if (work.squares_in) {
      const float scale = scales[token];
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] *= scale;
    }
    if (work.gated) {
      store_gated();
    } else {
      store_plain();
    }
  }
};

// The sides' sums of a row block into shared memory: lines as Q4Finish reads them.
template <class Shape>
__device__ __forceinline__ void q4_bring(float* meet, int warp, int lane,
                                         const float (&acc)[Shape::quarters][Shape::STRIPS][Shape::NT * 4]) {
  constexpr bool in_turns = Shape::meets == 1;
  const int side = warp / Shape::WARPS, place = warp % Shape::WARPS;
  float* to = meet + (in_turns ? 0 : side) * Shape::NT * Shape::block_floats +
              place * Shape::STRIPS * 2 * Shape::line_floats + (lane & 3) * 16 + (lane >> 2);
  cuda::block_barrier<1>(Shape::consumers * 32);  // what was here before has been read
#pragma unroll
  for (int turn = in_turns ? 1 : 0; turn >= 0; --turn) {  // side 1 leaves its sums, side 0 adds its own
    if (!in_turns || side == turn) {
#pragma unroll
      for (int n = 0; n < Shape::NT; ++n) {
#pragma unroll
        for (int line = 0; line < 2 * Shape::STRIPS; ++line) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float* at = to + n * Shape::block_floats + line * Shape::line_floats + i * 8;
            const int s = line / 2, j = n * 4 + line % 2 * 2 + i;
            float sum = acc[0][s][j];
            if constexpr (Shape::quarters == 2) sum += acc[1][s][j];
            if (in_turns && turn == 0) sum += *at;
            *at = sum;
          }
        }
      }
    }
    if (turn == 1) cuda::block_barrier<3>(Shape::consumers * 32);
  }
}

// Two tiles of a stage, from its tile `first` on, of which `count` are there (none, if it is not positive).
template <class Shape>
__device__ __forceinline__ void q4_take_two(const std::uint8_t* base, int place, int first, int count, int lane,
                                            float (&acc)[Shape::STRIPS][Shape::NT * 4]) {
  const std::uint8_t* tiles = base + (place >> 1) * Shape::half_bytes + (place & 1) * Shape::STRIPS * Q4Tile::bytes +
                              first * Shape::tile_bytes;
  const std::uint8_t* blocks = base + Shape::weight_bytes + first * Shape::group_bytes;
  if constexpr (Shape::NT == 1) {
    if (count >= 2) {  // in one go: what the second tile reads is on its way while the first is multiplied
      q4_multiply<Shape>(tiles, blocks, lane, acc);
      q4_multiply<Shape>(tiles + Shape::tile_bytes, blocks + Shape::group_bytes, lane, acc);
    } else if (count > 0) {
      q4_multiply<Shape>(tiles, blocks, lane, acc);
    }
  } else {
#pragma unroll 1
    for (int q = 0; q < min(count, 2); ++q) {
      q4_multiply_together<Shape>(tiles + q * Shape::tile_bytes, blocks + q * Shape::group_bytes, lane, acc);
    }
  }
}

// The end of a segment of 8 tokens: eight warps finish a token each if the row block begins in this block, which does its
// share of it last and so seldom waits for the others; else they send it. The other warps go on.
template <class Shape>
__device__ __forceinline__ void q4_finish_at_once(const Q4Work& work, const Q4Walk& walk, const float* meet,
                                                  const float* scales, const Q4Barriers<Shape>& barriers, int warp,
                                                  int lane) {
  constexpr int finishers = 8;
  if (warp >= finishers) {
    __syncwarp();
    cuda::block_barrier_arrive<2>(Shape::consumers * 32);
    return;
  }
  Q4Finish<Shape> finish{
      .work = work, .row_block = walk.row_block, .token = cuda::opaque(warp), .lane = cuda::opaque(lane)};
  const bool begins = walk.k == 0;
  if (begins) {
    finish.find_line();
    finish.read_ahead();
  }
  cuda::block_barrier<2>(Shape::consumers * 32);
  finish.read_sums(meet);
  if (!begins) {
    finish.send(false);
    return;
  }
  if (walk.shared()) {
    finish.add_parts(static_cast<int>(blockIdx.x) + 1, split_of(work).last_block(walk.row_block) + 1,
                     [&](int block) { return finish.part_of(block, false); });
  }
  if (work.squares_in) cuda::barrier_wait(barriers.scales_ready(), 0);
  finish.store(scales);
}

template <class Shape>
__device__ __forceinline__ void q4_few_consume(const Q4Work& work, std::uint8_t* memory,
                                               const Q4Barriers<Shape>& barriers, int warp, int lane) {
  constexpr int NT = Shape::NT;
  const int side = warp / Shape::WARPS, place = warp % Shape::WARPS;
  const int stage_parity = Shape::SIDES == 4 ? side >> 1 : side;
  const float* scales = reinterpret_cast<const float*>(memory + Shape::scales_offset);
  auto* meet = reinterpret_cast<float*>(memory + Shape::meet_offset);
  cuda::wait_for_predecessors();  // before the scratch and the outputs that a predecessor may still use
  Q4Ring<Shape::STAGES> start;    // of the next segment
  int index = 0;                  // of its first stage
  const auto take_segment = [&](int count, float(&acc)[Shape::quarters][Shape::STRIPS][NT * 4]) {
    const int stages = (count + Shape::TILES - 1) / Shape::TILES;
    Q4Ring<Shape::STAGES> at = start;
    int i = (index ^ stage_parity) & 1;
    at.advance(i);
    for (; i < stages; i += 2) {
      cuda::barrier_wait(barriers.panel(at.stage), at.parity);
      cuda::barrier_wait(barriers.weights(at.stage), at.parity);
      const std::uint8_t* base = memory + at.stage * Shape::stage_bytes;
      const int left = count - i * Shape::TILES;
      if constexpr (Shape::quarters == 1) {
        const int first = (side & 1) * 2;
        q4_take_two<Shape>(base, place, first, left - first, lane, acc[0]);
      } else {
        q4_take_two<Shape>(base, place, 0, left, lane, acc[0]);
        q4_take_two<Shape>(base, place, 2, left - 2, lane, acc[1]);
      }
      __syncwarp();
      if (lane == 0) cuda::barrier_arrive(barriers.empty(at.stage));
      at.template step<2>();
    }
    start.advance(stages);
    index += stages;
    q4_bring<Shape>(meet, warp, lane, acc);
  };
  Q4Walk walk(work);
  if constexpr (!Shape::all_finish) {
    while (walk.next()) {
      float acc[Shape::quarters][Shape::STRIPS][NT * 4] = {};
      take_segment(walk.count, acc);
      q4_finish_at_once<Shape>(work, walk, meet, scales, barriers, warp, lane);
    }
    return;
  }
  // A row block that is all this block's is finished where it ends, by all warps; parts of others are sent there and
  // finished last, by half of the warps each, so that nobody waits long.
  const auto* shares = reinterpret_cast<const Q4Share*>(memory + Shape::shares_offset);
  constexpr int half = Shape::consumers / 2;
  for (bool more = true; more;) {
    more = walk.next();
    if (more) {
      float acc[Shape::quarters][Shape::STRIPS][NT * 4] = {};
      take_segment(walk.count, acc);
      cuda::block_barrier<2>(Shape::consumers * 32);
    }
    const bool sends = more && walk.shared();
    const Q4Share* share = nullptr;
    if (!more) {
      cuda::barrier_wait(barriers.plan_ready(), 0);
      share = &shares[warp / half];
      if (share->count == 0) break;
    }
    if (!sends && work.squares_in) cuda::barrier_wait(barriers.scales_ready(), 0);
    const int row_block = share ? share->row_block : walk.row_block;
    const int first = share ? share->mine + warp % half * share->count : warp,
              stride = share ? half * share->count : Shape::consumers;
#pragma unroll 1
    for (int token = cuda::opaque(first); token < work.tokens; token += stride) {
      Q4Finish<Shape> finish{.work = work, .row_block = row_block, .token = token, .lane = cuda::opaque(lane)};
      if (sends) {
        finish.read_sums(meet);
        finish.send(walk.k == 0);
        continue;
      }
      finish.find_line();
      finish.read_ahead();
      if (share) {
#pragma unroll
        for (float& value : finish.values) value = -0.0f;  // -0 + x is x, whatever x
        finish.add_parts(0, share->count, [&](int part) { return finish.part_of(share->first + part, part == 0); });
      } else {
        finish.read_sums(meet);
      }
      finish.store(scales);
    }
  }
}

// The row blocks that this block shares with others: of its first segment, and of its last where it begins one.
__device__ __forceinline__ void q4_few_plan(const Q4Work& work, Q4Share (&shares)[2]) {
  shares[0].count = shares[1].count = 0;
  const UnitSplit split = split_of(work);
  for (Q4Walk walk(work); walk.next();) {
    if (!walk.shared()) continue;
    const int first = split.first_block(walk.row_block), last = split.last_block(walk.row_block);
    shares[walk.k == 0] = {walk.row_block, first, last - first + 1, static_cast<int>(blockIdx.x) - first};
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1) q4_few_kernel(const __grid_constant__ Q4Work given) {
  extern __shared__ __align__(128) std::uint8_t memory[];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const Q4Barriers<Shape> barriers{cuda::shared_address(memory + Shape::barriers_offset)};
  // In shared memory the work's fields are read where they are used: from the parameters the compiler would keep them
  // in registers that the products need.
  auto& work = *reinterpret_cast<Q4Work*>(memory + Shape::work_offset);
  for (int i = threadIdx.x; i < static_cast<int>(sizeof(Q4Work) / 4); i += Shape::threads) {
    reinterpret_cast<std::uint32_t*>(&work)[i] = reinterpret_cast<const std::uint32_t*>(&given)[i];
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::STAGES; ++i) {
      cuda::barrier_init(barriers.weights(i), 2);  // a thread for each half
      cuda::barrier_init(barriers.panel(i), 1);
      cuda::barrier_init(barriers.empty(i), Shape::consumers / 2);  // those of even or of odd stages
    }
    cuda::barrier_init(barriers.scales_ready(), 1);
    if (Shape::all_finish) cuda::barrier_init(barriers.plan_ready(), 1);
    cuda::barrier_init_done();
  }
  __syncthreads();
  if (warp < Shape::consumers) {
    cuda::take_registers<Shape::REGISTERS>();
    q4_few_consume<Shape>(work, memory, barriers, warp, lane);
    return;
  }
  cuda::give_registers<Shape::PRODUCER_REGISTERS>();
  const int role = warp - Shape::consumers;
  if (role == 0) {
    if (lane < 2) q4_few_weights<Shape>(work, memory, barriers, lane);
    __syncwarp();
    cuda::dependents_may_start();
  } else if (role == 1) {
    cuda::wait_for_predecessors();
    if (lane == 0) q4_few_panels<Shape>(work, memory, barriers);
  } else if (role == 2 && (Shape::all_finish || work.squares_in)) {
    if constexpr (Shape::all_finish) {
      if (lane == 0) {
        q4_few_plan(work, *reinterpret_cast<Q4Share(*)[2]>(memory + Shape::shares_offset));
        cuda::barrier_arrive(barriers.plan_ready());
      }
      __syncwarp();
      if (!work.squares_in) return;
    }
    cuda::wait_for_predecessors();
    q4_input_scales<Shape::NT>(work, lane, reinterpret_cast<float*>(memory + Shape::scales_offset));
    __syncwarp();
    if (lane == 0) cuda::barrier_arrive(barriers.scales_ready());
  }
}

}  // namespace splash::ops
