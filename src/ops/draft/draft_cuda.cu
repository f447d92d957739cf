#include <cmath>
#include <numbers>
#include <vector>

#include "backend/cuda/launch.h"
#include "backend/cuda/lines.cuh"
#include "ops/draft/draft_cuda.h"
#include "ops/fused_cuda.h"

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

// A head's rotation at one position: lane holds the pairs (i, i + dim / 2) for i = lane, lane + 32, ...
template <int dim>
struct Turn {
  static constexpr int pairs = dim / 64;
  float sine[pairs], cosine[pairs];

  __device__ __forceinline__ Turn(const Rotary& rotary, int position) {
#pragma unroll
    for (int j = 0; j < pairs; ++j) {
      const double turns = position * rotary.inverse_turns[threadIdx.x % 32 + 32 * j];
      sincospif(2.0f * static_cast<float>(turns - rint(turns)), &sine[j], &cosine[j]);
    }
  }
};

// A norm's gain, as Head holds a head.
template <int dim>
struct Gain {
  static constexpr int pairs = dim / 64;
  float low[pairs], high[pairs];

  __device__ __forceinline__ explicit Gain(const float* from) {
#pragma unroll
    for (int j = 0; j < pairs; ++j)
      low[j] = __ldg(from + threadIdx.x % 32 + 32 * j), high[j] = __ldg(from + threadIdx.x % 32 + 32 * j + dim / 2);
  }
};

// One head in a warp's registers, its pairs as those of Turn.
template <int dim>
struct Head {
  static constexpr int pairs = dim / 64;
  float low[pairs], high[pairs];

  __device__ __forceinline__ void load(const float* from) {
#pragma unroll
    for (int j = 0; j < pairs; ++j)
      low[j] = from[threadIdx.x % 32 + 32 * j], high[j] = from[threadIdx.x % 32 + 32 * j + dim / 2];
  }
  // RMSNorm and rotation, rounded as `multiply` reads it.
  __device__ __forceinline__ void finish(const Rotary& rotary, const Gain<dim>& gain, const Turn<dim>& turn,
                                         float* to) const {
    float squares = 0;
#pragma unroll
    for (int j = 0; j < pairs; ++j) squares = fmaf(low[j], low[j], fmaf(high[j], high[j], squares));
#pragma unroll
    for (int distance = 16; distance > 0; distance >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, distance);
    float scale;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(scale) : "f"(fmaf(squares, 1.0f / dim, rotary.rms_eps)));
#pragma unroll
    for (int j = 0; j < pairs; ++j) {
      const int i = threadIdx.x % 32 + 32 * j;
      const float a = low[j] * scale * gain.low[j], b = high[j] * scale * gain.high[j];
      to[i] = cuda::rounded_tf32(a * turn.cosine[j] - b * turn.sine[j]);
      to[i + dim / 2] = cuda::rounded_tf32(b * turn.cosine[j] + a * turn.sine[j]);
    }
  }
  // As it is, rounded.
  __device__ __forceinline__ void store(float* to) const {
#pragma unroll
    for (int j = 0; j < pairs; ++j) {
      const int i = threadIdx.x % 32 + 32 * j;
      to[i] = cuda::rounded_tf32(low[j]), to[i + dim / 2] = cuda::rounded_tf32(high[j]);
    }
  }
};

// Layers of a launch: keys and values of each lie `columns` further on in one matrix.
struct ContextLayers {
  static constexpr int most = 16;
  const float* k_norm[most];
  const DraftContextSegment* segments[most];
  int count, columns;
};

