// 4-bit linear for few token rows (8, 16 or 32), bound by the weights' bytes: 576 per 1024 weights, each read once.
//
// One block on every multiprocessor. Two warps for weights and one for the panel fill a ring of stages (8 or 16 strips
// x 2 or 4 tiles of 64 inputs) by bulk copies, one looks for who shares what and adds up the input norm, sixteen
// multiply: weights are operand A of the matrix unit, tokens operand B. A word holds eight codes of one output row;
// codes become bf16 128 + q with one logic operation, and
//   y = sum over groups of  scale * (acc - 128 * X) + bias * X,   X = sum of the group's x (with the panel)
// so no weight is ever rounded. 52 instructions of a warp per tile at 8 rows, 86 at 32: while the matrix unit works a
// scheduler issues little else (decisions 0018, 0025), so both add up.
//
// What a launch costs beside its bytes is its end: sums of a row block meet in the block and between blocks, results go
// out (decision 0022); so a block has one part of a row block at most (q4_split.h, decision 0023). Its code runs once a
// launch, cold, at two to six cycles an instruction: it has no divisions and asks for what it reads before it needs it.
// Nothing of it may touch local memory: nearly all of the L1 is the ring, so a spill is a trip to the L2 (128 bytes of
// it per thread made the whole kernel 1.6 times as slow).
#pragma once

#include "backend/cuda/panel.cuh"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/wgmma.cuh"
#include "ops/linear/q4_tile.cuh"
#include "ops/linear/q4_work.cuh"

namespace splash::ops {

// A row block that several blocks add up, `count` of them from `first` on, and of which this one finishes tokens
// `mine`, `mine + step` ...: so all end alike, and nobody reads more than a part's worth (0020).
struct Q4Share {
  int row_block, first, count, mine, step;
  int outputs;  // where its rows go: which pair
  int warps;    // of the block
};

// Half a row block as its end needs it: `rows` output rows of a matrix (none past its end), `column` on; gated, of gate
// and up. `out` is the first one's of token 0.
struct alignas(16) Q4Output {
  float* out;
  int stride;  // elements between tokens
  int column, rows;
  int accumulate;
};

// A row block has 16 strips or, where a multiprocessor has one at most, 8 (`HALVES`, decision 0026). K is cut two or
// four ways inside a block: sides of eight or four warps, two strips a warp, take tiles by turns. Sixteen warps at
// every width: one that waits for its products leaves a scheduler to three others (decision 0025).
//
// All widths have one order of adding up. With 8 strips that is four sums, of every fourth turn each: four sides' with
// up to 8 tokens, where two strips share what a warp reads of the tokens; with more, where that is read by the matrix
// unit, two sides of eight warps with one strip each have two of them each (`apiece`).
template <int NT_, int HALVES_, bool GATED_, int STAGES_>
struct Q4FewShape {
  static constexpr int NT = NT_;          // tokens / 8
  static constexpr int HALVES = HALVES_;  // of eight strips, that a row block has
  // Q4Work::gated; a kernel of its own, because what a step runs by turns has to fit the instruction caches.
  static constexpr bool GATED = GATED_;
  static constexpr int STAGES = STAGES_;
  static constexpr int REGISTERS = 112, PRODUCER_REGISTERS = 32;
  static constexpr bool apiece = HALVES == 1 && NT > 1;
  static constexpr int SIDES = HALVES == 1 && !apiece ? 4 : 2;
  static constexpr int WARPS = 16 / SIDES;                 // of a side
  static constexpr int STRIPS = apiece ? 1 : 2, SUMS = 2;  // of a warp
  static constexpr int turn = 2;  // tiles of each strip that a side takes before the next side does
  // A stage is a side's: of one turn or, with few tokens or strips, where what a warp does around its products counts,
  // of two. So its first tile lies `turn` behind that of the stage before, or `back` where that was the last side's.
  static constexpr int turns = NT == 1 || apiece ? 2 : 1;
  static constexpr int TILES = turns * turn;   // of each strip in a stage
  static constexpr int round = SIDES * TILES;  // of a stage of each side
  static constexpr int back = round - (SIDES - 1) * turn;
  static constexpr int apart = SIDES * turn;  // tiles from one turn of a side to its next
  // Stages on their way at a time, while the launch before still runs and after. Fewer do not keep memory busy; more take
  // it from blocks that are still at work (their last bytes are what everybody waits for) and lengthen every other trip
  // to the L2: nine at first instead of three cost a step of 8 rows 6 % (0022).
  static constexpr int ahead_at_first = 8 / (TILES * HALVES), ahead = 2 * ahead_at_first;
  static constexpr int halves_at_once = NT == 4 ? HALVES : 1;  // of a row block, that a warp finishes
  // Two warps fetch weights, each those of a half or, of row blocks of one half, every other stage. Then a place in the
  // ring is always the same warp's: one that looks for the arrival of an earlier stage would miss it once the other
  // warp had filled its place again.
  static constexpr bool fetch_by_stage = HALVES == 1;
  static_assert(!fetch_by_stage || (STAGES % 2 == 0 && ahead_at_first % 2 == 0));
  static constexpr int row_block = WARPS * STRIPS;  // strips
  static_assert(row_block == HALVES * Q4Order::group);
  static constexpr int consumers = WARPS * SIDES;
  static constexpr int group_bytes = NT * (cuda::Panel::block_bytes + 8 * 4);  // with sums
  // Tiles of a strip in one of the turns of a stage that begins `left` tiles before the segment's end, not positive
  // where it has none; the same at least 0; of the whole stage.
  static __device__ __forceinline__ int reach(int left, int which) { return min(left - which * apart, turn); }
  static __device__ __forceinline__ int tiles_of(int left, int which) { return max(reach(left, which), 0); }
  static __device__ __forceinline__ int tiles_of(int left) {
    int all = tiles_of(left, 0);
#pragma unroll
    for (int i = 1; i < turns; ++i) all += tiles_of(left, i);
    return all;
  }
  // From a stage's first tile to that of the next stage, which is `side`'s, or the first one's where it is SIDES.
  static __device__ __forceinline__ int to_next(int& side) {
    const bool last = side == SIDES;
    side = last ? 1 : side + 1;
    return last ? back : turn;
  }
  static __device__ __forceinline__ int stages_of(int tiles) {
    const int rest = tiles % round;
    int all = tiles / round * SIDES;
#pragma unroll
    for (int side = SIDES - 1; side >= 0; --side) all += rest > side * turn;
    return all;
  }
  // Weights of a stage: [half][tile][strip of the half].
  static constexpr int tile_bytes = Q4Order::group * Q4Tile::bytes;
  static constexpr int half_bytes = TILES * tile_bytes;
  static constexpr int weight_bytes = HALVES * half_bytes;
  static constexpr int stage_bytes = weight_bytes + TILES * group_bytes;
  static constexpr int threads = consumers * 32 + 128;
  // Where the sides' sums of 8 tokens meet: lines of 8 output rows, [token][row] and padding, so that lanes read lines
  // from different banks.
  static constexpr int line_floats = 68;
  static constexpr int block_floats = row_block * 2 * line_floats;  // of 8 tokens
  static constexpr int meets = NT == 4 ? 1 : SIDES;  // with many tokens two sides share theirs
  static constexpr int meet_offset = stage_bytes * STAGES;
  static constexpr int work_offset = meet_offset + meets * NT * block_floats * 4;
  // Both halves of the segment at hand, of the one before and of two shares.
  static constexpr int outputs_offset = work_offset + sizeof(Q4Work);
  static constexpr int shares_offset = outputs_offset + 4 * 2 * sizeof(Q4Output);
  static constexpr int barriers_offset = shares_offset + 2 * sizeof(Q4Share);
  static constexpr int scales_offset = barriers_offset + STAGES * 24 + 24;
  static constexpr std::size_t shared_bytes = std::size_t{scales_offset} + NT * 8 * 4;
  static_assert(shared_bytes <= 227 * 1024);
  // Parts of row blocks that several blocks work on: words of 16 bytes, [token][half][lane], two parts a block.
  static constexpr int part_words = NT * 8 * HALVES * 32, parts = 2;
  static constexpr std::size_t part_bytes = std::size_t{parts} * part_words * sizeof(uint4);  // of a block
};

// The tiles of a block in a linear, cut at the ends of row blocks: first those that others work on as well, so that its
// parts of them are long there when they are wanted, then its own.
struct Q4Walk {
  const Q4Work& work;
  int left;                     // common tiles from the segment on
  int own;                      // row blocks behind them
  int row_block, k, count = 0;  // the segment is [k, k + count) of the row block

