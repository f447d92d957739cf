#include <algorithm>
#include <cstddef>

#include "backend/cuda/launch.h"
#include "backend/cuda/lines.cuh"
#include "ops/gdn/gdn_cuda.cuh"
#include "ops/gdn/gdn_prefill_cuda.h"

// A cluster of two blocks owns one value head of one lane, each with half (64) of the value columns. What a lane's tape
// and history hold of keys and queries all value heads of a key head read; the last of them (`owns_keys`) writes it anew
// once all have been counted that read it (`readers`). A cluster of them all would need no count, but clusters of six do
// not fill the chip: of four lanes' 64 there were 62 at once, and the last two took as long again as one lane (0017).
// A block's 256 threads hold its half of the state, 32 floats each:
//   warp w: columns 8w .. 8w + 7; lane = 8 * pair + part: columns 2 * pair, + 1; keys 32 i + 4 part + e (i, e in 0..3)
// so a row costs two dot products over keys (exchanged among 8 lanes) and one update, without any block barrier.
// State in memory: [value head][half][float4 j][thread], j = 4 * column + i: every access is one coalesced float4.
// Bytes per lane and layer (27B): 3.1 MB of state read and, where rows were kept, written: 1.4 us at 4.5 TB/s.

namespace splash::ops {
namespace {

using namespace delta;

constexpr int threads = state_threads;
constexpr int warps = threads / 32;
constexpr int channels_here = 2 * dim + half;
constexpr int staged = warps;  // rows at a time, a warp each: the rule is one such batch a pass

struct Staging {
  float q[staged][dim];
  float k[staged][dim];
  float v[staged][half];
  union {
    float o[staged][half + 4];           // rows a word off: eight of them are read at once
    float past[history][channels_here];  // until the recurrence: the inputs before the first row, oldest first
  };
  float z[staged][half];
  float4 gates[staged];                // a and b, then alpha, beta, k . q
  float squares[2][2][staged][warps];  // [parity][half of the value head][row][warp]: of eight columns each
  std::uint64_t squares_here[2];       // [parity]: those of the other half have arrived
  float sums[staged][warps];           // of the panel's groups
  float gain[half];                    // of the norm
  float old_alpha[link::max_block];    // of the kept rows, as their keys and changes are `old`
  float old[link::max_block][dim + half];
  float4 taps[channels_here];
};
static_assert(link::max_block >= warps);
static_assert(half == cuda::Panel::group);

// Where this block is.
struct Place {
  int key_head, value_head, side;  // side: half of the value columns
  bool owns_keys;                  // the block that writes what is shared (q, k)
  int key_heads, value_heads, channels;
  __device__ int channel(int local) const {
    if (local < dim) return key_head * dim + local;
    if (local < 2 * dim) return (key_heads + key_head) * dim + local - dim;
    return 2 * key_heads * dim + value_head * dim + side * half + local - 2 * dim;
  }
  __device__ bool writes(int local) const { return owns_keys || local >= 2 * dim; }
  __device__ int first_column() const { return value_head * dim + side * half; }
};

__device__ __forceinline__ TapeRow tape_row(const Place& place, float* tape, int row) {
  return delta::tape_row(place.key_heads, place.value_heads, tape, row);
}

using State = Keys[2];  // of the two columns

// each(j): the float4 number j of the state, to be read or written.
template <class Each>
__device__ __forceinline__ void read_state(State& s, Each&& each) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float4 four = each(j);
    float(&to)[4] = s[j / 4][j % 4];
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  }
}
template <class Each>
__device__ __forceinline__ void write_state(const State& s, Each&& each) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float(&from)[4] = s[j / 4][j % 4];
    each(j, make_float4(from[0], from[1], from[2], from[3]));
  }
}
__device__ __forceinline__ void store_state(const Place& place, const GdnLane& lane, const State& s) {
  write_state(s, [&](int j, float4 four) { *state_at(lane, place.value_head, place.side, j, threadIdx.x) = four; });
}

