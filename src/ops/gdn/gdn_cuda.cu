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
  float alpha[batch], beta[batch], key_query[batch];
  float squares[2][batch][2];  // [parity][row][half of the value head]
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

// A thread convolves one or two channels of the block's 320 (q, k, its v columns) and keeps their past in registers.
struct Channels {
  static constexpr int most = (channels_here + threads - 1) / threads;
  float past[most][history];  // oldest first
  float4 taps[most];

  static __device__ int local(int i) { return static_cast<int>(threadIdx.x) + i * threads; }
  static __device__ bool has(int i) { return local(i) < channels_here; }
};

// Everything below reads in bulk and only then writes: a store between two reads would make them wait for each other.

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
  constexpr int keys_each = batch * dim / threads, values_each = batch * half / threads;
  float k[keys_each], d[values_each], alpha = 0;
#pragma unroll
  for (int i = 0; i < keys_each; ++i) {
    const int index = threadIdx.x + i * threads, row = index / dim;
    k[i] = row < kept ? tape_row(place, lane.tape, row).k[place.key_head * dim + index % dim] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < values_each; ++i) {
    const int index = threadIdx.x + i * threads, row = index / half;
    d[i] = row < kept ? tape_row(place, lane.tape, row).d[place.value_head * dim + place.side * half + index % half]
                      : 0.0f;
  }
  if (static_cast<int>(threadIdx.x) < kept) alpha = tape_row(place, lane.tape, threadIdx.x).alpha[place.value_head];
#pragma unroll
  for (int i = 0; i < keys_each; ++i)
    shared.old_k[(threadIdx.x + i * threads) / dim][(threadIdx.x + i * threads) % dim] = k[i];
#pragma unroll
  for (int i = 0; i < values_each; ++i)
    shared.old_d[(threadIdx.x + i * threads) / half][(threadIdx.x + i * threads) % half] = d[i];
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

// Up to eight rows of raw inputs of this thread's channels.
constexpr int rows_at_once = 8;
using RawRows = float[Channels::most][rows_at_once];
__device__ __forceinline__ void load_raw(const Arguments& args, const Place& place, int first_row, int count,
                                         RawRows& raw) {
#pragma unroll
  for (int i = 0; i < Channels::most; ++i) {
    const float* from = args.rows.qkv.data + place.channel(min(Channels::local(i), channels_here - 1));
#pragma unroll
    for (int r = 0; r < rows_at_once; ++r) {
      raw[i][r] = r < count ? from[static_cast<std::int64_t>(first_row + r) * args.rows.qkv.stride] : 0.0f;
    }
  }
}

// Convolution + SiLU of `count` rows into q, k, v from row `to` on; the tape gets the raw inputs.
__device__ __forceinline__ void convolve(const Place& place, const GdnLane& lane, int count, int to, int tape_first,
                                         bool verify, const RawRows& raw, Staging& shared, Channels& channels) {
#pragma unroll
  for (int i = 0; i < Channels::most; ++i) {
    if (!Channels::has(i)) continue;
    const int local = Channels::local(i);
    const float4 w = channels.taps[i];
    float(&past)[history] = channels.past[i];
    float* column = local < dim       ? &shared.q[to][local]
                    : local < 2 * dim ? &shared.k[to][local - dim]
                                      : &shared.v[to][local - 2 * dim];
    const int stride = local < 2 * dim ? dim : half;
    const bool to_tape = verify && place.writes(local);
#pragma unroll
    for (int r = 0; r < rows_at_once; ++r) {
      if (r >= count) continue;
      column[r * stride] = convolved(w, past, raw[i][r]);
      past[0] = past[1], past[1] = past[2], past[2] = raw[i][r];
      if (to_tape) tape_row(place, lane.tape, tape_first + r).raw[place.channel(local)] = raw[i][r];
    }
  }
}

// q, k, v and gates of `count` <= 16 rows. raw: the first eight rows' inputs, already on their way.
__device__ __forceinline__ void prepare_rows(const Arguments& args, const Place& place, const GdnLane& lane,
                                             int first_row, int count, int tape_first, bool verify, RawRows& raw,
                                             Staging& shared, Channels& channels) {
  // The last warp has one channel less to convolve.
  if (const int r = static_cast<int>(threadIdx.x) - (threads - 32); r >= 0 && r < count) {
    const int row = first_row + r;
    const Gates gates = gates_of(args, row, place.value_head);
    shared.beta[r] = gates.beta;
    shared.alpha[r] = gates.alpha;
    if (verify && place.side == 0) tape_row(place, lane.tape, tape_first + r).alpha[place.value_head] = gates.alpha;
  }
  convolve(place, lane, min(count, rows_at_once), 0, tape_first, verify, raw, shared, channels);
  if (count > rows_at_once) {
    load_raw(args, place, first_row + rows_at_once, count - rows_at_once, raw);
    convolve(place, lane, count - rows_at_once, rows_at_once, tape_first + rows_at_once, verify, raw, shared, channels);
  }
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
                                      Staging& shared, State& s) {
  const int warp = threadIdx.x / 32, lane_id = threadIdx.x % 32, part = lane_id % 8;
  const int column = warp * 8 + lane_id / 8 * 2;
  for (int row = 0; row < count; ++row) {
    Keys k, q;
    load_vector(shared.k[row], part, k);
    load_vector(shared.q[row], part, q);
    float sums[4] = {multiply(s[0], k), multiply(s[1], k), multiply(s[0], q), multiply(s[1], q)};
#pragma unroll
    for (int distance = 1; distance < 8; distance <<= 1) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], distance);
    }
    const float alpha = shared.alpha[row], beta = shared.beta[row], key_query = shared.key_query[row];
    float d[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      d[c] = change(alpha, beta, shared.v[row][column + c], sums[c]);
      if (part == c) {
        shared.o[row][column + c] = output(alpha, d[c], key_query, sums[2 + c]);
        if (verify)
          tape_row(place, lane.tape, tape_first + row).d[place.value_head * dim + place.side * half + column + c] =
              d[c];
      }
    }
    update(s[0], alpha, k, d[0]);
    update(s[1], alpha, k, d[1]);
  }
  __syncthreads();
}