  __device__ __forceinline__ explicit Q4Walk(const Q4Work& of) : work(of), own(static_cast<int>(of.split.whole)) {
    const int tile = work.split.begin(blockIdx.x);
    left = work.split.begin(blockIdx.x + 1) - tile;
    row_block = work.split.row_block(tile);
    k = tile - row_block * work.tiles_k;
  }
  __device__ __forceinline__ bool next() {
    if (left > 0) {
      left -= count;
      if (count > 0) ++row_block, k = 0;
      if (left > 0) {
        count = cuda::opaque(min(left, work.tiles_k - k));
        return true;
      }
      count = 0;
    }
    if (--own < 0) return false;
    row_block = count == 0 ? work.split.own_row_block(blockIdx.x) : row_block + static_cast<int>(work.split.blocks);
    k = 0, count = work.tiles_k;
    return true;
  }
  // Row blocks that begin or end in other blocks: at most a block's first segment (not from k = 0 on) and the last of
  // the common ones.
  __device__ __forceinline__ bool shared() const { return count < work.tiles_k; }
  // Of a whole warp: how many blocks before and behind this one work on the row block.
  __device__ __forceinline__ int before(int lane) const {
    int count = 0;
    for (unsigned some = 32; some == 32; count += some) {
      const int block = static_cast<int>(blockIdx.x) - count - lane;
      some = __popc(__ballot_sync(0xffffffffu, block > 0 && work.split.begin(block) > row_block * work.tiles_k));
    }
    return count;
  }
  __device__ __forceinline__ int behind(int lane) const {
    int count = 0;
    for (unsigned some = 32; some == 32; count += some) {
      const unsigned block = blockIdx.x + 1 + count + lane;
      some = __popc(__ballot_sync(
          0xffffffffu, block < work.split.sharing && work.split.begin(block) < (row_block + 1) * work.tiles_k));
    }
    return count;
  }
};

// Place and phase of the ring's stages.
template <int STAGES>
struct Q4Ring {
  int stage = 0, parity = 0;
  __device__ __forceinline__ void advance(int stages) {
    const unsigned next = static_cast<unsigned>(stage + stages);
    stage = static_cast<int>(next % STAGES);
    parity ^= next / STAGES & 1;
  }
  // The same where each instruction counts.
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
  // The launch before is done everywhere, so that more weights may be on their way.
  __device__ __forceinline__ std::uint32_t alone() const { return scales_ready() + 16; }
};

// By two warps (`which`: fetch_by_stage), of each of which one thread asks: beside sixteen warps that multiply it gets
// few turns (0018). The first stages' weights are requested while the predecessor still runs, as the first thing a
// block does: `begun` is called, by the whole warp, when its share of ahead_at_first stages is on its way, or all there
// are. What a turn has of a half lies in one piece (q4_tile.h).
template <class Shape, class Begun>
__device__ __forceinline__ void q4_few_weights(const Q4Work& work, std::uint8_t* ring,
                                               const Q4Barriers<Shape>& barriers, int which, bool asks,
                                               Begun&& begun) {
  constexpr bool by_stage = Shape::fetch_by_stage;
  constexpr int at_first = by_stage ? Shape::ahead_at_first / 2 : Shape::ahead_at_first;
  static_assert(at_first > 0);
  const int half = by_stage ? 0 : which;
  int asked = 0, pace = Shape::ahead_at_first;
  Q4Ring<Shape::STAGES> at;
  const std::uint64_t policy = cuda::stream_policy();
  ring += half * Shape::half_bytes;
  for (Q4Walk walk(work); walk.next();) {
    const Q4Half mine = half_of<Shape>(work, walk.row_block, half);
    const Q4Matrix& matrix = work.matrices[mine.matrix];
    const std::uint8_t* from =
        matrix.tiles + (order_of(work, matrix).group_begin(mine.group) + walk.k * mine.strips) * Q4Tile::bytes;
    const int tile = mine.strips * Q4Tile::bytes;
#pragma unroll 1
    for (int left = walk.count, side = 1, step; left > 0; left -= step, from += step * tile) {
      step = Shape::to_next(side);
      const int stage = at.stage, parity = at.parity;
      at.template step<1>();
      if (by_stage && stage % 2 != which) continue;
      if (pace == Shape::ahead_at_first && cuda::barrier_passed(barriers.alone(), 0)) pace = Shape::ahead;
      const int before = stage - pace;  // nothing yet: a fresh barrier's phase before the first is over
      cuda::barrier_wait(barriers.weights(before < 0 ? before + Shape::STAGES : before), parity ^ (before < 0));
      cuda::barrier_wait(barriers.empty(stage), parity ^ 1);
      if (asks) {
        cuda::barrier_expect(barriers.weights(stage), Shape::tiles_of(left) * tile);
        const std::uint32_t to = cuda::shared_address(ring + stage * Shape::stage_bytes);
        if (mine.whole) {
#pragma unroll
          for (int i = 0; i < Shape::turns; ++i) {
            if (i > 0 && left <= i * Shape::apart) break;
            cuda::bulk_copy(to + i * Shape::turn * Shape::tile_bytes, from + i * Shape::apart * Shape::tile_bytes,
                            Shape::reach(left, i) * Shape::tile_bytes, barriers.weights(stage), policy);
          }
        } else if (tile > 0) {  // a group of fewer strips leaves room behind each tile
#pragma unroll 1
          for (int q = 0, of = 0; q < Shape::TILES && of < left;
               ++q, of += q % Shape::turn == 0 ? 1 + Shape::apart - Shape::turn : 1) {
            cuda::bulk_copy(to + q * Shape::tile_bytes, from + of * tile, tile, barriers.weights(stage), policy);
          }
        }
      }
      if (++asked == at_first) begun();
    }
  }
  if (asked < at_first) begun();
}

// One lane.
template <class Shape>
__device__ __forceinline__ void q4_few_panels(const Q4Work& work, std::uint8_t* ring,
                                              const Q4Barriers<Shape>& barriers) {
  Q4Walk walk(work);
  cuda::wait_for_predecessors();
  cuda::barrier_arrive(barriers.alone());
  Q4Ring<Shape::STAGES> at;
  while (walk.next()) {
    const std::uint8_t* from = work.panel + static_cast<std::int64_t>(walk.k) * Shape::group_bytes;
#pragma unroll 1
    for (int left = walk.count, side = 1, step; left > 0; left -= step, from += step * Shape::group_bytes) {
      cuda::barrier_wait(barriers.empty(at.stage), at.parity ^ 1);
      cuda::barrier_expect(barriers.panel(at.stage), Shape::tiles_of(left) * Shape::group_bytes);
#pragma unroll
      for (int i = 0; i < Shape::turns; ++i) {
        if (left <= i * Shape::apart) break;
        const int bytes = Shape::reach(left, i) * Shape::group_bytes;
        cuda::bulk_copy(cuda::shared_address(ring + at.stage * Shape::stage_bytes + Shape::weight_bytes) +
                            i * Shape::turn * Shape::group_bytes,
                        from + i * Shape::apart * Shape::group_bytes, bytes, barriers.panel(at.stage));
      }
      at.template step<1>();
      step = Shape::to_next(side);
    }
  }
}

// 1 / rms of every token into shared memory, by one warp beside the others: the parts' sums of squares in a fixed
// order, the same for every width.
template <int NT>
__device__ __forceinline__ void q4_input_scales(const Q4Work& work, int lane, float* scales) {
  constexpr int together = NT == 1 ? 5 : 2;  // parts of a lane that are asked for at once
  float sums[NT] = {};
  for (int first = lane >> 3; first < work.square_parts; first += 4 * together) {
    float got[together][NT] = {};
#pragma unroll
    for (int p = 0; p < together; ++p) {
      const float* from = work.squares_in + (first + p * 4) * Q4Work::squares_stride + (lane & 7);
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        if ((first + p * 4 < work.square_parts) & (n * 8 + (lane & 7) < work.tokens)) got[p][n] = __ldcg(from + n * 8);
      }
    }
#pragma unroll
    for (int p = 0; p < together; ++p) {
#pragma unroll
      for (int n = 0; n < NT; ++n) sums[n] += got[p][n];
    }
  }
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    float sum = sums[n];
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
                                            float (&acc)[Shape::SUMS][4]) {
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

// The same for 16 or 32 tokens and some neighbouring tiles of a stage, the first of which is of its turn `turn`, by
// four neighbouring warps together: m64nNk16 with the tokens read from shared memory. Both instructions make the same
// bits (decision 0009, LinearCuda.WidthsKeepBits).
template <class Shape, int TILES>
__device__ __forceinline__ void q4_multiply_together(const std::uint8_t* tiles, const std::uint8_t* blocks, int lane,
                                                     int turn, float (&acc)[Shape::SUMS][Shape::NT * 4]) {
  constexpr int N = Shape::NT * 4, products = TILES * Shape::STRIPS;
  using Product = cuda::Wgmma<Shape::NT * 8>;
  // From lane 0, so that the compiler knows it for the same in all lanes: descriptors are then worked out in uniform
  // registers, where wgmma takes them from.
  const std::uint64_t x = cuda::matrix_descriptor(__shfl_sync(0xffffffffu, cuda::shared_address(blocks), 0), 128, 1024);
  float part[N];
  float2 sums[Shape::NT];
  const auto read_sums = [&](int tile) {
#pragma unroll
    for (int n = 0; n < Shape::NT; ++n) sums[n] = q4_sums<Shape>(blocks + tile * Shape::group_bytes, lane, n);
  };
  const auto place = [&](int p) {
    return tiles + p / Shape::STRIPS * Shape::tile_bytes + p % Shape::STRIPS * Q4Tile::bytes;
  };
  read_sums(0);
  std::uint32_t a[2][16];
  Q4Lines next(place(0), lane);
  next.unpack(a[0]);
#pragma unroll
  for (int p = 0; p < products; ++p) {
    const int tile = p / Shape::STRIPS;
    if (p > 0 && p % Shape::STRIPS == 0) read_sums(tile);
    float(&sum)[N] = acc[Shape::apiece ? turn + tile / Shape::turn : p % Shape::STRIPS];
    const Q4Lines lines = next;
    cuda::wgmma_fence();
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      Product::run(part, &a[p & 1][m * 4], x + tile * (Shape::group_bytes / 16) + m * 16, m > 0);
    }
    cuda::wgmma_commit();
    if (p + 1 < products) {
      next = Q4Lines(place(p + 1), lane);
      next.unpack(a[(p + 1) & 1]);
    }
    cuda::wgmma_wait<0>(part);
#pragma unroll
    for (int n = 0; n < Shape::NT; ++n) {
      lines.add(*reinterpret_cast<float(*)[4]>(&part[n * 4]), sums[n], *reinterpret_cast<float(*)[4]>(&sum[n * 4]));
    }
  }
}

