#include <cmath>
#include <numbers>
#include <vector>

#include "backend/cuda/launch.h"
#include "backend/cuda/lines.cuh"
#include "ops/draft/draft_cuda.h"

namespace splash::ops {
namespace {

// A thread per eight channels (half of a group of 16: one coefficient each).
__global__ void block_conv_kernel(const float* base, int hidden, int group, int stage, int block,
                                  MatrixView<const float> coefficients, MatrixView<const float> y, int accumulate,
                                  MatrixView<float> out, cuda::Panel panel) {
  cuda::begin_kernel();
  const int index = blockIdx.x * blockDim.x + threadIdx.x, lines = hidden / 8;
  const int row = index / lines, column = index % lines * 8;
  if (row >= y.rows) return;
  const int groups = hidden / group;
  const float* p = cuda::row_of(coefficients, row) + stage * 2 * groups;
  const bool first = row % block == 0;  // the predecessor tap never leaves the block
  float here[8], before[8] = {}, values[8] = {};
  cuda::load_columns(y, row, column, here);
  if (!first) cuda::load_columns(y, row - 1, column, before);
  if (accumulate) cuda::load_columns(out, row, column, values);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int channel = column + i;
    const float tap0 = base[stage * 2 * hidden + channel] + p[channel / group];
    const float tap1 = base[(stage * 2 + 1) * hidden + channel] + p[groups + channel / group];
    values[i] += fmaf(tap0, here[i], tap1 * before[i]);
  }
  cuda::store_columns(out, row, column, values);
  cuda::store_line(panel, row, column, values);
}

struct Rotary {
  int head_dim;
  float rms_eps;
  double inverse_turns[64];  // frequency / (2 pi); in double, so that late positions keep their angle
};

// One warp, one head: RMSNorm and full rotation in place in shared memory.
__device__ __forceinline__ void norm_and_rotate(const Rotary& rotary, const float* from, const float* gain,
                                                int position, float* to) {
  const int lane = threadIdx.x % 32, dim = rotary.head_dim, half = dim / 2;
  float squares = 0;
  for (int i = lane; i < dim; i += 32) squares = fmaf(from[i], from[i], squares);
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, distance);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(dim) + rotary.rms_eps);
  for (int i = lane; i < half; i += 32) {
    const double turns = position * rotary.inverse_turns[i];
    float s, c;
    sincospif(2.0f * static_cast<float>(turns - rint(turns)), &s, &c);
    const float a = from[i] * scale * gain[i], b = from[i + half] * scale * gain[i + half];
    to[i] = a * c - b * s;
    to[i + half] = b * c + a * s;
  }
}

// Grid: rows of a segment x kv heads x segments; one warp.
__global__ void draft_context_kernel(const __grid_constant__ Rotary rotary, const float* k_norm,
                                     MatrixView<const float> k, MatrixView<const float> v,
                                     const DraftContextSegment* segments, int kv_heads) {
  cuda::begin_kernel();
  const DraftContextSegment segment = segments[blockIdx.z];
  const int i = blockIdx.x, head = blockIdx.y, dim = rotary.head_dim;
  if (i >= segment.rows || i + segment.ring.capacity < segment.rows) return;  // a later row takes the same slot
  const int position = segment.position + i, row = segment.first_row + i;
  const std::int64_t slot = (static_cast<std::int64_t>(position % segment.ring.capacity) * kv_heads + head) * dim;
  norm_and_rotate(rotary, cuda::row_of(k, row) + head * dim, k_norm, position, segment.ring.keys + slot);
  for (int d = threadIdx.x; d < dim; d += 32) segment.ring.values[slot + d] = cuda::row_of(v, row)[head * dim + d];
}

constexpr int chunk_keys = 64;  // positions of a chunk; the block itself is the last chunk
constexpr int query_rows = 32;  // at most, per kv head
constexpr int attention_threads = 128;

struct DraftArguments {
  Rotary rotary;
  int query_heads, kv_heads, block, window, max_chunks;
  const float* q_norm;
  const float* k_norm;
  MatrixView<const float> q, k, v;
  MatrixView<float> out;
  cuda::Panel panel;
  const DraftBlockSegment* segments;
  float* partials;  // [segment][kv head][chunk][query row][dim]
  float* stats;     // [segment][kv head][chunk][query row][2]
};

__device__ __forceinline__ int first_position(const DraftArguments& args, const DraftBlockSegment& segment) {
  return args.window > 0 ? max(0, segment.position - args.window + 1) : 0;  // of the anchor's row, the widest view back
}
// Chunks of a segment: by absolute position, so that their sums do not depend on the window's start; then the block.
__device__ __forceinline__ int context_chunks(const DraftArguments& args, const DraftBlockSegment& segment) {
  if (segment.position == 0) return 0;
  return (segment.position - 1) / chunk_keys - first_position(args, segment) / chunk_keys + 1;
}