// Most of this code runs once a launch, so what there is of it counts: loops are rolled where a copy needs no register.

// body(channel of the block's 320: q, k, its v columns).
template <class Body>
__device__ __forceinline__ void own_channels(Body&& body) {
#pragma unroll 1
  for (int local = threadIdx.x; local < channels_here; local += threads) body(local);
}

// A kept row's operands are on their way, by a warp.
__device__ __forceinline__ void request_kept(const Place& place, const GdnLane& lane, int row, Staging& shared) {
  const int lane_id = threadIdx.x % 32;
  const TapeRow tape = tape_row(place, lane.tape, row);
  const float* k = tape.k + place.key_head * dim + lane_id;
  const float* d = tape.d + place.first_column() + lane_id;
  const std::uint32_t to = cuda::shared_address(&shared.old[row][lane_id]);
#pragma unroll
  for (int i = 0; i < dim; i += 32) cuda::copy_4(to + i * 4, k + i);  // a tape row need not be aligned to 16 bytes
#pragma unroll
  for (int i = 0; i < half; i += 32) cuda::copy_4(to + (dim + i) * 4, d + i);
  if (lane_id == 0) cuda::copy_4(cuda::shared_address(&shared.old_alpha[row]), tape.alpha + place.value_head);
}
// The last three inputs before the new rows, out of [conv rows, kept tape rows].
__device__ __forceinline__ void request_history(const Place& place, const GdnLane& lane, int kept, Staging& shared) {
  const int stride = tape_stride(place.key_heads, place.value_heads);
  const float* raw = tape_row(place, lane.tape, 0).raw;
#pragma unroll 1
  for (int i = threadIdx.x; i < history * channels_here; i += threads) {
    const int row = i / channels_here + kept, channel = place.channel(i % channels_here);
    cuda::copy_4(cuda::shared_address(&shared.past[0][0] + i),
                 channel + (row < history ? lane.conv + row * place.channels : raw + (row - history) * stride));
  }
}

// The inputs before a batch's first row lie in the pass itself.
__device__ __forceinline__ void load_inputs_before(const Arguments& args, const Place& place, int first_row,
                                                   Staging& shared) {
  own_channels([&](int local) {
#pragma unroll
    for (int j = 0; j < history; ++j)
      shared.past[j][local] = cuda::row_of(args.rows.qkv, first_row - history + j)[place.channel(local)];
  });
}
// What a commit pass leaves: the last inputs of [past, `count` rows].
__device__ __forceinline__ void leave_history(const Arguments& args, const Place& place, const GdnLane& lane,
                                              int first_row, int count, const Staging& shared) {
  own_channels([&](int local) {
    if (!place.writes(local)) return;
    const int channel = place.channel(local);
    float last[history];
#pragma unroll
    for (int j = 0; j < history; ++j) {
      const int row = count - history + j;
      last[j] = row < 0 ? shared.past[history + row][local] : cuda::row_of(args.rows.qkv, first_row + row)[channel];
    }
#pragma unroll
    for (int j = 0; j < history; ++j) lane.conv[j * place.channels + channel] = last[j];
  });
}
__device__ __forceinline__ void store_history(const Place& place, const GdnLane& lane, const Staging& shared) {
  own_channels([&](int local) {
    if (!place.writes(local)) return;
#pragma unroll
    for (int j = 0; j < history; ++j) lane.conv[j * place.channels + place.channel(local)] = shared.past[j][local];
  });
}