// The halves of a row block, by a warp. The gain behind the linear is weight: it is asked for here, long before it is
// read.
template <class Shape>
__device__ __forceinline__ void q4_find_outputs(const Q4Work& work, int row_block, int lane, Q4Output* outputs) {
  constexpr int rows = Q4Order::group * 16, gated_rows = rows / 2;
  const int half = lane % Shape::HALVES;
  const Q4Half at = half_of<Shape>(work, row_block, Shape::GATED ? 0 : half);
  const Q4Matrix& matrix = work.matrices[at.matrix];
  const int column = at.group * rows + (Shape::GATED ? half * gated_rows : 0);
  const int left = at.strips > 0 ? min(Shape::GATED ? gated_rows : rows, matrix.rows - column) : 0;
  if (lane < Shape::HALVES) {
    outputs[half] = {matrix.out ? matrix.out + column : nullptr, static_cast<int>(matrix.out_stride), column,
                     max(left, 0), matrix.accumulate};
  }
  const int line = lane / Shape::HALVES * 8;  // 32 bytes of gain
  if (work.gain && line < left) cuda::prefetch(work.gain + column + line);
}

// The end of a token in `halves` halves of a row block from `half` on, by a warp. Plain, a lane has four neighbouring
// output rows of each; gated, two of gate and two of up. So every access to memory below is whole sectors.
template <class Shape>
struct Q4Finish {
  static constexpr int halves = Shape::halves_at_once;
  const Q4Work& work;
  int half, token, lane;
  const Q4Output* to = nullptr;
  int left[halves];         // rows of the half from this lane's first on; none are its, if not positive
  float before[halves][4];  // what the results are added to
  float gain[halves][4];    // of the norm behind
  float values[halves][4];  // gated: two of gate, two of up