// One head in a warp's registers: lane holds the pairs (i, i + dim / 2) for i = lane, lane + 32, ...
template <int dim>
struct Head {
  static constexpr int pairs = dim / 64;
  float low[pairs], high[pairs];

  __device__ __forceinline__ void load(const float* from) {
#pragma unroll
    for (int j = 0; j < pairs; ++j)
      low[j] = from[threadIdx.x % 32 + 32 * j], high[j] = from[threadIdx.x % 32 + 32 * j + dim / 2];
  }
  // RMSNorm and rotation, as norm_and_rotate.
  __device__ __forceinline__ void finish(const Rotary& rotary, const float* gain, int position, float* to) const {
    float squares = 0;
#pragma unroll
    for (int j = 0; j < pairs; ++j) squares = fmaf(low[j], low[j], fmaf(high[j], high[j], squares));
#pragma unroll
    for (int distance = 16; distance > 0; distance >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, distance);
    const float scale = 1.0f / sqrtf(squares / static_cast<float>(dim) + rotary.rms_eps);
#pragma unroll
    for (int j = 0; j < pairs; ++j) {
      const int i = threadIdx.x % 32 + 32 * j;
      const double turns = position * rotary.inverse_turns[i];
      float s, c;
      sincospif(2.0f * static_cast<float>(turns - rint(turns)), &s, &c);
      const float a = low[j] * scale * __ldg(gain + i), b = high[j] * scale * __ldg(gain + i + dim / 2);
      to[i] = a * c - b * s;
      to[i + dim / 2] = b * c + a * s;
    }
  }
};

template <int dim>
struct DraftShared {
  float q[query_rows][dim + 4];
  float k[chunk_keys][dim + 4];  // rows stay 16-byte aligned and start in different banks
  float v[chunk_keys][dim];
  float p[query_rows][chunk_keys + 1];
  std::uint64_t full;
};

// Query row m of a kv head: block row m / group, head m % group. Grid: chunks x kv heads x segments.
template <int dim>
__global__ void __launch_bounds__(attention_threads) draft_chunk_kernel(const __grid_constant__ DraftArguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<DraftShared<dim>*>(memory);
  cuda::begin_kernel();
  const DraftBlockSegment segment = args.segments[blockIdx.z];
  const int kv_head = blockIdx.y, group = args.query_heads / args.kv_heads, rows = args.block * group;
  const int chunks = context_chunks(args, segment), chunk = blockIdx.x;
  if (chunk > chunks) return;
  const bool own = chunk == chunks;  // the block's own keys
  const int begin = own ? segment.position : (first_position(args, segment) / chunk_keys + chunk) * chunk_keys;
  const int end = own ? segment.position + args.block : min(begin + chunk_keys, segment.position);
  const int warp = threadIdx.x / 32, count = end - begin;
  const std::uint32_t full = cuda::shared_address(&shared.full);
  if (threadIdx.x == 0) {
    cuda::barrier_init(full, cuda::copy_arrivals(attention_threads));
    cuda::barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x == 0) cuda::begin_copies(full, count * dim * 4 * (own ? 1 : 2));
  // A thread per key requests its rows (a warp, where threads copy themselves); the queries are made meanwhile.
  constexpr int requesters = cuda::hopper_code ? 1 : 32, together = attention_threads / requesters;
  for (int key = threadIdx.x / requesters; key < count; key += together) {
    const int requester = threadIdx.x % requesters;
    const std::int64_t slot =
        (static_cast<std::int64_t>((begin + key) % segment.ring.capacity) * args.kv_heads + kv_head) * dim;
    if (!own)
      cuda::copy(cuda::shared_address(shared.k[key]), segment.ring.keys + slot, dim * 4, full, requester, requesters);
    cuda::copy(cuda::shared_address(shared.v[key]),
               own ? cuda::row_of(args.v, segment.first_row + key) + kv_head * dim : segment.ring.values + slot,
               dim * 4, full, requester, requesters);
  }
  cuda::end_copies(full);
  constexpr int each = query_rows / (attention_threads / 32);
  Head<dim> heads[each];
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int m = min(warp * each + i, rows - 1);
    heads[i].load(cuda::row_of(args.q, segment.first_row + m / group) + (kv_head * group + m % group) * dim);
  }
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int m = warp * each + i;
    heads[i].finish(args.rotary, args.q_norm, segment.position + min(m, rows - 1) / group, shared.q[m]);
  }
  if (own) {
    for (int t = warp; t < count; t += attention_threads / 32) {
      Head<dim> head;
      head.load(cuda::row_of(args.k, segment.first_row + t) + kv_head * dim);
      head.finish(args.rotary, args.k_norm, segment.position + t, shared.k[t]);
    }
  }
  cuda::barrier_wait(full, 0);
  __syncthreads();
  // Scores: thread (r, c) of 8 x 16 takes rows r, r + 8, ... and keys c, c + 16, ...
  const int r = threadIdx.x / 16, c = threadIdx.x % 16;
  float scores[4][4] = {};
  for (int d = 0; d < dim; d += 4) {
    float4 q[4], k[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) q[i] = *reinterpret_cast<const float4*>(&shared.q[r + 8 * i][d]);
#pragma unroll
    for (int j = 0; j < 4; ++j) k[j] = *reinterpret_cast<const float4*>(&shared.k[c + 16 * j][d]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        scores[i][j] =
            fmaf(q[i].x, k[j].x, fmaf(q[i].y, k[j].y, fmaf(q[i].z, k[j].z, fmaf(q[i].w, k[j].w, scores[i][j]))));
      }
    }
  }
  const float scale = rsqrtf(static_cast<float>(dim));
  const std::int64_t part =
      ((static_cast<std::int64_t>(blockIdx.z) * args.kv_heads + kv_head) * args.max_chunks + chunk) * query_rows;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int m = r + 8 * i, position = segment.position + m / group;
    float top = -INFINITY;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int key = c + 16 * j;
      // Strict window: query position - key position < window; block keys are always inside.
      const bool seen = m < rows && key < count && (own || args.window <= 0 || position - (begin + key) < args.window);
      scores[i][j] = seen ? scores[i][j] * scale : -INFINITY;
      top = fmaxf(top, scores[i][j]);
    }