// The raw inputs of up to eight rows are on their way into q, k and v, four channels a copy, and those of their gates:
// a warp per row.
__device__ __forceinline__ void request_rows(const Arguments& args, const Place& place, int first_row, int count,
                                             Staging& shared) {
  const int r = threadIdx.x / 32, row = first_row + r, four = threadIdx.x % 32 * 4;
  if (r >= count) return;
  const float* qkv = cuda::row_of(args.rows.qkv, row) + place.key_head * dim + four;
  cuda::copy_16(cuda::shared_address(&shared.q[r][four]), qkv);
  cuda::copy_16(cuda::shared_address(&shared.k[r][four]), qkv + place.key_heads * dim);
  const int column = place.first_column() + four % half;
  const float* from = four < half ? cuda::row_of(args.rows.qkv, row) + 2 * place.key_heads * dim + column
                                  : cuda::row_of(args.rows.z, row) + column;
  cuda::copy_16(cuda::shared_address(four < half ? &shared.v[r][four] : &shared.z[r][four - half]), from);
  if (four < 8)
    cuda::copy_4(cuda::shared_address(four ? &shared.gates[r].y : &shared.gates[r].x),
                 cuda::row_of(four ? args.rows.b : args.rows.a, row) + place.value_head);
}

// Convolution + SiLU in place; the tape gets the raw inputs. A thread has a channel of q or k in all rows, `together` of
// them side by side, and then two rows of a channel of v, of which it has read its inputs before: others write theirs.
template <int together>
__device__ __forceinline__ void convolve_keys(const Place& place, const GdnLane& lane, int count, int tape_first,
                                              bool verify, bool to_history, Staging& shared) {
  static_assert(threads == 2 * dim);
  const int local = threadIdx.x, stride = tape_stride(place.key_heads, place.value_heads);
  const float4 taps = shared.taps[local];
  float* column = local < dim ? &shared.q[0][local] : &shared.k[0][local - dim];
  float* tape = tape_row(place, lane.tape, tape_first).raw + place.channel(local);
  const int to_tape = verify && place.owns_keys ? count : 0;
  float in[history + together];
#pragma unroll
  for (int j = 0; j < history; ++j) in[j] = shared.past[j][local];
  if (to_history && place.owns_keys) {
#pragma unroll
    for (int j = 0; j < history; ++j) lane.conv[j * place.channels + place.channel(local)] = in[j];
  }
#pragma unroll 1
  for (int first = 0; first < count; first += together) {
#pragma unroll
    for (int r = 0; r < together; ++r) in[history + r] = column[r * dim];
    // Rows behind the last are worked out as well.
    float out[together];
#pragma unroll
    for (int r = 0; r < together; ++r) {
      const float before[history] = {in[r], in[r + 1], in[r + 2]};
      out[r] = convolved(taps, before, in[history + r]);
    }
#pragma unroll
    for (int r = 0; r < together; ++r) column[r * dim] = out[r];
#pragma unroll
    for (int r = 0; r < together; ++r) {
      if (first + r < to_tape) *tape = in[history + r];
      tape += stride;
    }
#pragma unroll
    for (int j = 0; j < history; ++j) in[j] = in[together + j];
    column += together * dim;
  }
}
struct ValueInputs {
  static constexpr int rows = staged * half / threads;
  float in[history + rows];
  __device__ static int channel() { return threadIdx.x % half; }
  __device__ static int row() { return static_cast<int>(threadIdx.x) / half * rows; }

  __device__ __forceinline__ void read(const Staging& shared) {
#pragma unroll
    for (int j = 0; j < history + rows; ++j) {
      const int from = row() - history + j;
      in[j] = from < 0 ? shared.past[history + from][2 * dim + channel()] : shared.v[from][channel()];
    }
  }
  __device__ __forceinline__ void convolve(const Place& place, const GdnLane& lane, int count, int tape_first,
                                           bool verify, bool to_history, Staging& shared) const {
    const float4 taps = shared.taps[2 * dim + channel()];
    const int of_all = place.channel(2 * dim + channel()), stride = tape_stride(place.key_heads, place.value_heads);
    if (to_history && row() == 0) {
#pragma unroll
      for (int j = 0; j < history; ++j) lane.conv[j * place.channels + of_all] = in[j];
    }
    float* tape = tape_row(place, lane.tape, tape_first + row()).raw + of_all;
#pragma unroll
    for (int r = 0; r < rows; ++r, tape += stride) {
      const float before[history] = {in[r], in[r + 1], in[r + 2]};
      shared.v[row() + r][channel()] = convolved(taps, before, in[r + history]);
      if (verify && row() + r < count) *tape = in[r + history];
    }
  }
};