  // Both sides' sums of this lane's rows.
  __device__ __forceinline__ void read_sums(const float* meet) {
    float part[Shape::meets][halves][4];
    const int eight = Shape::NT == 1 ? 0 : token / 8;
    const float* from = meet + eight * Shape::block_floats + (token - eight * 8) * 8;
    if (Shape::GATED) {
      from += (half * 8 + (lane >> 2)) * Shape::line_floats + (lane & 3) * 2;
    } else {
      from += (half * 16 + (lane >> 1)) * Shape::line_floats + (lane & 1) * 4;
    }
#pragma unroll
    for (int m = 0; m < Shape::meets; ++m, from += Shape::NT * Shape::block_floats) {
#pragma unroll
      for (int h = 0; h < halves; ++h) {
        if (Shape::GATED) {
          const float2 gate = *reinterpret_cast<const float2*>(from + h * 8 * Shape::line_floats);
          const float2 up = *reinterpret_cast<const float2*>(from + (h * 8 + 16) * Shape::line_floats);
          part[m][h][0] = gate.x, part[m][h][1] = gate.y, part[m][h][2] = up.x, part[m][h][3] = up.y;
        } else {
          cuda::take_four(*reinterpret_cast<const float4*>(from + h * 16 * Shape::line_floats), part[m][h]);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < halves; ++h) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& sum = values[h][i] = part[0][h][i];
        if constexpr (Shape::meets == 2) sum += part[1][h][i];
        if constexpr (Shape::meets == 4) sum = (sum + part[2][h][i]) + (part[1][h][i] + part[3][h][i]);
      }
    }
  }
  static __device__ __forceinline__ bool vectors_at(const float* at) {
    return (reinterpret_cast<std::uintptr_t>(at) & 15) == 0;
  }
  // Plain, of this lane's first row.
  __device__ __forceinline__ float* row_at(int h) const {
    return to[h].out + static_cast<std::int64_t>(token) * to[h].stride + lane * 4;
  }
  // Asks for everything that the end reads beside sums.
  __device__ __forceinline__ void read_ahead(const Q4Output* outputs) {
    to = outputs + half;
#pragma unroll
    for (int h = 0; h < halves; ++h) {
      left[h] = to[h].rows - lane * (Shape::GATED ? 2 : 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) before[h][i] = 0;
      if (left[h] <= 0 || Shape::GATED) continue;
      // A panel's groups are all there or not at all.
      if (work.gain) cuda::take_four(__ldg(reinterpret_cast<const float4*>(work.gain + to[h].column + lane * 4)), gain[h]);
      if (!to[h].accumulate) continue;
      const float* at = row_at(h);
      if (left[h] >= 4 && vectors_at(at)) {
        cuda::take_four(__ldcg(reinterpret_cast<const float4*>(at)), before[h]);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i < left[h]) before[h][i] = __ldcg(at + i);
        }
      }
    }
  }

  // The parts of a row block that several blocks worked on. A word of the exchange that nobody has written holds
  // `q4_absent`, a NaN that no sum has (arithmetic makes another one): so the words carry their own flags. Whoever
  // finishes the token polls the words, adds them in block order and leaves `q4_absent`. All blocks are resident at
  // once (checked at launch) and nobody polls before he has sent what earlier blocks wait for, so waiting ends.
  // A block has two parts, the second of the row block that begins in it.
  __device__ __forceinline__ uint4* part_of(int block, bool begins) const {
    return work.sums + static_cast<std::int64_t>(block * Shape::parts + begins) * Shape::part_words +
           (token * Shape::HALVES + half) * 32 + lane;
  }
  __device__ __forceinline__ void send(bool begins) const {
    auto word = [](float value) {
      const std::uint32_t bits = __float_as_uint(value);
      return bits == q4_absent ? 0x7fffffffu : bits;
    };
    uint4* at = part_of(blockIdx.x, begins);
#pragma unroll
    for (int h = 0; h < halves; ++h) {
      const float(&of)[4] = values[h];
      cuda::store_volatile(at + h * 32, make_uint4(word(of[0]), word(of[1]), word(of[2]), word(of[3])));
    }
  }
  // Adds `count` parts to `values`, in order: the first one at `first`, number i of the others that many blocks further
  // than `from`. The sum says whether all words were there, for what is absent is NaN; then only what is absent is read
  // again: polling takes the L2's time from those who are waited for.
  __device__ __forceinline__ void add_parts(uint4* first, uint4* from, int count) {
    constexpr int together = Q4Split::most_sharers / 2;  // read at once
    constexpr int step = Shape::parts * Shape::part_words;
    for (; count > 0; count -= together, from += together * step, first = from) {
      uint4 got[together][halves];
      const auto at = [&](int p, int h) { return (p == 0 ? first : from + p * step) + h * 32; };
#pragma unroll
      for (int p = 0; p < together; ++p) {
#pragma unroll
        for (int h = 0; h < halves; ++h) {
          if (p < count) got[p][h] = cuda::load_volatile(at(p, h));
        }
      }
      float sums[halves][4];
      for (bool all_there = false;; all_there = true) {
        float total = 0;
#pragma unroll
        for (int h = 0; h < halves; ++h) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[h][i] = values[h][i];
        }
#pragma unroll
        for (int p = 0; p < together; ++p) {
          if (p >= count) break;
#pragma unroll
          for (int h = 0; h < halves; ++h) {
            sums[h][0] += __uint_as_float(got[p][h].x), sums[h][1] += __uint_as_float(got[p][h].y);
            sums[h][2] += __uint_as_float(got[p][h].z), sums[h][3] += __uint_as_float(got[p][h].w);
          }
        }
#pragma unroll
        for (int h = 0; h < halves; ++h) total += (sums[h][0] + sums[h][1]) + (sums[h][2] + sums[h][3]);
        if (all_there || total == total) break;
        for (bool missing = true; missing;) {
          missing = false;
#pragma unroll
          for (int p = 0; p < together; ++p) {
#pragma unroll
            for (int h = 0; h < halves; ++h) {
              uint4& word = got[p][h];
              if (p < count && (word.x == q4_absent || word.y == q4_absent || word.z == q4_absent || word.w == q4_absent))
                missing = true, word = cuda::load_volatile(at(p, h));
            }
          }
        }
      }
#pragma unroll
      for (int p = 0; p < together; ++p) {
#pragma unroll
        for (int h = 0; h < halves; ++h) {
          if (p < count) *at(p, h) = make_uint4(q4_absent, q4_absent, q4_absent, q4_absent);
        }
      }
#pragma unroll
      for (int h = 0; h < halves; ++h) {
#pragma unroll
        for (int i = 0; i < 4; ++i) values[h][i] = sums[h][i];
      }
    }
  }

  // A panel of as many rows as the launch has tokens: one tile, with sums.
  static __device__ __forceinline__ cuda::Panel panel_of(const cuda::Panel& given) {
    cuda::Panel panel = given;
    panel.row_tile = Shape::NT * 8, panel.sums = true;
    return panel;
  }
  __device__ __forceinline__ void store_plain(int row_block, int h) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[h][i] += before[h][i];
      squares = fmaf(values[h][i], values[h][i], squares);
    }
    if (left[h] > 0) {
      float* at = row_at(h);
      if (left[h] >= 4 && vectors_at(at)) {
        *reinterpret_cast<float4*>(at) = make_float4(values[h][0], values[h][1], values[h][2], values[h][3]);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i < left[h]) at[i] = values[h][i];
        }
      }
    }
    if (!work.gain) return;
    const cuda::Panel panel = panel_of(work.normed_panel);
    const int column = to[h].column + lane * 4;
    float sum = 0;
    if (left[h] > 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) gain[h][i] *= values[h][i];
      sum = cuda::store_half_line_alone(panel, token, column, gain[h]);
    } else {
      squares = 0;
    }
    // Sixteen lanes have a group.