#pragma unroll
    for (int distance = 1; distance < 16; distance <<= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, distance));
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float weight = scores[i][j] == -INFINITY ? 0.0f : expf(scores[i][j] - top);
      shared.p[m][c + 16 * j] = weight;
      sum += weight;
    }
#pragma unroll
    for (int distance = 1; distance < 16; distance <<= 1) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (c == 0) *reinterpret_cast<float2*>(args.stats + (part + m) * 2) = make_float2(top, sum);
  }
  __syncthreads();
  // Values: thread takes one of dim / 4 column quads and every (128 / (dim / 4))-th row.
  constexpr int quads = dim / 4, row_step = attention_threads / quads, rows_each = query_rows / row_step;
  const int d = threadIdx.x % quads * 4, first = threadIdx.x / quads;
  float4 sums[rows_each] = {};
  for (int key = 0; key < count; ++key) {
    const float4 value = *reinterpret_cast<const float4*>(&shared.v[key][d]);
#pragma unroll
    for (int i = 0; i < rows_each; ++i) {
      const float weight = shared.p[first + i * row_step][key];
      sums[i].x = fmaf(weight, value.x, sums[i].x), sums[i].y = fmaf(weight, value.y, sums[i].y);
      sums[i].z = fmaf(weight, value.z, sums[i].z), sums[i].w = fmaf(weight, value.w, sums[i].w);
    }
  }
#pragma unroll
  for (int i = 0; i < rows_each; ++i)
    *reinterpret_cast<float4*>(args.partials + (part + first + i * row_step) * dim + d) = sums[i];
}

// Chunks in order. A block of dim / 8 threads per query row. Grid: query rows x kv heads x segments.
template <int dim>
__global__ void draft_merge_kernel(const __grid_constant__ DraftArguments args) {
  cuda::begin_kernel();
  const DraftBlockSegment segment = args.segments[blockIdx.z];
  const int m = blockIdx.x, kv_head = blockIdx.y, group = args.query_heads / args.kv_heads, column = threadIdx.x * 8;
  const std::int64_t base =
      (static_cast<std::int64_t>(blockIdx.z) * args.kv_heads + kv_head) * args.max_chunks * query_rows + m;
  const int chunks = context_chunks(args, segment) + 1;
  float maximum = -INFINITY, sum = 0, out[8] = {};
#pragma unroll 4
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const std::int64_t part = base + static_cast<std::int64_t>(chunk) * query_rows;
    const float2 stats = *reinterpret_cast<const float2*>(args.stats + part * 2);
    const float4 low = *reinterpret_cast<const float4*>(args.partials + part * dim + column);
    const float4 high = *reinterpret_cast<const float4*>(args.partials + part * dim + column + 4);
    const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const float top = fmaxf(maximum, stats.x);
    const float keep = maximum == -INFINITY ? 0.0f : expf(maximum - top),
                add = stats.x == -INFINITY ? 0.0f : expf(stats.x - top);
    sum = fmaf(sum, keep, stats.y * add);
    maximum = top;
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = fmaf(out[i], keep, values[i] * add);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) out[i] /= sum;
  const int row = segment.first_row + m / group, to = (kv_head * group + m % group) * dim + column;
  cuda::store_columns(args.out, row, to, out);
  cuda::store_line(args.panel, row, to, out);
}

