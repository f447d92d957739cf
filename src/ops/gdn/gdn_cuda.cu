#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "backend/cuda/launch.h"
#include "backend/cuda/lines.cuh"
#include "ops/gdn/gdn_cuda.cuh"
#include "ops/gdn/gdn_prefill_cuda.h"

// A cluster owns one key head of one lane: two blocks for each value head that reads it, each with half (64) of the
// value columns. So everything that a lane's tape shares stays inside the cluster, and one cluster barrier separates
// reading the old tape from writing the new one. A block's 256 threads hold its half of the state, 32 floats each:
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
constexpr int together = 8;  // rows that are convolved side by side

struct Staging {
  float q[batch][dim];
  float k[batch][dim];
  float v[batch][half];
  union {
    float o[batch][half + 4];            // rows a word off: eight of them are read at once
    float past[history][channels_here];  // until the recurrence: the inputs before the first row, oldest first
  };
  float z[batch][half];
  float4 gates[batch];                       // a and b, then alpha, beta, k . q
  float squares[2][2][batch][warps];         // [parity][half of the value head][row][warp]: of eight columns each
  std::uint64_t squares_here[2];             // [parity]: those of the other half have arrived
  float gain[half];                          // of the norm
  float old_alpha[batch];                    // of the kept rows, as their keys and changes
  float old_k[batch][dim];
  float old_d[batch][half];
  // The state while rows are prepared, where three blocks share a multiprocessor: so they have registers, and four lanes'
  // clusters are there at once. Last: two blocks do without.
  float4 state[8][threads];
};