// q, k, v and gates of `count` <= 8 rows, whose raw inputs are here.
template <int together>
__device__ __forceinline__ void prepare_rows(const Place& place, const GdnLane& lane, int count, int tape_first,
                                             bool verify, bool to_history, float a_log, float dt_bias,
                                             Staging& shared) {
  ValueInputs values;
  values.read(shared);
  convolve_keys<together>(place, lane, count, tape_first, verify, to_history, shared);
  __syncthreads();
  values.convolve(place, lane, count, tape_first, verify, to_history, shared);
  if (tape_first == 0) cuda::cluster_wait();  // the other half has read the old tape
  const int row = threadIdx.x / 32, lane_id = threadIdx.x % 32;
  if (row < count) {
    float4 q = *reinterpret_cast<float4*>(&shared.q[row][lane_id * 4]),
           k = *reinterpret_cast<float4*>(&shared.k[row][lane_id * 4]);
    const Gates gates = gates_of(shared.gates[row].x, shared.gates[row].y, a_log, dt_bias);
    const float key_query = normalise(q, k);
    *reinterpret_cast<float4*>(&shared.q[row][lane_id * 4]) = q;
    *reinterpret_cast<float4*>(&shared.k[row][lane_id * 4]) = k;
    __syncwarp();
    if (lane_id == 0) shared.gates[row] = make_float4(gates.alpha, gates.beta, key_query, 0);
    if (verify) {
      const TapeRow tape = tape_row(place, lane.tape, tape_first + row);
      if (place.owns_keys) {  // a tape row need not be aligned to 16 bytes
        float* to = tape.k + place.key_head * dim + lane_id * 4;
        to[0] = k.x, to[1] = k.y, to[2] = k.z, to[3] = k.w;
      }
      if (place.side == 0 && lane_id == 0) tape.alpha[place.value_head] = gates.alpha;
    }
  }
  __syncthreads();
}

// silu(z), by half of the warps. So they come later to the recurrence, and of the two warps that share a scheduler one
// multiplies while the other waits for sums, where in step both waited (0017).
__device__ __forceinline__ void open_gates(int thread, Staging& shared) {
  static_assert(sizeof shared.z == threads / 2 * sizeof(float4));
  float4& z = reinterpret_cast<float4*>(shared.z)[thread];
  z = make_float4(silu(z.x), silu(z.y), silu(z.z), silu(z.w));
}

// The rows one after the other, two columns a thread.
__device__ __forceinline__ void recur(const Place& place, const GdnLane& lane, int count, int tape_first, bool verify,
                                      Staging& shared, State& s) {
  const int warp = threadIdx.x / 32, lane_id = threadIdx.x % 32, part = lane_id % 8;
  const int own = warp * 8 + lane_id / 8 * 2 + part % 2;
  const std::int64_t stride = tape_stride(place.key_heads, place.value_heads);
  // Parts 0 and 1 store a column's change each, parts 2 and 3 what goes out.
  float* change = tape_row(place, lane.tape, tape_first).d + place.first_column() + own;
  const bool to_tape = verify && part < 2, out = part / 2 == 1;
  const float *k = shared.k[0], *q = shared.q[0], *v = &shared.v[0][own];
  float* o = &shared.o[0][own];
#pragma unroll 1
  for (int row = 0; row < count; ++row) {
    const float4 gates = shared.gates[row];
    const RowStep step = step_row(s, k, q, part, gates.x, gates.y, gates.z, *v);
    if (out) *o = step.o;
    if (to_tape) *change = step.d;
    k += dim, q += dim, v += half, change += stride, o += sizeof(shared.o[0]) / sizeof(float);
  }
}

