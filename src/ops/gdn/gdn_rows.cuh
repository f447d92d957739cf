// gdn for long commit passes, and on the portable path for all passes, in three kernels: everything that rows do not
// wait for each other for (convolution, norms, gates) in one, the recurrence alone in the next, the gated norm in the
// last. Row by row as in gdn_cuda.cu and in the same operations, so the bits are the same; the gain is that the
// recurrence does nothing else and fills the chip.
//
// The recurrence: a thread has sixteen keys of one column of each value head of a key head, so that k and q are read
// once for all of them. 27B: four warps on each of 128 multiprocessors, one for every scheduler, 245 instructions a row
// and 427 cycles (H200). With two columns of one head a thread, 768 warps on 528 schedulers, the busiest had 350
// instructions and took 503; four columns of one head 490 to 595 (decision 0029).
#pragma once

#include "backend/cuda/launch.h"
#include "ops/gdn/gdn_cuda.cuh"
#include "ops/gdn/gdn_prefill_cuda.h"

namespace splash::ops::delta {
namespace {

constexpr int columns = 16;  // of each value head of a key head, that a block of the recurrence has
constexpr int column_blocks = dim / columns;
constexpr int stages = 4;
constexpr int recur_warps = columns / 4;
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

// A batch of rows of a key head, and of each of its `group` value heads.
template <int group>
struct Stage {
  float k[batch][dim];
  float q[batch][dim];
  struct {
    float v[batch][columns];
    float4 gates[batch];
  } of[group];
};
template <int group>
constexpr int recur_bytes = stages * static_cast<int>(sizeof(Stage<group>)) + 2 * stages * 8;

struct ValueColumn {
  int head, column;  // of the head
};
// The tape's first `kept` rows folded into a thread's columns, the c-th of which is place(c).
template <int count, class Place>
__device__ __forceinline__ void fold_kept(const GdnGeometry& g, const GdnLane& lane, int kept, int key_head, int part,
                                          Place&& place, Keys (&s)[count]) {
  for (int row = 0; row < kept; ++row) {
    const TapeRow tape = tape_row(g.key_heads, g.value_heads, lane.tape, row);
    Keys k;
    load_vector(tape.k + key_head * dim, part, k);
#pragma unroll
    for (int c = 0; c < count; ++c) {
      const ValueColumn at = place(c);
      update(s[c], tape.alpha[at.head], k, tape.d[at.head * dim + at.column]);
    }
  }
}
// A thread's sixteen keys of one column.
__device__ __forceinline__ float4* column_at(const GdnLane& lane, int value_head, int column, int part, int i) {
  return state_at(lane, value_head, column / half, column % 2 * 4 + i, state_thread(column % half, part));
}
// Without a branch: one would part what the compiler may move.
__device__ __forceinline__ void store_if(bool stores, float* to, float value) {
  asm volatile("{.reg .pred stores;\nsetp.ne.b32 stores, %0, 0;\n@stores st.global.f32 [%1], %2;}" ::"r"(int{stores}),
               "l"(to), "f"(value)
               : "memory");
}

// The recurrence of a row as step_row does it, of one column of each value head of a key head. Parts exchange k for q
// sums first, then add up three times as a butterfly does: parts with the lowest bit clear have those of k and find d,
// which all get; the others have those of q and what goes out.
template <int group>
struct GroupStep {
  float d[group];
  float o[group];  // in parts with an odd number
};
template <int group>
__device__ __forceinline__ GroupStep<group> step_group(Keys (&s)[group], const float* k_row, const float* q_row,
                                                       int part, const float4 (&gates)[group],
                                                       const float (&v)[group]) {
  Keys k, q;
  load_vector(k_row, part, k);
  load_vector(q_row, part, q);
  const bool of_query = part & 1;
  float sums[group];
#pragma unroll
  for (int h = 0; h < group; ++h) {
    const float key = multiply(s[h], k), query = multiply(s[h], q);
    sums[h] = (of_query ? query : key) + __shfl_xor_sync(0xffffffffu, of_query ? key : query, 4);
  }
#pragma unroll
  for (int distance = 8; distance < 32; distance <<= 1) {
#pragma unroll
    for (int h = 0; h < group; ++h) sums[h] += __shfl_xor_sync(0xffffffffu, sums[h], distance);
  }
  GroupStep<group> step;
#pragma unroll
  for (int h = 0; h < group; ++h) {
    const float changed = change(gates[h].x, gates[h].y, v[h], sums[h]);
    step.d[h] = of_part<0>(changed);
    update(s[h], gates[h].x, k, step.d[h]);
    step.o[h] = output(gates[h].x, step.d[h], gates[h].z, sums[h]);
  }
  return step;
}

// Grid: (key heads * column blocks) x segments. Leaves o, not yet normed, in out. 27B: 128 blocks, a warp for every
// scheduler of their multiprocessors.
template <bool portable, int group>
__global__ void __launch_bounds__(recur_threads, 1)
    gdn_recur_kernel(const __grid_constant__ Arguments args, const Prepared from) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto* ring = reinterpret_cast<Stage<group>*>(memory);
  const std::uint32_t full = cuda::shared_address(memory + stages * sizeof(Stage<group>)), empty = full + stages * 8;
  const GdnGeometry& g = args.geometry;
  const int key_head = blockIdx.x / column_blocks, column_block = blockIdx.x % column_blocks;
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
      Stage<group>& to = ring[stage];
      const std::uint32_t barrier = full + stage * 8;
      auto bring = [&](auto& there, const void* here) {
        cuda::copy(cuda::shared_address(there), here, sizeof(there), barrier, lane_id, 32);
      };
      cuda::begin_copies(barrier, sizeof(Stage<group>));
      bring(to.k, from.k + (static_cast<std::int64_t>(key_head) * from.rows + row) * dim);
      bring(to.q, from.q + (static_cast<std::int64_t>(key_head) * from.rows + row) * dim);
      for (int h = 0; h < group; ++h) {
        const std::int64_t head = key_head * group + h;
        bring(to.of[h].v, from.v + ((head * column_blocks + column_block) * from.rows + row) * columns);
        bring(to.of[h].gates, from.gates + head * from.rows + row);
      }
      cuda::end_copies(barrier);
    }
    cuda::finish_copies();
    return;
  }
  const GdnLane lane = args.tables.lanes[segment.lane];
  const int part = lane_id / 4, in_block = warp * 4 + lane_id % 4, column = column_block * columns + in_block;
  Keys s[group];
  // The state and the tape are older than this pass (gdn_cuda.h): read while the predecessor still runs.
