#include "backend/cuda/launch.h"
#include "backend/cuda/lines.cuh"
#include "ops/gdn/gdn_cuda.h"

// A cluster owns one key head of one lane: two blocks for each value head that reads it, each with half (64) of the value
// columns. So everything that a lane's tape shares stays inside the cluster, and one cluster barrier separates reading
// the old tape from writing the new one. A block's 256 threads hold its half of the state, 32 floats each:
//   warp w: columns 8w .. 8w + 7; lane = 8 * pair + part: columns 2 * pair, + 1; keys 32 i + 4 part + e (i, e in 0..3)
// so a row costs two dot products over keys (a butterfly over 8 lanes) and one update, without any block barrier.
// State in memory: [value head][half][float4 j][thread], j = 4 * column + i: every access is one coalesced float4.
// Bytes per lane and layer (27B): 3.1 MB of state read and, where rows were kept, written: 1.4 us at 4.5 TB/s.

namespace splash::ops {
namespace {

constexpr int dim = 128;       // of a key and of a value
constexpr int half = 64;       // value columns of a block
constexpr int threads = 256;
constexpr int batch = 16;      // rows staged at a time; link::max_block rows fit
constexpr int history = 3;     // conv_kernel - 1
constexpr int channels_here = 2 * dim + half;
static_assert(batch >= link::max_block);

struct Staging {
  float raw[history + batch][channels_here];  // conv inputs, oldest first: q, k, this block's v columns
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

struct Arguments {
  GdnGeometry geometry;
  const float* conv_weights;
  const float* a_log;
  const float* dt_bias;
  const float* norm;
  GdnRows rows;
  MatrixView<float> out;
  cuda::Panel panel;
  GdnTables tables;
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

struct TapeRow {
  float* k;
  float* d;
  float* alpha;
  float* raw;
};
__device__ __forceinline__ TapeRow tape_row(const Place& place, float* tape, int row) {
  float* k = tape + static_cast<std::int64_t>(row) * (place.key_heads * dim + place.value_heads * dim + place.value_heads + place.channels);
  float* d = k + place.key_heads * dim;
  float* alpha = d + place.value_heads * dim;
  return {k, d, alpha, alpha + place.value_heads};
}

using State = float[2][4][4];  // [column][i][e]

// S <- alpha S + k d^T: the same operations for a new row and for a kept one.
__device__ __forceinline__ void update(State& s, float alpha, const float (&k)[4][4], const float (&d)[2]) {
#pragma unroll
  for (int c = 0; c < 2; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[c][i][e] = fmaf(k[i][e], d[c], __fmul_rn(alpha, s[c][i][e]));
    }
  }
}

__device__ __forceinline__ void load_vector(const float* vector, int part, float (&values)[4][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 four = *reinterpret_cast<const float4*>(vector + 32 * i + 4 * part);
    values[i][0] = four.x, values[i][1] = four.y, values[i][2] = four.z, values[i][3] = four.w;
  }
}

__device__ __forceinline__ float* state_at(const Place& place, const GdnLane& lane, int j) {
  return lane.state + ((static_cast<std::int64_t>(place.value_head) * 2 + place.side) * 8 + j) * (threads * 4) + threadIdx.x * 4;
}
__device__ __forceinline__ void load_state(const Place& place, const GdnLane& lane, State& s) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float4 four = *reinterpret_cast<const float4*>(state_at(place, lane, j));
    float(&to)[4] = s[j / 4][j % 4];
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  }
}
__device__ __forceinline__ void store_state(const Place& place, const GdnLane& lane, const State& s) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float(&from)[4] = s[j / 4][j % 4];
    *reinterpret_cast<float4*>(state_at(place, lane, j)) = make_float4(from[0], from[1], from[2], from[3]);
  }
}