// Gated RMSNorm: a lane per row has a warp's eight columns. Sums of squares meet over the block's warps, and over both
// halves of the value head in stores that count at a barrier of the other block. (A cluster's barrier with release waits
// for all the tape's stores first.)
__device__ __forceinline__ void finish_rows(const Arguments& args, const Place& place, unsigned rank, int first_row,
                                            int count, int turn, Staging& shared) {
  const int parity = turn % 2, warp = threadIdx.x / 32, row = threadIdx.x % 32, local = warp * 8;
  const bool there = row < count;
  float o[8];
  __syncwarp();  // a warp's columns are its own
  if (there) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(&shared.o[row][local + i]);
      o[i] = four.x, o[i + 1] = four.y, o[i + 2] = four.z, o[i + 3] = four.w;
    }
    float* squares = &shared.squares[parity][place.side][row][warp];
    *squares = squares_of_8(o);
    cuda::store_to_peer(squares, &shared.squares_here[parity], rank ^ 1, *squares);
  }
  __syncthreads();
  cuda::barrier_wait(cuda::shared_address(&shared.squares_here[parity]), turn / 2 % 2);
  // As half_squares: neighbours first.
  const auto of_warps = [](const float* part) {
    return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
  };
  if (there) {
    const float scale =
        norm_scale(args, of_warps(shared.squares[parity][0][row]) + of_warps(shared.squares[parity][1][row]));
#pragma unroll
    for (int i = 0; i < 8; ++i) o[i] = gated(o[i], scale, shared.gain[local + i], shared.z[row][local + i]);
    const int column = place.first_column() + local;
    cuda::store_columns(args.out, first_row + row, column, o);
    shared.sums[row][warp] = cuda::store_line_alone(args.panel, first_row + row, column, o);
  }
  if (!args.panel.sums) return;
  __syncthreads();
  if (there && warp == 0)
    *cuda::panel_sum(args.panel, first_row + row, place.first_column()) = of_warps(shared.sums[row]);
}

// One thread waits until all blocks of its key head have read the lane's old tape. They come before this one in the grid
// or are its cluster's other half, so they are there or have been.
__device__ __forceinline__ void wait_for_readers(unsigned* readers, unsigned blocks) {
  while (*static_cast<volatile unsigned*>(readers) < blocks) {
  }
  *readers = 0;  // as the next launch expects it
}