// Grid: rows of a segment x kv heads x segments of all layers; one warp. How many of the rows count is decided by the
// kernel before (accept); where they lie is not.
template <int dim>
__global__ void __launch_bounds__(32)
    draft_context_kernel(const __grid_constant__ Rotary rotary, const __grid_constant__ ContextLayers layers,
                         MatrixView<const float> k, MatrixView<const float> v, int kv_heads) {
  cuda::dependents_may_start();
  const int layer = blockIdx.z % layers.count, column = layer * layers.columns;
  const float* k_norm = layers.k_norm[layer];
  const DraftContextSegment& segment = layers.segments[layer][blockIdx.z / layers.count];
  const int i = blockIdx.x, head = blockIdx.y;
  const int position = segment.position + i, row = segment.first_row + i;
  const DraftRing ring = segment.ring;
  const std::int64_t slot = (static_cast<std::int64_t>(position % ring.capacity) * kv_heads + head) * dim;
  const Turn<dim> turn(rotary, position);
  const Gain<dim> gain(k_norm);
  cuda::wait_for_predecessors();
  const int rows = segment.rows;
  if (i >= rows || i + ring.capacity < rows) return;  // a later row takes the same slot
  Head<dim> key, value;
  key.load(cuda::row_of(k, row) + column + head * dim);
  value.load(cuda::row_of(v, row) + column + head * dim);
  key.finish(rotary, gain, turn, ring.keys + slot);
  value.store(ring.values + slot);
}

constexpr int chunk_keys = 64;  // positions of a chunk
constexpr int query_rows = 32;  // at most, per kv head
constexpr int attention_threads = 256, attention_warps = attention_threads / 32;

struct DraftArguments {
  Rotary rotary;
  int query_heads, kv_heads, block, window, max_chunks;
  int group, group_inverse;  // query heads per kv head; m / group is m * group_inverse >> 16
  int resident;  // blocks of a kv head of a segment that are on the chip at once; two at least, a block's keys lie in two
                 // chunks at most
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
// Chunks of a segment: by absolute position, so that their sums do not depend on the window's start. The block's own
// keys are those behind the context: mostly they lie in its last chunk, which costs less than a chunk of their own.
__device__ __forceinline__ int chunks_of(const DraftArguments& args, const DraftBlockSegment& segment) {
  return (segment.position + args.block - 1) / chunk_keys - first_position(args, segment) / chunk_keys + 1;
}

// Strides in floats put the rows that a fragment reads into different banks: 16-byte reads of q and k rows, words of v
// and p.
template <int dim>
struct DraftShared {
  float q[query_rows][dim + 16];
  float p[query_rows][chunk_keys + 4];
  float k[chunk_keys][dim + 16];
  float v[chunk_keys][dim + 8];
  float tops[4][query_rows], sums[4][query_rows];
  std::uint64_t keys_full, values_full;
};
static_assert(sizeof(DraftShared<128>) <= 99 << 10);  // what every GPU from sm_80 on gives a block

// c += a b of 16 x 8 and 8 x 8 (a0 row g, k t; a1 row g + 8; a2, a3 k t + 4; b0 k t, column g; b1 k t + 4). All numbers
// are tf32: whoever stores a query, key, value or weight has rounded it, to three bits more than the panels of 4-bit
// linears have, from which they were made. (A draft only proposes; products good to 2^-21 were three of pairs of tf32:
// decision 0029.)
__device__ __forceinline__ void multiply(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
  cuda::mma_tf32(c, __float_as_uint(a[0]), __float_as_uint(a[1]), __float_as_uint(a[2]), __float_as_uint(a[3]),
                 __float_as_uint(b[0]), __float_as_uint(b[1]));
}

// 2^(a - b), where a may be -infinity.
__device__ __forceinline__ float power(float a, float b) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(a - b));
  return a == -INFINITY ? 0.0f : y;
}