#pragma unroll
  for (int h = 0; h < group; ++h) {
#pragma unroll
    for (int i = 0; i < 4; ++i) cuda::take_four(*column_at(lane, key_head * group + h, column, part, i), s[h][i]);
  }
  const int kept = portable ? 0 : *lane.kept;
  const bool verify = portable && segment.mode == static_cast<int>(GdnMode::verify);
  fold_kept(g, lane, kept, key_head, part, [&](int h) { return ValueColumn{key_head * group + h, column}; }, s);
  cuda::wait_for_predecessors();
  // Of a row a thread stores one thing: parts 1, 3, .. what goes out of value head 0, 1, .., parts 0, 2, .. d.
  const int head = part / 2;
  const bool out_is_mine = part % 2 == 1 && head < group, d_is_mine = verify && part % 2 == 0 && head < group;
  float* out = args.out.data + (key_head * group + head) * dim + column;
  const std::int64_t stride = args.out.stride;
  for (int b = 0; b < batches; ++b) {
    const int stage = b % stages, count = min(batch, segment.rows - b * batch);
    cuda::barrier_wait(full + stage * 8, b / stages & 1);
    const Stage<group>& rows = ring[stage];
    auto step = [&](int r) {
      float4 gates[group];
      float v[group];
#pragma unroll
      for (int h = 0; h < group; ++h) gates[h] = rows.of[h].gates[r], v[h] = rows.of[h].v[r][in_block];
      const GroupStep<group> found = step_group<group>(s, rows.k[r], rows.q[r], part, gates, v);
      float o = found.o[0], d = found.d[0];
#pragma unroll
      for (int h = 1; h < group; ++h) {
        if (head == h) o = found.o[h], d = found.d[h];
      }
      store_if(out_is_mine, out + (segment.first_row + b * batch + r) * stride, o);
      if (d_is_mine)
        tape_row(g.key_heads, g.value_heads, lane.tape, b * batch + r).d[(key_head * group + head) * dim + column] = d;
    };
    if (count == batch) {
#pragma unroll 4
      for (int r = 0; r < batch; ++r) step(r);
    } else {
#pragma unroll 1
      for (int r = 0; r < count; ++r) step(r);
    }
    __syncwarp();
    if (lane_id == 0) cuda::barrier_arrive(empty + stage * 8);
  }
  if (verify) return;
#pragma unroll
  for (int h = 0; h < group; ++h) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      *column_at(lane, key_head * group + h, column, part, i) =
          make_float4(s[h][i][0], s[h][i][1], s[h][i][2], s[h][i][3]);
  }
  // The last three inputs of the block's channels: q, k, and values of each head.
  for (int i = threadIdx.x; i < (2 + group) * columns; i += recur_warps * 32) {
    const int kind = i / columns, of_head = column_block * columns + i % columns;
    const int channel = kind < 2 ? (kind * g.key_heads + key_head) * dim + of_head
                                 : (2 * g.key_heads + key_head * group + kind - 2) * dim + of_head;
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

// Sixteen lanes per row and value head, eight columns each; rows of nobody are computed like the others. floats:
// whether anyone reads them, and not the panel alone.
constexpr int finish_threads = 256;
__global__ void __launch_bounds__(finish_threads)
    gdn_finish_kernel(const __grid_constant__ Arguments args, bool floats) {
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
  if (floats) cuda::store_columns(args.out, row, column, o);
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
  const auto recur = [&](auto group) {
    auto* kernel = gdn_recur_kernel<portable, group.value>;
    in_turns(stream, args, [&](const Arguments& turn) {
      const dim3 blocks(static_cast<unsigned>(g.key_heads) * column_blocks, turn.tables.segment_count);
      const std::size_t bytes =
          std::max<std::size_t>(recur_bytes<group.value>, portable ? 0 : shared_for(blocks_each(stream, blocks)));
      cuda::allow_shared(stream, kernel, bytes);
      cuda::launch(stream, "gdn recur", {blocks, dim3(recur_threads), bytes}, kernel, turn, prepared);
    });
  };
  switch (g.value_heads / g.key_heads) {
    case 1: recur(std::integral_constant<int, 1>{}); break;
    case 2: recur(std::integral_constant<int, 2>{}); break;
    case 3: recur(std::integral_constant<int, 3>{}); break;
    default: recur(std::integral_constant<int, 4>{}); break;
  }
  const unsigned items = static_cast<unsigned>(args.out.rows) * heads, each = finish_threads / 16;
  cuda::launch(stream, "gdn finish", {dim3((items + each - 1) / each), dim3(finish_threads)}, gdn_finish_kernel, args,
               stream.writes_floats(args.panel));
}

}  // namespace
}  // namespace splash::ops::delta
