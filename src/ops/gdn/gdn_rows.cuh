// gdn for long commit passes, and on the portable path for all passes, in three kernels: everything that rows do not
// wait for each other for (convolution, norms, gates) in one, the recurrence alone in the next, the gated norm in the
// last. Row by row as in gdn_cuda.cu and in the same operations, so the bits are the same; the gain is that the
// recurrence does nothing else and fills the chip.
//
// The recurrence: a warp has eight columns of a value head, two columns x 16 keys a thread, and needs 128 float
// operations, 10 reads and 12 shuffles a row, about 175 issue slots; 768 warps on 528 schedulers (27B) are 2 x 175
// cycles a row, and reads fit beside them. Measured were 540 cycles (141 us for 512 rows, H200) when a warp's reads took
// 34 cycles of shared memory (half of that with today's lanes, not timed again), so latency shows; one column a thread
// took 590: half the warps' operations for the same reads.
#pragma once

#include "backend/cuda/launch.h"
#include "ops/gdn/gdn_cuda.cuh"
#include "ops/gdn/gdn_prefill_cuda.h"

namespace splash::ops::delta {
namespace {

constexpr int columns = 16;  // of a recurrence block
constexpr int column_blocks = dim / columns;
constexpr int stages = 4;
constexpr int recur_warps = columns / 8;
constexpr int recur_threads = recur_warps * 32 + 32;  // and the producer
constexpr int prepare_threads = 256;

// Rows between kernels, in the stream's partial sums. `rows`: of the pass, and one batch more, because whole batches
// are copied.
struct Prepared {
  float* q;       // [key head][row][128], norm and factor applied
  float* k;       // [key head][row][128]
  float* v;       // [value head][column block][row][16]
  float4* gates;  // [value head][row]: alpha, beta, k . q
  int rows;