// What threads stored comes before what the copy engine writes at the same place.
__device__ __forceinline__ void stores_before_copies() {
  if constexpr (cuda::hopper_code) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A chunk of a segment's keys: `old` ones from the ring, then those of the block itself.
struct DraftChunk {
  int chunk, begin, count, old;
  __device__ DraftChunk(const DraftArguments& args, const DraftBlockSegment& segment, int number) : chunk(number) {
    begin = (first_position(args, segment) / chunk_keys + number) * chunk_keys;
    const int context = segment.position - begin;
    old = max(0, min(chunk_keys, context)), count = min(chunk_keys, context + args.block);
  }
};

// Rows of keys or values on their way: one a thread (a warp, where threads copy themselves), dealt to all warps, because
// bulk copies of a warp follow each other.
template <int dim, class Rows>
__device__ __forceinline__ void request_chunk(const DraftArguments& args, const DraftRing& ring, const DraftChunk& unit,
                                              int kv_head, const float* from, Rows& to, std::uint64_t& arrived) {
  constexpr int requesters = cuda::hopper_code ? 1 : 32;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, count = unit.old;
  const std::uint32_t barrier = cuda::shared_address(&arrived);
  if (threadIdx.x == 0) cuda::begin_copies(barrier, count * dim * 4);
  for (int key = cuda::hopper_code ? lane * attention_warps + warp : warp; key < count;
       key += attention_threads / requesters) {
    const std::int64_t slot =
        (static_cast<std::int64_t>((unit.begin + key) % ring.capacity) * args.kv_heads + kv_head) * dim;
    cuda::copy(cuda::shared_address(to[key]), from + slot, dim * 4, barrier, lane % requesters, requesters);
  }
  cuda::end_copies(barrier);
}

// Query row m of a kv head: block row m / group, head m % group. Grid: blocks that share the chunks x kv heads x
// segments. What the rings hold is older than the kernels around this one (draft_cuda.h): it is requested while they run.
// Where chunks are more than three times the blocks that are there at once, a block takes several and makes the queries
// once; the next chunk's keys come while this one's values are multiplied. (At fewer the last block decides, and one that
// takes two chunks ends later: four lanes with half a window, 0017.)
template <int dim>
__global__ void __launch_bounds__(attention_threads, 2) draft_chunk_kernel(const __grid_constant__ DraftArguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<DraftShared<dim>*>(memory);
  cuda::dependents_may_start();
  const DraftBlockSegment segment = args.segments[blockIdx.z];
  const int kv_head = blockIdx.y, group = args.group, rows = args.block * group;
  const int chunks = chunks_of(args, segment);
  const int step = chunks > 3 * args.resident ? args.resident : chunks;
  int index = blockIdx.x;  // the chunks with the block's own keys, which take longest, come first
  if (index >= step) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  if (threadIdx.x == 0) {
    cuda::barrier_init(cuda::shared_address(&shared.keys_full), cuda::copy_arrivals(attention_threads));
    cuda::barrier_init(cuda::shared_address(&shared.values_full), cuda::copy_arrivals(attention_threads));
    cuda::barrier_init_done();
  }
  __syncthreads();
  const auto request_keys = [&](const DraftChunk& unit) {
    request_chunk<dim>(args, segment.ring, unit, kv_head, segment.ring.keys, shared.k, shared.keys_full);
  };
  const auto request_values = [&](const DraftChunk& unit) {
    request_chunk<dim>(args, segment.ring, unit, kv_head, segment.ring.values, shared.v, shared.values_full);
    // What no key fills must be finite: weights of such keys are zero.
    for (int i = threadIdx.x; i < (chunk_keys - unit.count) * dim / 4; i += attention_threads)
      *reinterpret_cast<float4*>(&shared.v[unit.count + i / (dim / 4)][i % (dim / 4) * 4]) = make_float4(0, 0, 0, 0);
  };
  DraftChunk unit(args, segment, chunks - 1 - index);
  request_keys(unit), request_values(unit);
  constexpr int each = query_rows / attention_warps;
  const auto query = [&](int i) { return min(warp * each + i, rows - 1); };
  const auto row_of = [&](int m) { return m * args.group_inverse >> 16; };
  Turn<dim> turn(args.rotary, segment.position + row_of(query(0)));
  const Gain<dim> gain(args.q_norm);
  cuda::wait_for_predecessors();
  Head<dim> heads[each];
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int m = query(i), row = row_of(m);
    heads[i].load(cuda::row_of(args.q, segment.first_row + row) + (kv_head * group + m - row * group) * dim);
  }
  // Only the first chunk of a block can have some of the block's own keys (DraftArguments::resident).
#pragma unroll 1
  for (int key = unit.old + warp; key < unit.count; key += attention_warps) {
    const int position = unit.begin + key, row = segment.first_row + position - segment.position;
    Head<dim> head, value;
    head.load(cuda::row_of(args.k, row) + kv_head * dim), value.load(cuda::row_of(args.v, row) + kv_head * dim);
    head.finish(args.rotary, Gain<dim>(args.k_norm), Turn<dim>(args.rotary, position), shared.k[key]);
    value.store(shared.v[key]);
  }
#pragma unroll
  for (int i = 0; i < each; ++i) {
    if (i > 0 && row_of(query(i)) != row_of(query(i - 1)))
      turn = Turn<dim>(args.rotary, segment.position + row_of(query(i)));
    heads[i].finish(args.rotary, gain, turn, shared.q[warp * each + i]);
  }
  const float scale = rsqrtf(static_cast<float>(dim)) * 1.4426950408889634f;  // weights are powers of two
  const int quarter = warp % 4, first_row = warp / 4 * 16, first_key = quarter * 16;
#pragma unroll 1
  for (unsigned parity = 0;; parity ^= 1) {
    const int count = unit.count, begin = unit.begin;
    stores_before_copies();
    __syncthreads();  // queries and the block's own keys are there
    cuda::barrier_wait(cuda::shared_address(&shared.keys_full), parity);
    // Scores: a warp has sixteen rows and sixteen keys.
    float scores[2][4] = {};
#pragma unroll 4
    for (int d = t * 4; d < (first_key < count ? dim : 0); d += 16) {
      float4 a[2], b[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        a[i] = *reinterpret_cast<const float4*>(&shared.q[first_row + i * 8 + g][d]);
        b[i] = *reinterpret_cast<const float4*>(&shared.k[first_key + i * 8 + g][d]);
      }
      // Which of sixteen dims are k t and t + 4 of a product does not matter, if both sides agree.
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float q[4], k[2][2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          q[i] = half ? a[i].z : a[i].x, q[2 + i] = half ? a[i].w : a[i].y;
          k[i][0] = half ? b[i].z : b[i].x, k[i][1] = half ? b[i].w : b[i].y;
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) multiply(scores[n], q, k[n]);
      }
    }
    const std::int64_t part =
        ((static_cast<std::int64_t>(blockIdx.z) * args.kv_heads + kv_head) * args.max_chunks + unit.chunk) * query_rows;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int m = first_row + h * 8 + g;
      // Strict window: query position - key position < window; the block's own keys are always inside. So the first key
      // that is seen, of this thread's, which are n * 8 + c:
      const int own = segment.position - begin - first_key - 2 * t;
      const int first = args.window > 0 ? min(own, own + row_of(m) - args.window + 1) : -chunk_keys;
      const int end = m < rows ? count - first_key - 2 * t : 0;
      float top = -INFINITY;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& score = scores[n][h * 2 + c];
          score = n * 8 + c >= first && n * 8 + c < end ? score * scale : -INFINITY;
          top = fmaxf(top, score);
        }
      }
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      if (t == 0) shared.tops[quarter][m] = top;
    }
    __syncthreads();  // the keys have been read
    index += step;
    const bool more = index < chunks;
    if (more) unit = DraftChunk(args, segment, chunks - 1 - index), request_keys(unit);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int m = first_row + h * 8 + g;
      const float top =
          fmaxf(fmaxf(shared.tops[0][m], shared.tops[1][m]), fmaxf(shared.tops[2][m], shared.tops[3][m]));
      float sum = 0;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float2 weights;
        weights.x = cuda::rounded_tf32(power(scores[n][h * 2], top));
        weights.y = cuda::rounded_tf32(power(scores[n][h * 2 + 1], top));
        *reinterpret_cast<float2*>(&shared.p[m][first_key + n * 8 + 2 * t]) = weights;
        sum += weights.x + weights.y;
      }
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (t == 0) shared.sums[quarter][m] = sum;
      if (quarter == 0 && t == 0) args.stats[(part + m) * 2] = top;
    }
    __syncthreads();
    if (threadIdx.x < query_rows) {
      const int m = threadIdx.x;
      args.stats[(part + m) * 2 + 1] = shared.sums[0][m] + shared.sums[1][m] + shared.sums[2][m] + shared.sums[3][m];
    }
    cuda::barrier_wait(cuda::shared_address(&shared.values_full), parity);
    // Values: a warp has sixteen rows and a quarter of the columns.
    constexpr int tiles = dim / 32;
    const int first_column = quarter * (dim / 4);
    float sums[tiles][4] = {};