// The last three inputs before the new rows, out of [conv rows, kept tape rows], and the kept rows' operands.
__device__ __forceinline__ void load_past(const Place& place, const GdnLane& lane, int kept, Staging& shared) {
  for (int index = threadIdx.x; index < history * channels_here; index += threads) {
    const int row = index / channels_here + kept, local = index % channels_here, channel = place.channel(local);
    shared.raw[index / channels_here][local] =
        row < history ? lane.conv[row * place.channels + channel] : tape_row(place, lane.tape, row - history).raw[channel];
  }
  for (int index = threadIdx.x; index < kept * dim; index += threads) {
    const TapeRow row = tape_row(place, lane.tape, index / dim);
    shared.old_k[index / dim][index % dim] = row.k[place.key_head * dim + index % dim];
    if (index % dim < half) {
      shared.old_d[index / dim][index % dim] = row.d[place.value_head * dim + place.side * half + index % dim];
    }
    if (index % dim == 0) shared.old_alpha[index / dim] = row.alpha[place.value_head];
  }
}

__device__ __forceinline__ void store_history(const Place& place, const GdnLane& lane, const Staging& shared) {
  for (int index = threadIdx.x; index < history * channels_here; index += threads) {
    const int row = index / channels_here, local = index % channels_here;
    if (place.writes(local)) lane.conv[row * place.channels + place.channel(local)] = shared.raw[row][local];
  }
}

// Convolution + SiLU, gates, normalised q and k of `count` rows.
__device__ __forceinline__ void prepare_rows(const Arguments& args, const Place& place, const GdnLane& lane, int first_row,
                                             int count, int tape_first, bool verify, Staging& shared) {
  for (int index = threadIdx.x; index < count * channels_here; index += threads) {
    const int row = index / channels_here, local = index % channels_here, channel = place.channel(local);
    const float value = cuda::row_of(args.rows.qkv, first_row + row)[channel];
    shared.raw[history + row][local] = value;
    if (verify && place.writes(local)) tape_row(place, lane.tape, tape_first + row).raw[channel] = value;
  }
  if (threadIdx.x < count) {
    const int row = first_row + threadIdx.x;
    const float b = cuda::row_of(args.rows.b, row)[place.value_head];
    const float a = cuda::row_of(args.rows.a, row)[place.value_head] + args.dt_bias[place.value_head];
    const float softplus = a > 20.0f ? a : log1pf(expf(a));
    const float alpha = expf(-expf(args.a_log[place.value_head]) * softplus);
    shared.beta[threadIdx.x] = 1.0f / (1.0f + expf(-b));
    shared.alpha[threadIdx.x] = alpha;
    if (verify && place.side == 0) *(tape_row(place, lane.tape, tape_first + threadIdx.x).alpha + place.value_head) = alpha;
  }
  __syncthreads();
  for (int index = threadIdx.x; index < count * channels_here; index += threads) {
    const int row = index / channels_here, local = index % channels_here;
    const float4 w = *reinterpret_cast<const float4*>(args.conv_weights + place.channel(local) * 4);
    float sum = w.x * shared.raw[row][local];
    sum = fmaf(w.y, shared.raw[row + 1][local], sum);
    sum = fmaf(w.z, shared.raw[row + 2][local], sum);
    sum = fmaf(w.w, shared.raw[row + 3][local], sum);
    const float value = sum / (1.0f + expf(-sum));
    if (local < dim) {
      shared.q[row][local] = value;
    } else if (local < 2 * dim) {
      shared.k[row][local - dim] = value;
    } else {
      shared.v[row][local - 2 * dim] = value;
    }
  }
  __syncthreads();
  const int warp = threadIdx.x / 32, lane_id = threadIdx.x % 32;
  for (int row = warp; row < count; row += threads / 32) {
    float4 q = *reinterpret_cast<float4*>(&shared.q[row][lane_id * 4]), k = *reinterpret_cast<float4*>(&shared.k[row][lane_id * 4]);
    float qq = q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w, kk = k.x * k.x + k.y * k.y + k.z * k.z + k.w * k.w;
#pragma unroll
    for (int distance = 16; distance > 0; distance >>= 1) {
      qq += __shfl_xor_sync(0xffffffffu, qq, distance);
      kk += __shfl_xor_sync(0xffffffffu, kk, distance);
    }
    const float q_scale = 0.08838834764831845f / sqrtf(qq + 1e-6f), k_scale = 1.0f / sqrtf(kk + 1e-6f);  // 1 / sqrt(128)
    q.x *= q_scale, q.y *= q_scale, q.z *= q_scale, q.w *= q_scale;
    k.x *= k_scale, k.y *= k_scale, k.z *= k_scale, k.w *= k_scale;
    *reinterpret_cast<float4*>(&shared.q[row][lane_id * 4]) = q;
    *reinterpret_cast<float4*>(&shared.k[row][lane_id * 4]) = k;
    float kq = k.x * q.x + k.y * q.y + k.z * q.z + k.w * q.w;
#pragma unroll
    for (int distance = 16; distance > 0; distance >>= 1) kq += __shfl_xor_sync(0xffffffffu, kq, distance);
    if (lane_id == 0) shared.key_query[row] = kq;
    if (verify && place.owns_keys) {
      *reinterpret_cast<float4*>(tape_row(place, lane.tape, tape_first + row).k + place.key_head * dim + lane_id * 4) = k;
    }
  }
  __syncthreads();
}