  static std::size_t floats(const GdnGeometry& g, int pass_rows) {
    return static_cast<std::size_t>(allocated(pass_rows)) *
           (static_cast<std::size_t>(2 * g.key_heads + g.value_heads) * dim +
            4 * static_cast<std::size_t>(g.value_heads));
  }
  static int allocated(int pass_rows) { return (pass_rows + batch + batch - 1) / batch * batch; }
  static Prepared at(float* memory, const GdnGeometry& g, int pass_rows) {
    Prepared p;
    p.rows = allocated(pass_rows);
    const std::size_t head = static_cast<std::size_t>(p.rows) * dim;
    p.q = memory;
    p.k = p.q + g.key_heads * head;
    p.v = p.k + g.key_heads * head;
    p.gates = reinterpret_cast<float4*>(p.v + g.value_heads * head);
    return p;
  }
};

// A channel's input `back` rows before the segment's first row (1..3): of the lane's history, after `kept` tape rows.
__device__ __forceinline__ float earlier_input(const GdnGeometry& g, const GdnLane& lane, int kept, int channel,
                                               int back) {
  const int channels = (2 * g.key_heads + g.value_heads) * dim, row = history - back + kept;
  return row < history ? lane.conv[row * channels + channel]
                       : tape_row(g.key_heads, g.value_heads, lane.tape, row - history).raw[channel];
}

// Grid: (key heads + value heads) x batches of rows x segments. A block of the first kind makes q, k and the gates of a
// key head's group, one of the second kind v of a value head.
template <bool portable>
__global__ void __launch_bounds__(prepare_threads)
    gdn_prepare_kernel(const __grid_constant__ Arguments args, const Prepared to) {
  __shared__ __align__(16) float convolved_rows[batch][2 * dim];
  __shared__ float key_query[batch];
  cuda::dependents_may_start();
  const GdnGeometry& g = args.geometry;
  const SegmentEntry segment = args.tables.segments[blockIdx.z];
  const int first = blockIdx.y * batch, count = min(batch, segment.rows - first);
  if (count <= 0) return;
  const GdnLane lane = args.tables.lanes[segment.lane];
  const bool is_value = static_cast<int>(blockIdx.x) >= g.key_heads;
  const int head = is_value ? static_cast<int>(blockIdx.x) - g.key_heads : static_cast<int>(blockIdx.x);
  const int in_head = threadIdx.x % dim, side = threadIdx.x / dim;
  // Values: a thread has a channel for half of the rows; keys: the two halves of the block are q and k.
  const int channel = is_value ? (2 * g.key_heads + head) * dim + in_head : (side * g.key_heads + head) * dim + in_head;
  const float4 taps = __ldg(reinterpret_cast<const float4*>(args.conv_weights + channel * 4));
  // Portable: the kept rows have been folded in, and a verify pass leaves its rows on the tape.
  const int kept = portable ? 0 : *lane.kept;
  const bool to_tape = portable && segment.mode == static_cast<int>(GdnMode::verify);
  cuda::wait_for_predecessors();
  auto tape_at = [&](int row) { return tape_row(g.key_heads, g.value_heads, lane.tape, first + row); };
  const int from = is_value ? side * (batch / 2) : 0;
  auto input = [&](int row) {  // of the segment
    if (row < 0) return earlier_input(g, lane, kept, channel, -row);
    return cuda::row_of(args.rows.qkv, segment.first_row + min(row, segment.rows - 1))[channel];
  };
  auto convolve_rows = [&](auto rows, auto&& store) {
    float raw[rows.value + history];
#pragma unroll
    for (int r = 0; r < rows.value + history; ++r) raw[r] = input(first + from + r - history);
#pragma unroll
    for (int r = 0; r < rows.value; ++r) {
      const float past[history] = {raw[r], raw[r + 1], raw[r + 2]};
      store(r, convolved(taps, past, raw[r + history]));
      if (to_tape && from + r < count) tape_at(from + r).raw[channel] = raw[r + history];
    }
  };
  if (is_value) {
    float* v = to.v + (static_cast<std::int64_t>(head) * column_blocks + in_head / columns) * to.rows * columns +
               in_head % columns;
    convolve_rows(std::integral_constant<int, batch / 2>{}, [&](int r, float value) {
      if (from + r < count) v[static_cast<std::int64_t>(segment.first_row + first + from + r) * columns] = value;
    });
    return;
  }
  convolve_rows(std::integral_constant<int, batch>{},
                [&](int r, float value) { convolved_rows[r][side * dim + in_head] = value; });
  __syncthreads();
  const int warp = threadIdx.x / 32, lane_id = threadIdx.x % 32;
#pragma unroll
  for (int r = warp; r < batch; r += prepare_threads / 32) {
    if (r >= count) break;
    float4 q = *reinterpret_cast<const float4*>(&convolved_rows[r][lane_id * 4]),
           k = *reinterpret_cast<const float4*>(&convolved_rows[r][dim + lane_id * 4]);
    const float kq = normalise(q, k);
    const std::int64_t at =
        (static_cast<std::int64_t>(head) * to.rows + segment.first_row + first + r) * dim + lane_id * 4;
    *reinterpret_cast<float4*>(to.q + at) = q;
    *reinterpret_cast<float4*>(to.k + at) = k;
    if (lane_id == 0) key_query[r] = kq;
    if (to_tape) *reinterpret_cast<float4*>(tape_at(r).k + head * dim + lane_id * 4) = k;
  }
  __syncthreads();
  const int group = g.value_heads / g.key_heads, r = threadIdx.x % batch, of_group = threadIdx.x / batch;
  if (of_group < group && r < count) {
    const int value_head = head * group + of_group, row = segment.first_row + first + r;
    const Gates gates = gates_of(cuda::row_of(args.rows.a, row)[value_head], cuda::row_of(args.rows.b, row)[value_head],
                                 args.a_log[value_head], args.dt_bias[value_head]);
    to.gates[static_cast<std::int64_t>(value_head) * to.rows + row] =
        make_float4(gates.alpha, gates.beta, key_query[r], 0.0f);
    if (to_tape) tape_at(r).alpha[value_head] = gates.alpha;
  }
}

struct Stage {
  float k[batch][dim];
  float q[batch][dim];
  float v[batch][columns];
  float4 gates[batch];
};
constexpr int recur_bytes = stages * static_cast<int>(sizeof(Stage)) + 2 * stages * 8;

// A thread's part of two neighbouring columns: the state as it lies in memory, and the tape's first `kept` rows folded into it.
__device__ __forceinline__ void load_columns(const GdnLane& lane, int value_head, int side, int thread, Keys (&s)[2]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float4 four = *state_at(lane, value_head, side, j, thread);
    float(&to)[4] = s[j / 4][j % 4];
    cuda::take_four(four, to);
  }
}
__device__ __forceinline__ void fold_kept(const GdnGeometry& g, const GdnLane& lane, int kept, int value_head, int key_head,
                                          int part, int column, Keys (&s)[2]) {
  for (int row = 0; row < kept; ++row) {
    const TapeRow tape = tape_row(g.key_heads, g.value_heads, lane.tape, row);
    Keys k;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) k[i][e] = tape.k[key_head * dim + 32 * i + 4 * part + e];
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) update(s[c], tape.alpha[value_head], k, tape.d[value_head * dim + column + c]);
  }
}

