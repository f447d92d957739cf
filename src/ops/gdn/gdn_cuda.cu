#include <algorithm>

#include "backend/cuda/launch.h"
#include "backend/cuda/lines.cuh"
#include "ops/gdn/gdn_cuda.cuh"
#include "ops/gdn/gdn_prefill_cuda.h"

// A cluster owns one key head of one lane: two blocks for each value head that reads it, each with half (64) of the
// value columns. So everything that a lane's tape shares stays inside the cluster, and one cluster barrier separates
// reading the old tape from writing the new one. A block's 256 threads hold its half of the state, 32 floats each:
//   warp w: columns 8w .. 8w + 7; lane = 8 * pair + part: columns 2 * pair, + 1; keys 32 i + 4 part + e (i, e in 0..3)
// so a row costs two dot products over keys (a butterfly over 8 lanes) and one update, without any block barrier.
// State in memory: [value head][half][float4 j][thread], j = 4 * column + i: every access is one coalesced float4.
// Bytes per lane and layer (27B): 3.1 MB of state read and, where rows were kept, written: 1.4 us at 4.5 TB/s.

namespace splash::ops {
namespace {

using namespace delta;

constexpr int threads = state_threads;
constexpr int channels_here = 2 * dim + half;

struct Staging {
  float q[batch][dim];
  float k[batch][dim];
  float v[batch][half];
  float o[batch][half];
  float z[batch][half];
  float alpha[batch], beta[batch], key_query[batch];
  float squares[2][batch][2];  // [parity][row][half of the value head]
  std::uint64_t squares_here[2];  // [parity]: those of the other half have arrived
  // The state while rows are prepared: so three blocks of a multiprocessor have registers, and four lanes' clusters are
  // there at once.
  float4 state[8][threads];
  // The kept rows of the tape.
  float old_k[batch][dim];
  float old_d[batch][half];
  float old_alpha[batch];
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
};

__device__ __forceinline__ TapeRow tape_row(const Place& place, float* tape, int row) {
  return delta::tape_row(place.key_heads, place.value_heads, tape, row);
}

using State = Keys[2];  // of the two columns

__device__ __forceinline__ void load_state(const Place& place, const GdnLane& lane, State& s) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float4 four = *state_at(lane, place.value_head, place.side, j, threadIdx.x);
    float(&to)[4] = s[j / 4][j % 4];
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  }
}
__device__ __forceinline__ void store_state(const Place& place, const GdnLane& lane, const State& s) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float(&from)[4] = s[j / 4][j % 4];
    *state_at(lane, place.value_head, place.side, j, threadIdx.x) = make_float4(from[0], from[1], from[2], from[3]);
  }
}

__device__ __forceinline__ void park_state(Staging& shared, const State& s) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float(&from)[4] = s[j / 4][j % 4];
    shared.state[j][threadIdx.x] = make_float4(from[0], from[1], from[2], from[3]);
  }
}
__device__ __forceinline__ void fetch_state(const Staging& shared, State& s) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float4 four = shared.state[j][threadIdx.x];
    float(&to)[4] = s[j / 4][j % 4];
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  }
}

// A thread convolves one or two channels of the block's 320 (q, k, its v columns) and keeps their past in registers.
struct Channels {
  static constexpr int most = (channels_here + threads - 1) / threads;
  float past[most][history];  // oldest first
  float4 taps[most];

  static __device__ int local(int i) { return static_cast<int>(threadIdx.x) + i * threads; }
  static __device__ bool has(int i) { return local(i) < channels_here; }
};

// Everything below reads in bulk and only then writes: a store between two reads would make them wait for each other.

// The inputs before a batch's first row lie in the pass itself.
__device__ __forceinline__ void load_channels(const Arguments& args, const Place& place, int first_row,
                                              Channels& channels) {
#pragma unroll
  for (int i = 0; i < Channels::most; ++i) {
    const int channel = place.channel(min(Channels::local(i), channels_here - 1));
    channels.taps[i] = __ldg(reinterpret_cast<const float4*>(args.conv_weights + channel * 4));
#pragma unroll
    for (int j = 0; j < history; ++j)
      channels.past[i][j] = cuda::row_of(args.rows.qkv, first_row - history + j)[channel];
  }
}