// d = beta (v - alpha S^T k), o = alpha S^T q + d (k . q), S <- alpha S + k d^T: both products read the old state once.
__device__ __forceinline__ void recur(const Place& place, const GdnLane& lane, int count, int tape_first, bool verify,
                                      Staging& shared, State& s) {
  const int warp = threadIdx.x / 32, lane_id = threadIdx.x % 32, part = lane_id % 8;
  const int column = warp * 8 + lane_id / 8 * 2;
  for (int row = 0; row < count; ++row) {
    float k[4][4], q[4][4];
    load_vector(shared.k[row], part, k);
    load_vector(shared.q[row], part, q);
    float sums[4] = {};  // S^T k and S^T q of the two columns
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sums[0] = fmaf(s[0][i][e], k[i][e], sums[0]);
        sums[1] = fmaf(s[1][i][e], k[i][e], sums[1]);
        sums[2] = fmaf(s[0][i][e], q[i][e], sums[2]);
        sums[3] = fmaf(s[1][i][e], q[i][e], sums[3]);
      }
    }
#pragma unroll
    for (int distance = 1; distance < 8; distance <<= 1) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], distance);
    }
    const float alpha = shared.alpha[row], beta = shared.beta[row], key_query = shared.key_query[row];
    float d[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      d[c] = beta * fmaf(-alpha, sums[c], shared.v[row][column + c]);
      if (part == c) {
        shared.o[row][column + c] = fmaf(d[c], key_query, alpha * sums[2 + c]);
        if (verify) tape_row(place, lane.tape, tape_first + row).d[place.value_head * dim + place.side * half + column + c] = d[c];
      }
    }
    update(s, alpha, k, d);
  }
  __syncthreads();
}

// Gated RMSNorm over both halves of the value head: the halves' sums of squares meet through the cluster.
__device__ __forceinline__ void finish_rows(const Arguments& args, const Place& place, unsigned rank, int first_row,
                                            int count, int parity, Staging& shared) {
  const int warp = threadIdx.x / 32, lane_id = threadIdx.x % 32;
  for (int row = warp; row < count; row += threads / 32) {
    const float a = shared.o[row][lane_id], b = shared.o[row][lane_id + 32];
    float squares = a * a + b * b;
#pragma unroll
    for (int distance = 16; distance > 0; distance >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, distance);
    if (lane_id == 0) {
      shared.squares[parity][row][place.side] = squares;
      cuda::store_to_peer(&shared.squares[parity][row][place.side], rank ^ 1, squares);
    }
  }
  cuda::cluster_sync();
  for (int index = threadIdx.x; index < count * (half / 8); index += threads) {
    const int row = index / (half / 8), local = index % (half / 8) * 8;
    const int column = place.value_head * dim + place.side * half + local;
    const float total = shared.squares[parity][row][0] + shared.squares[parity][row][1];
    const float scale = 1.0f / sqrtf(total / dim + args.geometry.rms_eps);
    float z[8], values[8];
    cuda::load_columns(args.rows.z, first_row + row, column, z);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[i] = shared.o[row][local + i] * scale * args.norm[place.side * half + local + i] * (z[i] / (1.0f + expf(-z[i])));
    }
    cuda::store_columns(args.out, first_row + row, column, values);
    cuda::store_line(args.panel, first_row + row, column, values);
  }
}