// Grid: (value heads * column blocks) x segments. Leaves o, not yet normed, in out. Three blocks per multiprocessor: at
// once all 384 of a 27B lane.
template <bool portable>
__global__ void __launch_bounds__(recur_threads, 3)
    gdn_recur_kernel(const __grid_constant__ Arguments args, const Prepared from) {
  extern __shared__ __align__(128) unsigned char memory[];
  Stage* ring = reinterpret_cast<Stage*>(memory);
  const std::uint32_t full = cuda::shared_address(memory + stages * sizeof(Stage)), empty = full + stages * 8;
  const GdnGeometry& g = args.geometry;
  const int value_head = blockIdx.x / column_blocks, column_block = blockIdx.x % column_blocks;
  const int key_head = value_head / (g.value_heads / g.key_heads);
  const int warp = threadIdx.x / 32, lane_id = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      cuda::barrier_init(full + i * 8, cuda::copy_arrivals(32));
      cuda::barrier_init(empty + i * 8, recur_warps);
    }
    cuda::barrier_init_done();
  }
  __syncthreads();
  cuda::dependents_may_start();
  const SegmentEntry segment = args.tables.segments[blockIdx.y];
  const int batches = (segment.rows + batch - 1) / batch;
  if (warp == recur_warps) {
    cuda::wait_for_predecessors();
    if (!cuda::makes_copies(lane_id)) return;
    for (int b = 0; b < batches; ++b) {
      const int stage = b % stages;
      if (b >= stages) cuda::barrier_wait(empty + stage * 8, (b / stages & 1) ^ 1);
      const std::int64_t row = segment.first_row + b * batch;
      Stage& to = ring[stage];
      const std::uint32_t barrier = full + stage * 8;
      auto bring = [&](auto& there, const void* here) {
        cuda::copy(cuda::shared_address(there), here, sizeof(there), barrier, lane_id, 32);
      };
      cuda::begin_copies(barrier, sizeof(Stage));
      bring(to.k, from.k + (static_cast<std::int64_t>(key_head) * from.rows + row) * dim);
      bring(to.q, from.q + (static_cast<std::int64_t>(key_head) * from.rows + row) * dim);
      bring(to.v, from.v + ((static_cast<std::int64_t>(value_head) * column_blocks + column_block) * from.rows + row) *
                               columns);
      bring(to.gates, from.gates + static_cast<std::int64_t>(value_head) * from.rows + row);
      cuda::end_copies(barrier);
    }
    cuda::finish_copies();
    return;
  }
  const GdnLane lane = args.tables.lanes[segment.lane];
  const int part = part_of(threadIdx.x), in_block = first_column_of(threadIdx.x);  // the first of two columns
  const int column = column_block * columns + in_block, own = in_block + part % 2;
  const int of_state = state_thread(column % half, part);
  Keys s[2];
  // The state and the tape are older than this pass (gdn_cuda.h): read while the predecessor still runs.
  load_columns(lane, value_head, column / half, of_state, s);
  const int kept = portable ? 0 : *lane.kept;
  const bool verify = portable && segment.mode == static_cast<int>(GdnMode::verify);
  fold_kept(g, lane, kept, value_head, key_head, part, column, s);
  cuda::wait_for_predecessors();
  float* out = args.out.data + value_head * dim + column_block * columns + own;
  const std::int64_t stride = args.out.stride;
  for (int b = 0; b < batches; ++b) {
    const int stage = b % stages, count = min(batch, segment.rows - b * batch);
    cuda::barrier_wait(full + stage * 8, b / stages & 1);
    const Stage& rows = ring[stage];
    auto step = [&](int r) {
      const float4 gates = rows.gates[r];
      const RowStep row = step_row(s, rows.k[r], rows.q[r], part, gates.x, gates.y, gates.z,
                                   rows.v[r][own]);
      if (verify && part < 2)
        tape_row(g.key_heads, g.value_heads, lane.tape, b * batch + r).d[value_head * dim + column + part] = row.d;
      return row.o;
    };
    const std::int64_t row = segment.first_row + b * batch;
    if (count == batch) {
#pragma unroll 1
      for (int four = 0; four < batch; four += 4) {
        float mine[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) mine[r] = step(four + r);
        if (part / 2 == 1) {
#pragma unroll
          for (int r = 0; r < 4; ++r) out[(row + four + r) * stride] = mine[r];
        }
      }
    } else {
      for (int r = 0; r < count; ++r) {
        const float o = step(r);
        if (part / 2 == 1) out[(row + r) * stride] = o;
      }
    }
    __syncwarp();
    if (lane_id == 0) cuda::barrier_arrive(empty + stage * 8);
  }
  if (verify) return;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float(&from)[4] = s[j / 4][j % 4];
    *state_at(lane, value_head, column / half, j, of_state) = make_float4(from[0], from[1], from[2], from[3]);
  }
  // The last three inputs of this block's channels: its values, and where it is the first of its key head's group q and
  // k.
  for (int kind = threadIdx.x / columns; kind < 3; kind += recur_warps * 32 / columns) {
    if (kind > 0 && value_head % (g.value_heads / g.key_heads) != 0) break;
    const int of_head = column_block * columns + threadIdx.x % columns;
    const int channel = kind == 0 ? (2 * g.key_heads + value_head) * dim + of_head
                                  : ((kind - 1) * g.key_heads + key_head) * dim + of_head;
    float last[history];
#pragma unroll
    for (int j = 0; j < history; ++j) {
      const int in_segment = segment.rows - history + j;
      last[j] = in_segment < 0 ? earlier_input(g, lane, kept, channel, -in_segment)
                               : cuda::row_of(args.rows.qkv, segment.first_row + in_segment)[channel];
    }
#pragma unroll
    for (int j = 0; j < history; ++j) lane.conv[j * (2 * g.key_heads + g.value_heads) * dim + channel] = last[j];
  }
}