// The last three inputs before the new rows, out of [conv rows, kept tape rows], and the kept rows' operands.
__device__ __forceinline__ void load_past(const Arguments& args, const Place& place, const GdnLane& lane, int kept,
                                          Staging& shared, Channels& channels) {
#pragma unroll
  for (int i = 0; i < Channels::most; ++i) {
    const int channel = place.channel(min(Channels::local(i), channels_here - 1));
    // A fold brings no weights: it convolves nothing.
    channels.taps[i] =
        args.conv_weights ? __ldg(reinterpret_cast<const float4*>(args.conv_weights + channel * 4)) : float4{};
#pragma unroll
    for (int j = 0; j < history; ++j) {
      const int row = j + kept;
      channels.past[i][j] = row < history ? lane.conv[row * place.channels + channel]
                                          : tape_row(place, lane.tape, row - history).raw[channel];
    }
  }
  // Every second row's keys, every fourth row's changes: addresses a constant apart.
  constexpr int keys_each = batch * dim / threads, values_each = batch * half / threads;
  const int stride = tape_stride(place.key_heads, place.value_heads);
  const int key_row = threadIdx.x / dim, value_row = threadIdx.x / half;
  const float* keys = tape_row(place, lane.tape, key_row).k + place.key_head * dim + threadIdx.x % dim;
  const float* changes =
      tape_row(place, lane.tape, value_row).d + place.value_head * dim + place.side * half + threadIdx.x % half;
  float k[keys_each], d[values_each], alpha = 0;
#pragma unroll
  for (int i = 0; i < keys_each; ++i) k[i] = key_row + i * (threads / dim) < kept ? keys[i * (threads / dim) * stride] : 0;
#pragma unroll
  for (int i = 0; i < values_each; ++i)
    d[i] = value_row + i * (threads / half) < kept ? changes[i * (threads / half) * stride] : 0;
  if (static_cast<int>(threadIdx.x) < kept) alpha = tape_row(place, lane.tape, threadIdx.x).alpha[place.value_head];
#pragma unroll
  for (int i = 0; i < keys_each; ++i) shared.old_k[key_row + i * (threads / dim)][threadIdx.x % dim] = k[i];
#pragma unroll
  for (int i = 0; i < values_each; ++i) shared.old_d[value_row + i * (threads / half)][threadIdx.x % half] = d[i];
  if (static_cast<int>(threadIdx.x) < kept) shared.old_alpha[threadIdx.x] = alpha;
}

__device__ __forceinline__ void store_history(const Place& place, const GdnLane& lane, const Channels& channels) {
#pragma unroll
  for (int i = 0; i < Channels::most; ++i) {
    if (!Channels::has(i) || !place.writes(Channels::local(i))) continue;
#pragma unroll
    for (int j = 0; j < history; ++j)
      lane.conv[j * place.channels + place.channel(Channels::local(i))] = channels.past[i][j];
  }
}

// The raw inputs of a batch are on their way into q, k and v, four channels a copy, and its gates into z.
__device__ __forceinline__ void request_rows(const Arguments& args, const Place& place, int first_row, int count,
                                             Staging& shared) {
  constexpr int fours = channels_here / 4, most = (batch * fours + threads - 1) / threads;
#pragma unroll
  for (int i = 0; i < most; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * threads, row = index / fours, local = index % fours * 4;
    if (row >= count) break;
    const float* to = local < dim       ? &shared.q[row][local]
                      : local < 2 * dim ? &shared.k[row][local - dim]
                                        : &shared.v[row][local - 2 * dim];
    cuda::copy_16(cuda::shared_address(to), cuda::row_of(args.rows.qkv, first_row + row) + place.channel(local));
  }
  static_assert(batch * half / 4 <= threads);
  if (const int row = threadIdx.x / (half / 4), local = threadIdx.x % (half / 4) * 4; row < count) {
    cuda::copy_16(cuda::shared_address(&shared.z[row][local]),
                     cuda::row_of(args.rows.z, first_row + row) + place.value_head * dim + place.side * half + local);
  }
}