#pragma unroll
    for (int distance = 1; distance < 32; distance <<= 1) {
      squares += __shfl_xor_sync(0xffffffffu, squares, distance);
      if (distance < 16) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    }
    if (lane % 16 == 0 && left[h] > 0) *cuda::panel_sum(panel, token, column) = sum;
    if (lane == 0) work.squares_out[(row_block * Shape::HALVES + half + h) * Q4Work::squares_stride + token] = squares;
  }
  __device__ __forceinline__ void store_gated(int h) {
    float out[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) out[i] = __fdividef(values[h][i], 1.0f + __expf(-values[h][i])) * values[h][2 + i];
    if (to[h].out) {
      float* at = to[h].out + static_cast<std::int64_t>(token) * to[h].stride + lane * 2;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (i < left[h]) at[i] = out[i];
      }
    }
    if (to[h].rows > 0) cuda::store_pair(panel_of(work.gated_panel), token, to[h].column, lane, out);
  }
  __device__ __forceinline__ void store(int row_block, const float* scales) {
    const float scale = work.squares_in ? scales[token] : 1.0f;
#pragma unroll
    for (int h = 0; h < halves; ++h) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[h][i] *= scale;
    }
    if (Shape::GATED) {
#pragma unroll
      for (int h = 0; h < halves; ++h) store_gated(h);
    } else {
#pragma unroll
      for (int h = 0; h < halves; ++h) store_plain(row_block, h);
    }
  }
};