Rotary rotary_of(const DraftAttentionGeometry& geometry) {
  SPLASH_CHECK(geometry.head_dim == 64 || geometry.head_dim == 128, "draft heads of {} have no CUDA kernel",
               geometry.head_dim);
  Rotary rotary{geometry.head_dim, geometry.rms_eps, {}};
  for (int i = 0; i < geometry.head_dim / 2; ++i) {
    rotary.inverse_turns[i] = std::pow(geometry.rope_theta, -2.0 * i / geometry.head_dim) / (2 * std::numbers::pi);
  }
  return rotary;
}

template <int dim>
void run_attention(cuda::Stream& stream, const DraftArguments& args, int segments) {
  cuda::allow_shared(stream, draft_chunk_kernel<dim>, sizeof(DraftShared<dim>));
  cuda::launch(stream, "draft attention chunks",
               {dim3(args.max_chunks, args.kv_heads, segments), dim3(attention_threads), sizeof(DraftShared<dim>)},
               draft_chunk_kernel<dim>, args);
  const int rows = args.block * args.query_heads / args.kv_heads;
  cuda::launch(stream, "draft attention merge", {dim3(rows, args.kv_heads, segments), dim3(dim / 8)},
               draft_merge_kernel<dim>, args);
}

}  // namespace

void block_conv(cuda::Stream& stream, const BlockConv& conv, MatrixView<const float> coefficients,
                MatrixView<const float> y, bool accumulate, MatrixView<float> out) {
  SPLASH_CHECK(y.cols % 8 == 0 && conv.group % 8 == 0 && y.rows % conv.block == 0 && out.cols == y.cols);
  const cuda::Panel panel = stream.panel_to_fill(out);
  const int threads = y.rows * (y.cols / 8);
  cuda::launch(stream, "block_conv", {dim3((threads + 127) / 128), dim3(128)}, block_conv_kernel, conv.base.data(),
               y.cols, conv.group, conv.stage, conv.block, coefficients, y, int{accumulate}, out, panel);
}

void draft_context(cuda::Stream& stream, const DraftAttentionGeometry& geometry, std::span<const float> k_norm,
                   MatrixView<const float> k, MatrixView<const float> v,
                   std::span<const DraftContextSegment> segments) {
  int most_rows = 0;
  for (const DraftContextSegment& segment : segments) most_rows = std::max(most_rows, segment.rows);
  cuda::launch(stream, "draft_context", {dim3(most_rows, geometry.kv_heads, segments.size()), dim3(32)},
               draft_context_kernel, rotary_of(geometry), k_norm.data(), k, v,
               stream.table(segments.data(), segments.size()), geometry.kv_heads);
}

void draft_attention(cuda::Stream& stream, const DraftAttentionGeometry& geometry, std::span<const float> q_norm,
                     std::span<const float> k_norm, MatrixView<const float> q, MatrixView<const float> k,
                     MatrixView<const float> v, int block, std::span<const DraftBlockSegment> segments,
                     MatrixView<float> out) {
  SPLASH_CHECK(block * geometry.query_heads / geometry.kv_heads <= query_rows);
  DraftArguments args{rotary_of(geometry),
                      geometry.query_heads,
                      geometry.kv_heads,
                      block,
                      geometry.window,
                      0,
                      q_norm.data(),
                      k_norm.data(),
                      q,
                      k,
                      v,
                      out,
                      stream.panel_to_fill(out),
                      stream.table(segments.data(), segments.size()),
                      stream.partials(),
                      nullptr};
  int reach = 0;
  for (const DraftBlockSegment& segment : segments) reach = std::max(reach, segment.ring.capacity);
  if (geometry.window > 0) reach = std::min(reach, geometry.window);
  args.max_chunks = (reach + chunk_keys - 1) / chunk_keys + 2;  // cut at both ends, and the block
  const std::size_t parts = segments.size() * geometry.kv_heads * args.max_chunks * query_rows;
  args.stats = args.partials + parts * geometry.head_dim;
  SPLASH_CHECK(parts * (geometry.head_dim + 2) * sizeof(float) <= stream.partials_bytes());
  if (geometry.head_dim == 128) return run_attention<128>(stream, args, static_cast<int>(segments.size()));
  run_attention<64>(stream, args, static_cast<int>(segments.size()));
}

}  // namespace splash::ops