// Where this block is.
struct Place {
  int key_head, value_head, side;  // side: half of the value columns
  bool owns_keys;                  // the cluster's block that writes what is shared (q, k)
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

// A thread convolves one or two channels of the block's 320 (q, k, its v columns): body(its first or second, channel).
template <class Body>
__device__ __forceinline__ void own_channels(Body&& body) {
  body(std::integral_constant<int, 0>{}, static_cast<int>(threadIdx.x));
  if (threadIdx.x < channels_here - threads)
    body(std::integral_constant<int, 1>{}, static_cast<int>(threadIdx.x) + threads);
}
static_assert(channels_here > threads && channels_here <= 2 * threads);

// Everything below reads in bulk and only then writes: a store between two reads would make them wait for each other.

// The last three inputs before the new rows, out of [conv rows, kept tape rows], and the kept rows' operands.
__device__ __forceinline__ void load_past(const Place& place, const GdnLane& lane, int kept, Staging& shared) {
  const int stride = tape_stride(place.key_heads, place.value_heads);
  const float* raws = tape_row(place, lane.tape, 0).raw;
  float past[2][history];
  const auto load_inputs = [&](int local, float(&to)[history]) {
    const int channel = place.channel(local);
#pragma unroll
    for (int j = 0; j < history; ++j) {
      const int row = j + kept;
      to[j] = *(row < history ? lane.conv + row * place.channels + channel : raws + (row - history) * stride + channel);
    }
  };
  load_inputs(threadIdx.x, past[0]);
  if (threadIdx.x < channels_here - threads) load_inputs(threadIdx.x + threads, past[1]);
  // Every second row's keys, every fourth row's changes: addresses a constant apart.
  constexpr int keys_each = batch * dim / threads, values_each = batch * half / threads;
  const int key_row = threadIdx.x / dim, value_row = threadIdx.x / half;
  const float* keys = tape_row(place, lane.tape, key_row).k + place.key_head * dim + threadIdx.x % dim;
  const float* changes = tape_row(place, lane.tape, value_row).d + place.first_column() + threadIdx.x % half;
  float k[keys_each], d[values_each], alpha = 0;
#pragma unroll
  for (int i = 0; i < keys_each; ++i)
    k[i] = key_row + i * (threads / dim) < kept ? keys[i * (threads / dim) * stride] : 0;
#pragma unroll
  for (int i = 0; i < values_each; ++i)
    d[i] = value_row + i * (threads / half) < kept ? changes[i * (threads / half) * stride] : 0;
  if (static_cast<int>(threadIdx.x) < kept) alpha = tape_row(place, lane.tape, threadIdx.x).alpha[place.value_head];
#pragma unroll
  for (int i = 0; i < keys_each; ++i) shared.old_k[key_row + i * (threads / dim)][threadIdx.x % dim] = k[i];
#pragma unroll
  for (int i = 0; i < values_each; ++i) shared.old_d[value_row + i * (threads / half)][threadIdx.x % half] = d[i];
  if (static_cast<int>(threadIdx.x) < kept) shared.old_alpha[threadIdx.x] = alpha;
#pragma unroll
  for (int j = 0; j < history; ++j) {
    shared.past[j][threadIdx.x] = past[0][j];
    if (threadIdx.x < channels_here - threads) shared.past[j][threadIdx.x + threads] = past[1][j];
  }
}

// The inputs before a batch's first row lie in the pass itself.
__device__ __forceinline__ void load_inputs_before(const Arguments& args, const Place& place, int first_row,
                                                   Staging& shared) {
  own_channels([&](auto, int local) {
#pragma unroll
    for (int j = 0; j < history; ++j)
      shared.past[j][local] = cuda::row_of(args.rows.qkv, first_row - history + j)[place.channel(local)];
  });
}
// What a commit pass leaves: the last inputs of [past, `count` rows].
__device__ __forceinline__ void leave_history(const Arguments& args, const Place& place, const GdnLane& lane,
                                              int first_row, int count, const Staging& shared) {
  own_channels([&](auto, int local) {
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
  own_channels([&](auto, int local) {
    if (!place.writes(local)) return;
#pragma unroll
    for (int j = 0; j < history; ++j) lane.conv[j * place.channels + place.channel(local)] = shared.past[j][local];
  });
}

// The raw inputs of a batch are on their way into q, k and v, four channels a copy, and its gates into z: a warp per row.
__device__ __forceinline__ void request_rows(const Arguments& args, const Place& place, int first_row, int count,
                                             Staging& shared) {
  const int warp = threadIdx.x / 32, four = threadIdx.x % 32 * 4;
#pragma unroll
  for (int i = 0; i < batch / warps; ++i) {
    const int r = warp + i * warps, row = first_row + r;
    if (r >= count) break;
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
}

// Convolution + SiLU of `count` rows of q, k, v in place; the tape gets the raw inputs.
__device__ __forceinline__ void convolve(const Place& place, const GdnLane& lane, int count, int tape_first, bool verify,
                                         const float4 (&taps)[2], Staging& shared) {
  const int stride = tape_stride(place.key_heads, place.value_heads);
  own_channels([&](auto which, int local) {
    const float4 w = taps[which.value];
    float* column = local < dim       ? &shared.q[0][local]
                    : local < 2 * dim ? &shared.k[0][local - dim]
                                      : &shared.v[0][local - 2 * dim];
    const int column_stride = local < 2 * dim ? dim : half;
    float* tape = tape_row(place, lane.tape, tape_first).raw + place.channel(local);
    const bool to_tape = verify && place.writes(local);
    float in[history + together];
#pragma unroll
    for (int j = 0; j < history; ++j) in[j] = shared.past[j][local];
#pragma unroll 1
    for (int first = 0; first < count; first += together) {
#pragma unroll
      for (int r = 0; r < together; ++r) in[history + r] = column[(first + r) * column_stride];  // behind the last: unused
      float out[together];
#pragma unroll
      for (int r = 0; r < together; ++r) {
        const float before[history] = {in[r], in[r + 1], in[r + 2]};
        out[r] = convolved(w, before, in[history + r]);
      }
#pragma unroll
      for (int r = 0; r < together; ++r) {
        if (first + r >= count) continue;
        column[(first + r) * column_stride] = out[r];
        if (to_tape) tape[(first + r) * stride] = in[history + r];
      }
#pragma unroll
      for (int j = 0; j < history; ++j) in[j] = in[together + j];
    }
  });
}

// q, k, v and gates of `count` <= 16 rows, whose raw inputs are on their way.
__device__ __forceinline__ void prepare_rows(const Place& place, const GdnLane& lane, int count, int tape_first,
                                             bool verify, const float4 (&taps)[2], float a_log, float dt_bias,
                                             Staging& shared) {
  cuda::commit_copies();
  cuda::wait_copies<0>();
  __syncthreads();
  convolve(place, lane, count, tape_first, verify, taps, shared);
  __syncthreads();
  const int warp = threadIdx.x / 32, lane_id = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < batch / warps; ++i) {
    const int row = warp + i * warps;
    if (row >= count) break;
    float4 q = *reinterpret_cast<float4*>(&shared.q[row][lane_id * 4]),
           k = *reinterpret_cast<float4*>(&shared.k[row][lane_id * 4]);
    const Gates gates = gates_of(shared.gates[row].x, shared.gates[row].y, a_log, dt_bias);
    const float key_query = normalise(q, k);
    *reinterpret_cast<float4*>(&shared.q[row][lane_id * 4]) = q;
    *reinterpret_cast<float4*>(&shared.k[row][lane_id * 4]) = k;
    __syncwarp();
    if (lane_id == 0) shared.gates[row] = make_float4(gates.alpha, gates.beta, key_query, 0);
    if (!verify) continue;
    const TapeRow tape = tape_row(place, lane.tape, tape_first + row);
    if (place.owns_keys) {  // a tape row need not be aligned to 16 bytes
      float* to = tape.k + place.key_head * dim + lane_id * 4;
      to[0] = k.x, to[1] = k.y, to[2] = k.z, to[3] = k.w;
    }
    if (place.side == 0 && lane_id == 0) tape.alpha[place.value_head] = gates.alpha;
  }
  __syncthreads();
}

// The rows one after the other, two columns a thread.
__device__ __forceinline__ void recur(const Place& place, const GdnLane& lane, int count, int tape_first, bool verify,
                                      Staging& shared, State& s) {
  const int warp = threadIdx.x / 32, lane_id = threadIdx.x % 32, part = lane_id % 8;
  const int column = warp * 8 + lane_id / 8 * 2;
  const std::int64_t stride = tape_stride(place.key_heads, place.value_heads);
  // Parts 0 and 1 store a column each.
  float* change = tape_row(place, lane.tape, tape_first).d + place.first_column() + column + part % 2;
#pragma unroll 1
  for (int row = 0; row < count; ++row, change += stride) {
    const float4 gates = shared.gates[row];
    const RowStep step = step_row(s, shared.k[row], shared.q[row], part, gates.x, gates.y, gates.z,
                                  shared.v[row][column + part % 2]);
    if (part / 2 == 1) shared.o[row][column + part % 2] = step.o;
    if (part < 2 && verify) *change = step.d;
  }
}

// Gated RMSNorm: a lane per row has a warp's eight columns. Sums of squares meet over the block's warps, and over both
// halves of the value head in stores that count at a barrier of the other block. (A cluster's barrier with release waits
// for all the tape's stores first.) early: gates are worked out while the sums are under way.
template <bool early>
__device__ __forceinline__ void finish_rows(const Arguments& args, const Place& place, unsigned rank, int first_row,
                                            int count, int turn, Staging& shared) {
  const int parity = turn % 2, warp = threadIdx.x / 32, row = threadIdx.x % 32, local = warp * 8;
  const bool there = row < count;
  float o[8], silu_z[8];
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
#pragma unroll
    for (int i = 0; i < 8 && early; ++i) silu_z[i] = silu(shared.z[row][local + i]);
  }
  __syncthreads();
  cuda::barrier_wait(cuda::shared_address(&shared.squares_here[parity]), turn / 2 % 2);
  // As half_squares: neighbours first.
  const auto of_warps = [](const float* part) {
    return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
  };
  auto* sums = reinterpret_cast<float(*)[warps]>(shared.old_k);  // of the panel's group; the kept rows have been folded
  static_assert(sizeof(float[batch][warps]) <= sizeof shared.old_k && half == cuda::Panel::group);
  if (there) {
    const float scale =
        norm_scale(args, of_warps(shared.squares[parity][0][row]) + of_warps(shared.squares[parity][1][row]));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      o[i] = gated(o[i], scale, shared.gain[local + i], early ? silu_z[i] : silu(shared.z[row][local + i]));
    }
    const int column = place.first_column() + local;
    cuda::store_columns(args.out, first_row + row, column, o);
    sums[row][warp] = cuda::store_line_alone(args.panel, first_row + row, column, o);
  }
  if (!args.panel.sums) return;
  __syncthreads();
  if (there && warp == 0) *cuda::panel_sum(args.panel, first_row + row, place.first_column()) = of_warps(sums[row]);
}

// each: blocks that share a multiprocessor, two or three.
template <int each>
__global__ void __launch_bounds__(threads, each) gdn_kernel(const __grid_constant__ Arguments args) {
  constexpr bool parks = each > 2;
  extern __shared__ __align__(16) unsigned char memory[];
  Staging& shared = *reinterpret_cast<Staging*>(memory);
  cuda::dependents_may_start();
  const GdnGeometry& g = args.geometry;
  const int group = g.value_heads / g.key_heads;
  const unsigned rank = cuda::cluster_rank();
  const SegmentEntry segment = args.tables.segments[blockIdx.y];
  GdnLane lane = args.tables.lanes[segment.lane];
  const int kept = *lane.kept;
  if (threadIdx.x == 0) {
    for (std::uint64_t& barrier : shared.squares_here) cuda::barrier_init(cuda::shared_address(&barrier), 1);
    cuda::barrier_init_done();
  }
  Place place;
  place.key_head = blockIdx.x / (2 * group);
  place.value_head = place.key_head * group + static_cast<int>(rank) / 2;
  place.side = static_cast<int>(rank) % 2;
  place.owns_keys = rank == 0;
  place.key_heads = g.key_heads;
  place.value_heads = g.value_heads;
  place.channels = 2 * g.key_heads * dim + g.value_heads * dim;
  const bool verify = segment.mode == static_cast<int>(GdnMode::verify);

  // What earlier steps left is folded in while the linears before this kernel still run (gdn_cuda.h).
  State s;
  read_state(s, [&](int j) { return *state_at(lane, place.value_head, place.side, j, threadIdx.x); });
  load_past(place, lane, kept, shared);
  if (args.norm && threadIdx.x < half) shared.gain[threadIdx.x] = args.norm[place.side * half + threadIdx.x];
  __syncthreads();
  // Nobody writes the tape or the history before all have read them. What was read has arrived: it has been stored to
  // shared memory. So nothing needs to be released.
  cuda::cluster_arrive_relaxed();
  const int part = threadIdx.x % 8, column = threadIdx.x / 32 * 8 + threadIdx.x % 32 / 8 * 2;
  for (int row = 0; row < kept; ++row) {
    Keys k;
    load_vector(shared.old_k[row], part, k);
    const float alpha = shared.old_alpha[row];
    const float2 d = *reinterpret_cast<const float2*>(&shared.old_d[row][column]);
    update(s[0], alpha, k, d.x);
    update(s[1], alpha, k, d.y);
  }
  // A fold brings no weights: it convolves nothing.
  float4 taps[2] = {};
  float a_log = 0, dt_bias = 0;
  if (args.conv_weights) {
    const auto* all = reinterpret_cast<const float4*>(args.conv_weights);
    taps[0] = __ldg(all + place.channel(threadIdx.x));
    taps[1] = __ldg(all + place.channel(threads + threadIdx.x % (channels_here - threads)));
    a_log = args.a_log[place.value_head], dt_bias = args.dt_bias[place.value_head];
  }
  cuda::cluster_wait();
  if (verify && kept > 0) {
    store_state(place, lane, s);
    store_history(place, lane, shared);
  }
  const auto park = [&] { write_state(s, [&](int j, float4 four) { shared.state[j][threadIdx.x] = four; }); };
  const auto fetch = [&] { read_state(s, [&](int j) { return shared.state[j][threadIdx.x]; }); };
  if constexpr (parks) park();
  cuda::wait_for_predecessors();
#pragma unroll 1
  for (int first = 0; first < segment.rows; first += batch) {
    // One batch is the rule: what depends on the place is not worth keeping for the next.
    const auto forget = [&] {
      asm volatile("" : "+r"(place.key_head), "+r"(place.value_head), "+r"(place.side), "+l"(lane.tape));
    };
    forget();
    const int count = min(batch, segment.rows - first), row = segment.first_row + first;
    if (first > 0) __syncthreads();  // everyone is done with the batch before
    request_rows(args, place, row, count, shared);
    if (threadIdx.x == 0)
      cuda::barrier_expect(cuda::shared_address(&shared.squares_here[first / batch % 2]), count * warps * sizeof(float));
    if (first > 0) load_inputs_before(args, place, row, shared);
    if (!verify && first + count == segment.rows) leave_history(args, place, lane, row, count, shared);
    prepare_rows(place, lane, count, first, verify, taps, a_log, dt_bias, shared);
    forget();
    if constexpr (parks) fetch();
    recur(place, lane, count, first, verify, shared, s);
    if (parks && !verify) park();
    forget();
    finish_rows<!parks>(args, place, rank, row, count, first / batch, shared);
  }
  if (!verify) {
    if constexpr (parks) fetch();
    store_state(place, lane, s);
  }
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
  const unsigned cluster = static_cast<unsigned>(2 * group);
  in_turns(stream, args, [&](const Arguments& turn) {
    const dim3 blocks(g.key_heads * cluster, turn.tables.segment_count);
    // No more blocks a multiprocessor than it takes to have all at once: they start as the linear before them ends, and
    // the first multiprocessors to be free would get three each (measured: 5 % of a step).
    const unsigned each = blocks.x * blocks.y / static_cast<unsigned>(stream.facts().multiprocessors) + 1;
    const auto run = [&](auto* kernel, std::size_t staging) {
      const std::size_t bytes = std::max(staging, shared_for(each));
      cuda::allow_shared(stream, kernel, bytes);
      cuda::launch(stream, "gdn", {blocks, dim3(threads), bytes, cluster}, kernel, turn);
    };
    each > 2 ? run(gdn_kernel<3>, sizeof(Staging)) : run(gdn_kernel<2>, offsetof(Staging, state));
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