// The sides' sums of a row block into shared memory: lines as Q4Finish reads them.
template <class Shape>
__device__ __forceinline__ void q4_bring(float* meet, bool first, int warp, int lane,
                                         const float (&acc)[Shape::SUMS][Shape::NT * 4]) {
  constexpr bool in_turns = Shape::meets == 1;
  const int side = warp / Shape::WARPS, place = warp % Shape::WARPS;
  float* to = meet + (in_turns ? 0 : side) * Shape::NT * Shape::block_floats +
              place * Shape::STRIPS * 2 * Shape::line_floats + (lane & 3) * 16 + (lane >> 2);
  if (!first) cuda::block_barrier<1>(Shape::consumers * 32);  // what was here before has been read
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
            float sum = Shape::apiece ? acc[0][j] + acc[1][j] : acc[s][j];
            if (in_turns && turn == 0) sum += *at;
            *at = sum;
          }
        }
      }
    }
    if (turn == 1) cuda::block_barrier<3>(Shape::consumers * 32);
  }
}

// The tiles of a stage; the row block goes on for `left` from its first one.
template <class Shape>
__device__ __forceinline__ void q4_take_stage(const std::uint8_t* base, unsigned place, int left, int lane,
                                              float (&acc)[Shape::SUMS][Shape::NT * 4]) {
  constexpr unsigned of_half = Q4Order::group / Shape::STRIPS;  // warps
  const std::uint8_t* tiles =
      base + place / of_half * Shape::half_bytes + place % of_half * Shape::STRIPS * Q4Tile::bytes;
  const std::uint8_t* blocks = base + Shape::weight_bytes;
  // In one go what a tile reads is on its way while the one before is multiplied.
  const bool whole = left >= (Shape::turns - 1) * Shape::apart + Shape::turn;
  if constexpr (Shape::NT == 1) {
    const auto take = [&](int q) {
      q4_multiply<Shape>(tiles + q * Shape::tile_bytes, blocks + q * Shape::group_bytes, lane, acc);
    };
    if (whole) {
#pragma unroll
      for (int q = 0; q < Shape::TILES; ++q) take(q);
      return;
    }
#pragma unroll 1
    for (int q = 0, count = Shape::tiles_of(left); q < count; ++q) take(q);
  } else {
    if (whole) return q4_multiply_together<Shape, Shape::TILES>(tiles, blocks, lane, 0, acc);
#pragma unroll
    for (int i = 0; i < Shape::turns; ++i) {
#pragma unroll 1
      for (int q = i * Shape::turn, end = q + Shape::tiles_of(left, i); q < end; ++q) {
        q4_multiply_together<Shape, 1>(tiles + q * Shape::tile_bytes, blocks + q * Shape::group_bytes, lane, i, acc);
      }
    }
  }
}