// Convolution + SiLU of `count` rows of q, k, v in place; the tape gets the raw inputs.
__device__ __forceinline__ void convolve(const Place& place, const GdnLane& lane, int count, int tape_first, bool verify,
                                         Staging& shared, Channels& channels) {
  const int stride = tape_stride(place.key_heads, place.value_heads);
#pragma unroll
  for (int i = 0; i < Channels::most; ++i) {
    if (!Channels::has(i)) continue;
    const int local = Channels::local(i);
    const float4 w = channels.taps[i];
    float(&past)[history] = channels.past[i];
    float* column = local < dim       ? &shared.q[0][local]
                    : local < 2 * dim ? &shared.k[0][local - dim]
                                      : &shared.v[0][local - 2 * dim];
    const int column_stride = local < 2 * dim ? dim : half;
    float* tape = tape_row(place, lane.tape, tape_first).raw + place.channel(local);
    const bool to_tape = verify && place.writes(local);
    constexpr int together = 4;
    for (int first = 0; first < count; first += together) {
      float raw[together];
#pragma unroll
      for (int r = 0; r < together; ++r) raw[r] = column[(first + r) * column_stride];  // behind the last: not used
#pragma unroll
      for (int r = 0; r < together; ++r) {
        if (first + r >= count) break;
        column[(first + r) * column_stride] = convolved(w, past, raw[r]);
        past[0] = past[1], past[1] = past[2], past[2] = raw[r];
        if (to_tape) tape[(first + r) * stride] = raw[r];
      }
    }
  }
}

// q, k, v and gates of `count` <= 16 rows, whose raw inputs are on their way.
__device__ __forceinline__ void prepare_rows(const Arguments& args, const Place& place, const GdnLane& lane,
                                             int first_row, int count, int tape_first, bool verify,
                                             Staging& shared, Channels& channels) {
  // The last warp has one channel less to convolve.
  if (const int r = static_cast<int>(threadIdx.x) - (threads - 32); r >= 0 && r < count) {
    const int row = first_row + r;
    const Gates gates = gates_of(args, row, place.value_head);
    shared.beta[r] = gates.beta;
    shared.alpha[r] = gates.alpha;
    if (verify && place.side == 0) tape_row(place, lane.tape, tape_first + r).alpha[place.value_head] = gates.alpha;
  }
  cuda::commit_copies();
  cuda::wait_copies<0>();
  __syncthreads();
  convolve(place, lane, count, tape_first, verify, shared, channels);
  __syncthreads();
  const int warp = threadIdx.x / 32, lane_id = threadIdx.x % 32;
  for (int row = warp; row < count; row += threads / 32) {
    float4 q = *reinterpret_cast<float4*>(&shared.q[row][lane_id * 4]),
           k = *reinterpret_cast<float4*>(&shared.k[row][lane_id * 4]);
    const float key_query = normalise(q, k);
    *reinterpret_cast<float4*>(&shared.q[row][lane_id * 4]) = q;
    *reinterpret_cast<float4*>(&shared.k[row][lane_id * 4]) = k;
    if (lane_id == 0) shared.key_query[row] = key_query;
    if (verify && place.owns_keys) {  // a tape row need not be aligned to 16 bytes
      float* to = tape_row(place, lane.tape, tape_first + row).k + place.key_head * dim + lane_id * 4;
      to[0] = k.x, to[1] = k.y, to[2] = k.z, to[3] = k.w;
    }
  }
  __syncthreads();
}

// The rows one after the other, two columns a thread.
__device__ __forceinline__ void recur(const Place& place, const GdnLane& lane, int count, int tape_first, bool verify,
                                      Staging& shared) {
  State s;
  fetch_state(shared, s);
  const int warp = threadIdx.x / 32, lane_id = threadIdx.x % 32, part = lane_id % 8;
  const int column = warp * 8 + lane_id / 8 * 2, stride = tape_stride(place.key_heads, place.value_heads);
  float* changes = tape_row(place, lane.tape, tape_first).d + place.value_head * dim + place.side * half + column + part;
  for (int row = 0; row < count; ++row) {
    const RowStep step =
        step_row(s, shared.k[row], shared.q[row], part, shared.alpha[row], shared.beta[row], shared.key_query[row],
                 *reinterpret_cast<const float2*>(&shared.v[row][column]));
    if (part < 2) {
      shared.o[row][column + part] = part ? step.o[1] : step.o[0];
      if (verify) changes[row * stride] = part ? step.d[1] : step.d[0];
    }
  }
  if (!verify) park_state(shared, s);
  __syncthreads();
}