// The gates z of the line of eight columns that this thread finishes.
static_assert(batch * half / 8 <= threads);
__device__ __forceinline__ void load_z(const Arguments& args, const Place& place, int first_row, int count,
                                       float (&z)[8]) {
  const int row = threadIdx.x / (half / 8), local = threadIdx.x % (half / 8) * 8;
  if (row < count)
    cuda::load_columns(args.rows.z, first_row + row, place.value_head * dim + place.side * half + local, z);
}

// Gated RMSNorm over both halves of the value head: the halves' sums of squares meet through the cluster.
__device__ __forceinline__ void finish_rows(const Arguments& args, const Place& place, unsigned rank, int first_row,
                                            int count, int parity, const float (&z)[8], Staging& shared) {
  if (const int row = threadIdx.x / 8; threadIdx.x < batch * 8) {
    float o[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) o[i] = shared.o[row][threadIdx.x % 8 * 8 + i];
    const float squares = half_squares(o);
    if (threadIdx.x % 8 == 0 && row < count) {
      shared.squares[parity][row][place.side] = squares;
      cuda::store_to_peer(&shared.squares[parity][row][place.side], rank ^ 1, squares);
    }
  }
  cuda::cluster_sync();
  const int row = threadIdx.x / (half / 8), local = threadIdx.x % (half / 8) * 8;
  if (row < count) {
    const int column = place.value_head * dim + place.side * half + local;
    const float total = shared.squares[parity][row][0] + shared.squares[parity][row][1];
    float values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = shared.o[row][local + i];
    gate_and_norm(args, total, place.side * half + local, z, values);
    cuda::store_columns(args.out, first_row + row, column, values);
    cuda::store_line(args.panel, first_row + row, column, values);
  }
}

__global__ void __launch_bounds__(threads, 2) gdn_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  Staging& shared = *reinterpret_cast<Staging*>(memory);
  cuda::dependents_may_start();
  const GdnGeometry& g = args.geometry;
  const int group = g.value_heads / g.key_heads;
  const unsigned rank = cuda::cluster_rank();
  Place place;
  place.key_head = blockIdx.x / (2 * group);
  place.value_head = place.key_head * group + static_cast<int>(rank) / 2;
  place.side = static_cast<int>(rank) % 2;
  place.owns_keys = rank == 0;
  place.key_heads = g.key_heads;
  place.value_heads = g.value_heads;
  place.channels = 2 * g.key_heads * dim + g.value_heads * dim;
  const SegmentEntry segment = args.tables.segments[blockIdx.y];
  const GdnLane lane = args.tables.lanes[segment.lane];
  const bool verify = segment.mode == static_cast<int>(GdnMode::verify);
  const int kept = *lane.kept;

  // What earlier steps left is folded in while the linears before this kernel still run (gdn_cuda.h).
  State s;
  Channels channels;
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
  cuda::wait_for_predecessors();
  RawRows raw;
  load_raw(args, place, segment.first_row, min(rows_at_once, segment.rows), raw);
  for (int first = 0; first < segment.rows; first += batch) {
    const int count = min(batch, segment.rows - first), row = segment.first_row + first;
    float z[8];
    load_z(args, place, row, count, z);
    if (first > 0) load_raw(args, place, row, min(rows_at_once, count), raw);
    prepare_rows(args, place, lane, row, count, first, verify, raw, shared, channels);
    recur(place, lane, count, first, verify, shared, s);
    finish_rows(args, place, rank, row, count, first / batch & 1, z, shared);
  }
  if (!verify) {
    store_state(place, lane, s);
    store_history(place, lane, channels);
  }
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
  if (tables.longest_commit > batch && prefill_fits(stream, g, out.rows)) return prefill(stream, args);
  cuda::allow_shared(stream, gdn_kernel, sizeof(Staging));
  const unsigned cluster = static_cast<unsigned>(2 * group);
  in_turns(stream, args, [&](const Arguments& turn) {
    cuda::launch(stream, "gdn",
                 {dim3(g.key_heads * cluster, turn.tables.segment_count), dim3(threads), sizeof(Staging), cluster},
                 gdn_kernel, turn);
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