#pragma unroll 2
    for (int key = 0; key < count; key += 8) {
      float p[4], v[tiles][2];
#pragma unroll
      for (int c = 0; c < 4; ++c) p[c] = shared.p[first_row + c % 2 * 8 + g][key + t + c / 2 * 4];
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) v[n][c] = shared.v[key + t + c * 4][first_column + n * 8 + g];
      }
#pragma unroll
      for (int n = 0; n < tiles; ++n) multiply(sums[n], p, v[n]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
        *reinterpret_cast<float2*>(args.partials + (part + first_row + h * 8 + g) * dim + first_column + n * 8 + 2 * t) =
            make_float2(sums[n][h * 2], sums[n][h * 2 + 1]);
      }
    }
    if (!more) break;
    __syncthreads();  // the values have been read
    request_values(unit);
  }
}

// The chunks' sums, weighed by the largest score of all. A warp has 64 columns of a query row, two a lane; lane l holds
// the weights of chunks l and l + 32 of those that are asked for at once (a window of 2,048 has 34 at most). Grid: query
// rows x kv heads x segments.
template <int dim>
__global__ void __launch_bounds__(dim / 2) draft_merge_kernel(const __grid_constant__ DraftArguments args) {
  cuda::dependents_may_start();
  const DraftBlockSegment segment = args.segments[blockIdx.z];
  constexpr int columns = 2, at_once = 34;
  const int m = blockIdx.x, kv_head = blockIdx.y, group = args.group, lane = threadIdx.x % 32;
  const std::int64_t base =
      (static_cast<std::int64_t>(blockIdx.z) * args.kv_heads + kv_head) * args.max_chunks * query_rows + m;
  const int chunks = chunks_of(args, segment);
  const float* from = args.partials + base * dim + threadIdx.x * columns;
  const float* stats_from = args.stats + base * 2;
  cuda::wait_for_predecessors();
  float2 out = {};
  float maximum = -INFINITY, sum = 0;
#pragma unroll 1
  for (int first = 0; first < chunks; first += at_once) {
    const int count = min(at_once, chunks - first);
    float2 stats[2], values[at_once];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      stats[i] = *reinterpret_cast<const float2*>(stats_from + min(lane + 32 * i, count - 1) * (query_rows * 2));
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      if (j < count) values[j] = *reinterpret_cast<const float2*>(from + j * (query_rows * dim));
    }
    from += at_once * query_rows * dim, stats_from += at_once * query_rows * 2;
    float top = fmaxf(stats[0].x, stats[1].x);
#pragma unroll
    for (int distance = 16; distance > 0; distance >>= 1)
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, distance));
    top = fmaxf(top, maximum);
    const float keep = power(maximum, top);
    float weights[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) weights[i] = lane + 32 * i >= count ? 0.0f : power(stats[i].x, top);
    float share = fmaf(weights[1], stats[1].y, weights[0] * stats[0].y);