// Gated RMSNorm over both halves of the value head: the halves' sums of squares meet through the cluster, in stores that
// count at a barrier of the other block. (A cluster's barrier with release waits for all the tape's stores first.)
__device__ __forceinline__ void finish_rows(const Arguments& args, const Place& place, unsigned rank, int first_row,
                                            int count, int turn, Staging& shared) {
  const int parity = turn % 2;
  if (const int row = threadIdx.x / 8; threadIdx.x < batch * 8) {
    float o[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) o[i] = shared.o[row][threadIdx.x % 8 * 8 + i];
    const float squares = half_squares(o);
    if (threadIdx.x % 8 == 0 && row < count) {
      shared.squares[parity][row][place.side] = squares;
      cuda::store_to_peer(&shared.squares[parity][row][place.side], &shared.squares_here[parity], rank ^ 1, squares);
    }
  }
  __syncthreads();
  cuda::barrier_wait(cuda::shared_address(&shared.squares_here[parity]), turn / 2 % 2);
  const int row = threadIdx.x / (half / 8), local = threadIdx.x % (half / 8) * 8;
  if (row < count) {
    const int column = place.value_head * dim + place.side * half + local;
    const float total = shared.squares[parity][row][0] + shared.squares[parity][row][1];
    float values[8], z[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = shared.o[row][local + i], z[i] = shared.z[row][local + i];
    gate_and_norm(args, total, place.side * half + local, z, values);
    cuda::store_columns(args.out, first_row + row, column, values);
    cuda::store_line(args.panel, first_row + row, column, values);
  }
}

__global__ void __launch_bounds__(threads, 3) gdn_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  Staging& shared = *reinterpret_cast<Staging*>(memory);
  cuda::dependents_may_start();
  const GdnGeometry& g = args.geometry;
  const int group = g.value_heads / g.key_heads;
  const unsigned rank = cuda::cluster_rank();
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
  const SegmentEntry segment = args.tables.segments[blockIdx.y];
  GdnLane lane = args.tables.lanes[segment.lane];
  const bool verify = segment.mode == static_cast<int>(GdnMode::verify);
  const int kept = *lane.kept;

  // What earlier steps left is folded in while the linears before this kernel still run (gdn_cuda.h).
  Channels channels;
  {
    State s;
    load_state(place, lane, s);
    load_past(args, place, lane, kept, shared, channels);
    cuda::cluster_sync();  // nobody writes the tape or the history before all have read them
    const int part = threadIdx.x % 8, column = threadIdx.x / 32 * 8 + threadIdx.x % 32 / 8 * 2;
    for (int row = 0; row < kept; ++row) {
      Keys k;
      load_vector(shared.old_k[row], part, k);
      update(s[0], shared.old_alpha[row], k, shared.old_d[row][column]);
      update(s[1], shared.old_alpha[row], k, shared.old_d[row][column + 1]);
    }
    if (verify && kept > 0) {
      store_state(place, lane, s);
      store_history(place, lane, channels);
    }
    park_state(shared, s);
  }
  cuda::wait_for_predecessors();
#pragma unroll 1
  for (int first = 0; first < segment.rows; first += batch) {
    // One batch is the rule: what depends on the place is not worth keeping for the next.
    asm volatile("" : "+r"(place.key_head), "+r"(place.value_head), "+r"(place.side), "+l"(lane.tape));
    const int count = min(batch, segment.rows - first), row = segment.first_row + first;
    if (first > 0) __syncthreads();  // everyone is done with the batch before
    request_rows(args, place, row, count, shared);
    if (threadIdx.x == 0)
      cuda::barrier_expect(cuda::shared_address(&shared.squares_here[first / batch % 2]), count * sizeof(float));
    if (first > 0) load_channels(args, place, row, channels);
    prepare_rows(args, place, lane, row, count, first, verify, shared, channels);
    if (!verify && first + count == segment.rows) store_history(place, lane, channels);
    recur(place, lane, count, first, verify, shared);
    finish_rows(args, place, rank, row, count, first / batch, shared);
  }
  if (!verify) {
    State s;
    fetch_state(shared, s);
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
    const std::size_t bytes = std::max<std::size_t>(sizeof(Staging), shared_for(each));
    cuda::allow_shared(stream, gdn_kernel, bytes);
    cuda::launch(stream, "gdn", {blocks, dim3(threads), bytes, cluster}, gdn_kernel, turn);
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