// each: blocks that share a multiprocessor, two or three.
template <int each>
__global__ void __launch_bounds__(threads, each)
    gdn_kernel(const __grid_constant__ Arguments args, unsigned* all_readers) {
  extern __shared__ __align__(16) unsigned char memory[];
  Staging& shared = *reinterpret_cast<Staging*>(memory);
  cuda::dependents_may_start();
  const GdnGeometry& g = args.geometry;
  // Mostly a segment is the lane of the same number: a round trip less.
  const SegmentEntry segment = args.tables.segments[blockIdx.y];
  GdnLane lane = args.tables.lanes[blockIdx.y];
  const int group = g.value_heads / g.key_heads;
  const unsigned rank = cuda::cluster_rank();
  Place place;
  place.value_head = blockIdx.x / 2;
  place.key_head = place.value_head / group;
  place.side = static_cast<int>(rank);
  place.owns_keys = rank == 0 && place.value_head % group == group - 1;
  place.key_heads = g.key_heads;
  place.value_heads = g.value_heads;
  place.channels = 2 * g.key_heads * dim + g.value_heads * dim;
  if (threadIdx.x == 0) {
    for (std::uint64_t& barrier : shared.squares_here) cuda::barrier_init(cuda::shared_address(&barrier), 1);
    cuda::barrier_init_done();
  }
  float a_log = 0, dt_bias = 0;
  if (args.conv_weights) {  // a fold brings no weights: it convolves nothing
    own_channels([&](int local) {
      cuda::copy_16(cuda::shared_address(&shared.taps[local]),
                    args.conv_weights + place.channel(local) * (history + 1));
    });
    if (threadIdx.x < half)
      cuda::copy_4(cuda::shared_address(&shared.gain[threadIdx.x]), args.norm + place.side * half + threadIdx.x);
    a_log = args.a_log[place.value_head], dt_bias = args.dt_bias[place.value_head];
  }
  if (segment.lane != static_cast<int>(blockIdx.y)) lane = args.tables.lanes[segment.lane];
  const bool verify = segment.mode == static_cast<int>(GdnMode::verify);

  // What earlier steps left is folded in while the linears before this kernel still run (gdn_cuda.h). A warp's row is
  // asked for before it is known whether it was kept; the history, which that decides, is needed later only.
  State s;
  read_state(s, [&](int j) { return *state_at(lane, place.value_head, place.side, j, threadIdx.x); });
  const int warp = threadIdx.x / 32;
  request_kept(place, lane, warp, shared);
  cuda::commit_copies();
  const int kept = *lane.kept;
  for (int row = warp + warps; row < kept; row += warps) request_kept(place, lane, row, shared);
  request_history(place, lane, kept, shared);
  cuda::commit_copies();
  kept > warps ? cuda::wait_copies<0>() : cuda::wait_copies<1>();
  __syncthreads();
  const int part = threadIdx.x % 8, column = warp * 8 + threadIdx.x % 32 / 8 * 2;
#pragma unroll 1
  for (int row = 0; row < kept; ++row) {
    Keys k;
    load_vector(shared.old[row], part, k);
    const float alpha = shared.old_alpha[row];
    const float2 d = *reinterpret_cast<const float2*>(&shared.old[row][dim + column]);
    update(s[0], alpha, k, d.x);
    update(s[1], alpha, k, d.y);
  }
  cuda::wait_copies<0>();
  __syncthreads();
  // The cluster's other half may write what this one has read (it has arrived, so nothing needs to be released), and
  // store into its shared memory.
  cuda::cluster_arrive_relaxed();
  cuda::wait_for_predecessors();
  unsigned* readers = all_readers + blockIdx.y * g.key_heads + place.key_head;
  if (threadIdx.x == 0) atomicAdd(readers, 1u);
  const bool leaves = verify && kept > 0;  // state and history, folded
  if (segment.rows == 0) {
    if (place.owns_keys && threadIdx.x == 0) wait_for_readers(readers, 2 * group);
    cuda::cluster_wait();
    if (!leaves) return;
    store_state(place, lane, s);
    __syncthreads();
    store_history(place, lane, shared);
    return;
  }
#pragma unroll 1
  for (int first = 0; first < segment.rows; first += staged) {
    // One batch is the rule: what depends on the place is not worth keeping for the next.
    const auto forget = [&] {
      asm volatile("" : "+r"(place.key_head), "+r"(place.value_head), "+r"(place.side), "+l"(lane.tape));
    };
    forget();
    const int count = min(staged, segment.rows - first), row = segment.first_row + first;
    if (first > 0) __syncthreads();  // everyone is done with the batch before
    request_rows(args, place, row, count, shared);
    cuda::commit_copies();
    if (threadIdx.x == 0)
      cuda::barrier_expect(cuda::shared_address(&shared.squares_here[first / staged % 2]),
                           count * warps * sizeof(float));
    if (first == 0) {
      if (leaves) store_state(place, lane, s);  // behind the requests: the rows do not wait for it
      if (place.owns_keys && threadIdx.x == threads - 1) wait_for_readers(readers, 2 * group);
    } else {
      load_inputs_before(args, place, row, shared);
    }
    cuda::wait_copies<0>();
    __syncthreads();
    if (!verify && first + count == segment.rows) leave_history(args, place, lane, row, count, shared);
    prepare_rows<each == 3 ? 4 : 8>(place, lane, count, first, verify, leaves && first == 0, a_log, dt_bias, shared);
    forget();
    if (warp >= warps / 2) open_gates(threadIdx.x - threads / 2, shared);
    recur(place, lane, count, first, verify, shared, s);
    forget();
    finish_rows(args, place, rank, row, count, first / staged, shared);
  }
  if (!verify) store_state(place, lane, s);
}