// Sixteen lanes per row and value head, eight columns each; rows of nobody are computed like the others.
constexpr int finish_threads = 256;
__global__ void __launch_bounds__(finish_threads) gdn_finish_kernel(const __grid_constant__ Arguments args) {
  cuda::dependents_may_start();
  const int index = static_cast<int>(blockIdx.x) * (finish_threads / 16) + static_cast<int>(threadIdx.x) / 16;
  const int row = min(index / args.geometry.value_heads, args.out.rows - 1), head = index % args.geometry.value_heads;
  const int in_head = threadIdx.x % 16 * 8, column = head * dim + in_head;
  cuda::wait_for_predecessors();
  float o[8], z[8];
  cuda::load_columns(args.out, row, column, o);
  cuda::load_columns(args.rows.z, row, column, z);
  float squares = half_squares(o);
  squares += __shfl_xor_sync(0xffffffffu, squares, 8);
  const float scale = norm_scale(args, squares);
#pragma unroll
  for (int i = 0; i < 8; ++i) o[i] = gated(o[i], scale, args.norm[in_head + i], silu(z[i]));
  if (index / args.geometry.value_heads >= args.out.rows) return;
  cuda::store_columns(args.out, row, column, o);
  cuda::store_line(args.panel, row, column, o);
}

template <bool portable>
void run_rows(cuda::Stream& stream, const Arguments& args, int longest) {
  const GdnGeometry& g = args.geometry;
  const auto segments = static_cast<unsigned>(args.tables.segment_count);
  const Prepared prepared = Prepared::at(stream.partials(), g, args.out.rows);
  const auto heads = static_cast<unsigned>(g.value_heads);
  cuda::launch(stream, "gdn prepare",
               {dim3(g.key_heads + heads, (longest + batch - 1) / batch, segments), dim3(prepare_threads)},
               gdn_prepare_kernel<portable>, args, prepared);
  cuda::allow_shared(stream, gdn_recur_kernel<portable>, recur_bytes);
  in_turns(stream, args, [&](const Arguments& turn) {
    cuda::launch(stream, "gdn recur",
                 {dim3(heads * column_blocks, turn.tables.segment_count), dim3(recur_threads), recur_bytes},
                 gdn_recur_kernel<portable>, turn, prepared);
  });
  const unsigned items = static_cast<unsigned>(args.out.rows) * heads, each = finish_threads / 16;
  cuda::launch(stream, "gdn finish", {dim3((items + each - 1) / each), dim3(finish_threads)}, gdn_finish_kernel, args);
}

}  // namespace
}  // namespace splash::ops::delta