__global__ void __launch_bounds__(threads, 2) gdn_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  Staging& shared = *reinterpret_cast<Staging*>(memory);
  cuda::begin_kernel();
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

  State s;
  load_state(place, lane, s);
  load_past(place, lane, kept, shared);
  cuda::cluster_sync();  // nobody writes the tape or the history before all have read them
  const int part = threadIdx.x % 8, column = threadIdx.x / 32 * 8 + threadIdx.x % 32 / 8 * 2;
  for (int row = 0; row < kept; ++row) {
    float k[4][4];
    load_vector(shared.old_k[row], part, k);
    const float d[2] = {shared.old_d[row][column], shared.old_d[row][column + 1]};
    update(s, shared.old_alpha[row], k, d);
  }
  if (verify && kept > 0) {
    store_state(place, lane, s);
    store_history(place, lane, shared);
  }
  for (int first = 0; first < segment.rows; first += batch) {
    const int count = min(batch, segment.rows - first);
    prepare_rows(args, place, lane, segment.first_row + first, count, first, verify, shared);
    recur(place, lane, count, first, verify, shared, s);
    finish_rows(args, place, rank, segment.first_row + first, count, first / batch & 1, shared);
    // The last three inputs move to the front: rows count .. count + 2 of raw.
    float moved[(history * channels_here + threads - 1) / threads];
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(moved) / sizeof(float)); ++i) {
      const int index = threadIdx.x + i * threads;
      if (index < history * channels_here) moved[i] = shared.raw[count + index / channels_here][index % channels_here];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(moved) / sizeof(float)); ++i) {
      const int index = threadIdx.x + i * threads;
      if (index < history * channels_here) shared.raw[index / channels_here][index % channels_here] = moved[i];
    }
    __syncthreads();
  }
  if (!verify) {
    store_state(place, lane, s);
    store_history(place, lane, shared);
  }
}

}  // namespace

void gdn(cuda::Stream& stream, const GdnGeometry& g, const GdnWeights& weights, const GdnRows& rows, const GdnTables& tables,
         MatrixView<float> out) {
  const int group = g.value_heads / g.key_heads;
  SPLASH_CHECK(g.key_dim == dim && g.value_dim == dim && g.conv_kernel == history + 1 && group <= 4 &&
                   g.value_heads % g.key_heads == 0,
               "the CUDA kernel is for heads of 128, four taps and at most 4 value heads per key head");
  Arguments args{g, weights.conv.data(), weights.a_log.data(), weights.dt_bias.data(), weights.norm.data(), rows, out,
                 out.rows > 0 ? stream.panel_to_fill(out) : cuda::Panel{}, tables};
  cuda::allow_shared(stream, gdn_kernel, sizeof(Staging));
  const unsigned cluster = static_cast<unsigned>(2 * group);
  cuda::launch(stream, "gdn",
               {dim3(g.key_heads * cluster, tables.segment_count), dim3(threads), sizeof(Staging), cluster}, gdn_kernel, args);
}

void gdn(cuda::Stream& stream, const GdnGeometry& geometry, const GdnWeights& weights, const GdnRows& rows,
         std::span<const GdnSegment> segments, MatrixView<float> out) {
  std::vector<SegmentEntry> entries;
  std::vector<GdnLane> lanes;
  for (const GdnSegment& part : segments) {
    SPLASH_CHECK(part.mode == GdnMode::commit || part.segment.rows <= link::max_block);
    // The table of lanes is indexed by the segment here: one entry each.
    entries.push_back({static_cast<int>(lanes.size()), part.segment.first_row, part.segment.rows, part.segment.position,
                       static_cast<int>(part.mode), 0, nullptr});
    lanes.push_back(part.lane);
  }
  const GdnTables tables{stream.upload(entries.data(), entries.size()), static_cast<int>(entries.size()),
                         stream.upload(lanes.data(), lanes.size())};
  gdn(stream, geometry, weights, rows, tables, out);
}

void gdn_fold(cuda::Stream& stream, const GdnGeometry& geometry, const GdnLane& lane) {
  const SegmentEntry entry{0, 0, 0, 0, static_cast<int>(GdnMode::verify), 0, nullptr};
  gdn(stream, geometry, {}, {}, GdnTables{stream.upload(&entry, 1), 1, stream.upload(&lane, 1)}, {});
}

}  // namespace splash::ops