#pragma unroll
    for (int distance = 16; distance > 0; distance >>= 1) share += __shfl_xor_sync(0xffffffffu, share, distance);
    sum = fmaf(sum, keep, share), maximum = top;
    out.x *= keep, out.y *= keep;
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      const float weight = __shfl_sync(0xffffffffu, weights[j / 32], j % 32);
      if (j < count) out.x = fmaf(values[j].x, weight, out.x), out.y = fmaf(values[j].y, weight, out.y);
    }
  }
  const float inverse = 1.0f / sum;
  out.x *= inverse, out.y *= inverse;
  // Lines of eight columns: four lanes have one.
  const int in_block = m * args.group_inverse >> 16, row = segment.first_row + in_block,
            column = (kv_head * group + m - in_block * group) * dim + static_cast<int>(threadIdx.x) / 32 * 64 + lane * 8;
  float line[8];
#pragma unroll
  for (int i = 0; i < 8; ++i)
    line[i] = __shfl_sync(0xffffffffu, i % columns ? out.y : out.x, lane * 4 % 32 + i / columns);
  if (lane >= 8) return;
  cuda::store_columns(args.out, row, column, line);
  cuda::store_line(args.panel, row, column, line);
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
  cuda::launch(stream, "draft attention merge", {dim3(rows, args.kv_heads, segments), dim3(dim / 2)},
               draft_merge_kernel<dim>, args);
}