// Shared memory of a block with which `each` blocks fit on a multiprocessor and not one more (of 228 KB, 1 KB of it per
// block the system's).
constexpr std::size_t shared_for(unsigned each) {
  return each > 2 ? 0 : (228 << 10) / (each + 1) - (1 << 10) + 256;
}

}  // namespace

void gdn(cuda::Stream& stream, const GdnGeometry& g, const GdnWeights& weights, const GdnRows& rows,
         const GdnTables& tables, MatrixView<float> out) {
  const int group = g.value_heads / g.key_heads;
  SPLASH_CHECK(g.key_dim == dim && g.value_dim == dim && g.conv_kernel == history + 1 && group <= 4 &&
                   g.value_heads % g.key_heads == 0,
               "the CUDA kernel is for heads of 128, four taps and at most 4 value heads per key head");
  Arguments args{g,
                 weights.conv.data(),
                 weights.a_log.data(),
                 weights.dt_bias.data(),
                 weights.norm.data(),
                 rows,
                 out,
                 out.rows > 0 ? stream.panel_to_fill(out) : cuda::Panel{},
                 tables};
  if (stream.portable()) return run_portable(stream, args);
  for (const MatrixView<const float>& copied : {rows.qkv, rows.z}) {
    SPLASH_CHECK(copied.stride % 4 == 0 && (reinterpret_cast<std::uintptr_t>(copied.data) & 15) == 0);
  }
  if (tables.longest_commit > batch && prefill_fits(stream, g, out.rows)) return prefill(stream, args);
  auto* readers = reinterpret_cast<unsigned*>(stream.exchange());
  in_turns(stream, args, [&](const Arguments& turn) {
    const dim3 blocks(2 * g.value_heads, turn.tables.segment_count);
    SPLASH_CHECK(std::size_t{blocks.y} * g.key_heads * sizeof(*readers) <= stream.exchange_bytes());
    // No more blocks a multiprocessor than it takes to have all at once: they start as the linear before them ends, and
    // the first multiprocessors to be free would get three each (measured: 5 % of a step).
    const unsigned each = blocks.x * blocks.y / static_cast<unsigned>(stream.facts().multiprocessors) + 1;
    auto* kernel = each > 2 ? gdn_kernel<3> : gdn_kernel<2>;
    const std::size_t bytes = std::max(sizeof(Staging), shared_for(each));
    cuda::allow_shared(stream, kernel, bytes);
    cuda::launch(stream, "gdn", {blocks, dim3(threads), bytes, 2}, kernel, turn, readers);
  });
}

void gdn(cuda::Stream& stream, const GdnGeometry& geometry, const GdnWeights& weights, const GdnRows& rows,
         std::span<const GdnSegment> segments, MatrixView<float> out) {
  std::vector<SegmentEntry> entries;
  std::vector<GdnLane> lanes;
  int longest = 0;
  bool all_commit = true;
  for (const GdnSegment& part : segments) {
    SPLASH_CHECK(part.mode == GdnMode::commit || part.segment.rows <= link::max_block);
    // The table of lanes is indexed by the segment here: one entry each.
    entries.push_back({static_cast<int>(lanes.size()), part.segment.first_row, part.segment.rows, part.segment.position,
                       static_cast<int>(part.mode), 0, nullptr});
    lanes.push_back(part.lane);
    longest = std::max(longest, part.segment.rows);
    all_commit = all_commit && part.mode == GdnMode::commit;
  }
  const GdnTables tables{stream.upload(entries.data(), entries.size()), static_cast<int>(entries.size()),
                         stream.upload(lanes.data(), lanes.size()), all_commit ? longest : 0};
  gdn(stream, geometry, weights, rows, tables, out);
}

void gdn_fold(cuda::Stream& stream, const GdnGeometry& geometry, const GdnLane& lane) {
  const SegmentEntry entry{0, 0, 0, 0, static_cast<int>(GdnMode::verify), 0, nullptr};
  gdn(stream, geometry, {}, {}, GdnTables{stream.upload(&entry, 1), 1, stream.upload(&lane, 1)}, {});
}

}  // namespace splash::ops