template <class Shape>
__device__ __forceinline__ void q4_few_consume(const Q4Work& work, std::uint8_t* memory,
                                               const Q4Barriers<Shape>& barriers, int warp, int lane) {
  constexpr int NT = Shape::NT;
  const int side = warp / Shape::WARPS, place = warp % Shape::WARPS;
  const float* scales = reinterpret_cast<const float*>(memory + Shape::scales_offset);
  auto* meet = reinterpret_cast<float*>(memory + Shape::meet_offset);
  auto* outputs = reinterpret_cast<Q4Output*>(memory + Shape::outputs_offset);
  Q4Ring<Shape::STAGES> start;  // of the segment
  int segment = 0;
  const auto take_segment = [&](int count, float(&acc)[Shape::SUMS][NT * 4]) {
    Q4Ring<Shape::STAGES> at = start;
    at.advance(side);
    for (int left = count - side * Shape::turn; left > 0; left -= Shape::round) {
      cuda::barrier_wait(barriers.panel(at.stage), at.parity);
      cuda::barrier_wait(barriers.weights(at.stage), at.parity);
      q4_take_stage<Shape>(memory + at.stage * Shape::stage_bytes, place, left, lane, acc);
      __syncwarp();
      if (lane == 0) cuda::barrier_arrive(barriers.empty(at.stage));
      at.template step<Shape::SIDES>();
    }
    start.advance(Shape::stages_of(count));
    q4_bring<Shape>(meet, segment == 0, cuda::opaque(warp), cuda::opaque(lane), acc);
  };
  constexpr int items = Shape::HALVES / Shape::halves_at_once;  // of a token, that a warp finishes one by one
  Q4Walk walk(work);
  for (; walk.next(); ++segment) {
    // The halves of a row block that is all this block's. The others read it behind the barrier at the segment's end,
    // and have done so before the next but one begins (the barrier before its sums meet).
    if (warp == Shape::consumers - 1 && !walk.shared())
      q4_find_outputs<Shape>(work, walk.row_block, lane, outputs + segment % 2 * 2);
    cuda::wait_for_predecessors();  // before the scratch and the outputs that a predecessor may still use
    float acc[Shape::SUMS][NT * 4] = {};
    take_segment(walk.count, acc);
    cuda::block_barrier<2>(Shape::consumers * 32);
    const bool sends = walk.shared();
    if (!sends && work.squares_in) cuda::barrier_wait(barriers.scales_ready(), 0);
#pragma unroll 1
    for (int item = cuda::opaque(warp); item / items < work.tokens; item += Shape::consumers) {
      Q4Finish<Shape> finish{.work = work, .half = item % items, .token = item / items, .lane = cuda::opaque(lane)};
      if (sends) {
        finish.read_sums(meet);
        finish.send(walk.k == 0);
      } else {
        finish.read_ahead(outputs + cuda::opaque(segment) % 2 * 2);
        finish.read_sums(meet);
        finish.store(walk.row_block, scales);
      }
    }
  }
  // What is shared comes last: one row block by all warps, two by half of them each, so that nobody waits long.
  cuda::barrier_wait(barriers.plan_ready(), 0);
  const Q4Share& share = reinterpret_cast<const Q4Share*>(memory + Shape::shares_offset)[warp * 2 / Shape::consumers];
  if (share.count == 0) return;
  if (work.squares_in) cuda::barrier_wait(barriers.scales_ready(), 0);
#pragma unroll 1
  for (int item = warp % share.warps; share.mine + item / items * share.step < work.tokens; item += share.warps) {
    Q4Finish<Shape> finish{.work = work,
                           .half = item % items,
                           .token = share.mine + item / items * share.step,
                           .lane = cuda::opaque(lane)};
    finish.read_ahead(outputs + share.outputs * 2);
#pragma unroll
    for (auto& of_half : finish.values) {
#pragma unroll
      for (float& value : of_half) value = -0.0f;  // -0 + x is x, whatever x
    }
    finish.add_parts(finish.part_of(share.first, true), finish.part_of(share.first, false), share.count);
    finish.store(share.row_block, scales);
  }
}