// Keys and values of all layers, each `columns` behind those of the layer before.
void store_contexts(cuda::Stream& stream, const DraftAttentionGeometry& geometry,
                    std::span<const DraftContextLayer> layers, MatrixView<const float> k, MatrixView<const float> v,
                    int columns) {
  ContextLayers of{.count = static_cast<int>(layers.size()), .columns = columns};
  const std::size_t segments = layers.front().segments.size();
  int most_rows = 0;
  for (int l = 0; l < of.count; ++l) {
    const std::span<const DraftContextSegment> of_layer = layers[l].segments;
    SPLASH_CHECK(of_layer.size() == segments);
    for (const DraftContextSegment& segment : of_layer) most_rows = std::max(most_rows, segment.rows);
    of.k_norm[l] = layers[l].k_norm.data();
    of.segments[l] = stream.table(of_layer.data(), segments);
  }
  cuda::launch(stream, "draft_context", {dim3(most_rows, geometry.kv_heads, segments * of.count), dim3(32)},
               geometry.head_dim == 128 ? draft_context_kernel<128> : draft_context_kernel<64>, rotary_of(geometry), of,
               k, v, geometry.kv_heads);
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
  const DraftContextLayer layer{{}, {}, k_norm, segments};
  store_contexts(stream, geometry, {&layer, 1}, k, v, 0);
}

void draft_contexts(cuda::Stream& stream, const DraftAttentionGeometry& geometry, MatrixView<const float> context,
                    std::span<const DraftContextLayer> layers) {
  const int count = static_cast<int>(layers.size()), width = geometry.kv_heads * geometry.head_dim;
  if (context.rows >= cuda::wide_pass_rows || count > ContextLayers::most) {
    return draft_contexts<cuda::Stream>(stream, geometry, context, layers);
  }
  const MatrixView<float> all = stream.matrix(context.rows, count * 2 * width);
  std::vector<LinearTarget> targets;
  for (int l = 0; l < count; ++l) {
    targets.push_back({layers[l].k, all.slice_cols(2 * l * width, width)});
    targets.push_back({layers[l].v, all.slice_cols((2 * l + 1) * width, width)});
  }
  linear(stream, context, targets);
  store_contexts(stream, geometry, layers, all.slice_cols(0, width), all.slice_cols(width, width), 2 * width);
}

void draft_attention(cuda::Stream& stream, const DraftAttentionGeometry& geometry, std::span<const float> q_norm,
                     std::span<const float> k_norm, MatrixView<const float> q, MatrixView<const float> k,
                     MatrixView<const float> v, int block, std::span<const DraftBlockSegment> segments,
                     MatrixView<float> out) {
  const int group = geometry.query_heads / geometry.kv_heads;
  SPLASH_CHECK(block * group <= query_rows && block <= chunk_keys);
  DraftArguments args{rotary_of(geometry),
                      geometry.query_heads,
                      geometry.kv_heads,
                      block,
                      geometry.window,
                      0,
                      group,
                      (65536 + group - 1) / group,
                      std::max(2, 2 * stream.facts().multiprocessors /
                                      (geometry.kv_heads * static_cast<int>(segments.size()))),
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
  args.max_chunks = (reach + block + chunk_keys - 3) / chunk_keys + 1;  // reach + block - 1 positions, cut at both ends
  const std::size_t parts = segments.size() * geometry.kv_heads * args.max_chunks * query_rows;
  args.stats = args.partials + parts * geometry.head_dim;
  SPLASH_CHECK(parts * (geometry.head_dim + 2) * sizeof(float) <= stream.partials_bytes());
  if (geometry.head_dim == 128) return run_attention<128>(stream, args, static_cast<int>(segments.size()));
  run_attention<64>(stream, args, static_cast<int>(segments.size()));
}

}  // namespace splash::ops