// The row blocks that this block finishes with others, by a whole warp: of its first segment, and of its last where it
// begins one; or, where blocks that have nothing of a common row block finish it, that. Rows go to pairs 2 and 3 of
// `outputs`.
template <class Shape>
__device__ __forceinline__ void q4_few_plan(const Q4Work& work, int lane, Q4Share (&shares)[2],
                                            Q4Output* outputs) {
  constexpr int warps = Shape::consumers;
  if (lane < 2) shares[lane].count = 0;
  __syncwarp();
  if (work.split.finishers > 0) {
    const int over = static_cast<int>(blockIdx.x - work.split.sharing);
    const int finishers = static_cast<int>(work.split.finishers), count = static_cast<int>(work.split.sharers);
    const int row_block = over / finishers;
    if (over < 0 || row_block >= static_cast<int>(work.split.common)) return;
    if (lane < 2)
      shares[lane] = {row_block, row_block * count, count, over - row_block * finishers, finishers, 2, warps};
    q4_find_outputs<Shape>(work, row_block, lane, outputs + 4);
    return;
  }
  for (Q4Walk walk(work); walk.next();) {
    if (!walk.shared()) continue;
    const int before = walk.before(lane), behind = walk.behind(lane), which = walk.k == 0, count = before + 1 + behind;
    if (lane == 0) {
      const int first = static_cast<int>(blockIdx.x) - before;
      const Q4Share share = {walk.row_block, first, count, before, count, 2 + which, warps};
      const bool second = shares[0].count > 0;
      shares[1] = share;
      if (second) shares[0].warps = shares[1].warps = warps / 2;
      if (!second) shares[0] = share;
    }
    q4_find_outputs<Shape>(work, walk.row_block, lane, outputs + (2 + which) * 2);
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
  constexpr int words = sizeof(Q4Work) / 4;
  static_assert(words <= Shape::threads);
  // Where all meet once the barriers are there: the first warp that fetches weights has made them.
  const auto meet = [&] { cuda::block_barrier<0>(Shape::threads); };
  const bool makes_barriers = warp == Shape::consumers;
  if (makes_barriers && lane == 0) {
#pragma unroll
    for (int i = 0; i < Shape::STAGES; ++i) {
      cuda::barrier_init(barriers.weights(i), Shape::fetch_by_stage ? 1 : 2);  // threads that fetch
      cuda::barrier_init(barriers.panel(i), 1);
      cuda::barrier_init(barriers.empty(i), Shape::WARPS);  // a side
    }
    cuda::barrier_init(barriers.scales_ready(), 1);
    cuda::barrier_init(barriers.plan_ready(), 2);  // the lanes that write outputs
    cuda::barrier_init(barriers.alone(), 1);
    cuda::barrier_init_done();
  }
  if (makes_barriers || warp == Shape::consumers + 3) {
    cuda::block_barrier<4>(64);
    q4_few_weights<Shape>(given, memory, barriers, !makes_barriers, lane == 0, [&] {
      __syncwarp();
      meet();
      cuda::give_registers<Shape::PRODUCER_REGISTERS>();
    });
    __syncwarp();
    if (makes_barriers) cuda::dependents_may_start();
    return;
  }
  if (threadIdx.x < words) {
    reinterpret_cast<std::uint32_t*>(&work)[threadIdx.x] = reinterpret_cast<const std::uint32_t*>(&given)[threadIdx.x];
  }
  meet();
  if (warp < Shape::consumers) {
    cuda::take_registers<Shape::REGISTERS>();
    q4_few_consume<Shape>(work, memory, barriers, warp, lane);
    return;
  }
  cuda::give_registers<Shape::PRODUCER_REGISTERS>();
  const int role = warp - Shape::consumers;
  if (role == 1) {
    if (lane == 0) q4_few_panels<Shape>(work, memory, barriers);
  } else if (role == 2) {
    q4_few_plan<Shape>(work, lane, *reinterpret_cast<Q4Share(*)[2]>(memory + Shape::shares_offset),
                       reinterpret_cast<Q4Output*>(memory + Shape::outputs_offset));
    if (lane < 2) cuda::barrier_arrive(barriers.plan_ready());
    if (!work.squares_in) return;
    cuda::wait_for_predecessors();
    q4_input_scales<Shape::NT>(work, lane, reinterpret_cast<float*>(memory + Shape::scales_offset));
    __syncwarp();
    if (lane == 0) cuda::barrier_arrive(barriers.scales_ready());
  }
}

}  // namespace splash::ops
