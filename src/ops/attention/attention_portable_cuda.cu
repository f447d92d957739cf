// Attention on the portable path, for any pass: chunks of positions on mma.sync over int8 pages, fp16 products with
// float32 sums, log-domain weights; then the chunks' results in order.
//
// Who computes a chunk, how many rows share a tile and whether the merge runs in the block or behind it change no bit of
// a row, and there is no other kernel for wide passes: alone, in company, cold or cached, a row has the same bits.
#include <algorithm>

#include "backend/cuda/launch.h"
#include "ops/attention/attention_cuda.cuh"
#include "ops/attention/attention_portable_cuda.h"

namespace splash::ops::paged {
namespace portable {
namespace {

constexpr int rows_per_tile = 8;  // rows of a segment that share a block's keys

// Chunks of absolute positions: short ones first, so that a short context already fills the chip; long ones later, so
// that partial sums stay small against the pages. At most 120 up to 262,144 positions.
constexpr int max_chunks = 120;
__host__ __device__ constexpr int chunk_begin(int chunk) {
  if (chunk < 16) return chunk * 128;
  if (chunk < 40) return 2048 + (chunk - 16) * 256;
  if (chunk < 64) return 8192 + (chunk - 40) * 1024;
  return 32768 + (chunk - 64) * 4096;
}
__host__ __device__ constexpr int chunks_for(int positions) {
  if (positions <= 2048) return (positions + 127) / 128;
  if (positions <= 8192) return 16 + (positions - 2048 + 255) / 256;
  if (positions <= 32768) return 40 + (positions - 8192 + 1023) / 1024;
  return 64 + (positions - 32768 + 4095) / 4096;
}

// Shared memory of the chunk kernel for MT matrix tiles of 16 query rows.
template <int MT, int STAGES>
struct ChunkShared {
  std::uint8_t pages[STAGES][2 * page_bytes];
  uint4 queries[MT][16][32];  // A fragments
  uint4 weights[MT][4][32];   // the block's weights as A fragments
  float maxima[warps][MT * 16];
  float sums[warps][MT * 16];
};

// A tile of query rows: row m of the tile is segment row first + m / group, head m % group of the kv head's group.
struct QueryRows {
  int kv_head, group, first, rows, position;  // position: of the tile's first row
  __device__ int row(int m) const { return m / group; }
  __device__ bool valid(int m) const { return m / group < rows; }
};

// Rows m = 16 i + g (+ 8): two per matrix tile and thread.
template <int MT>
struct Running {
  float maximum[MT][2];
  float sum[MT][2];     // this thread's share within a chunk
  float out[MT][8][4];  // dims warp * 64 + 8 n + 2t, + 1
};

template <int MT, int STAGES>
__device__ __forceinline__ void load_query_tile(const Arguments& args, const SegmentEntry& segment, const QueryRows& tile,
                                             ChunkShared<MT, STAGES>& shared) {
  // All reads first, then all stores: each store would hold back the reads behind it.
  constexpr int each = MT * 16 * 32 / threads;
  uint2 low[each], high[each];
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int j = 0; j < each; ++j) {
    const int step = (j * warps + threadIdx.x / 32) % 16, i = j * warps / 16;
    // Step 4 s + u takes dims 64 s + 16 t + 4 u + 0..3 of thread t: what one 16-byte read of a key row brings.
    const int d = step / 4 * 64 + t * 16 + step % 4 * 4;
    const int m0 = i * 16 + g, m1 = m0 + 8;
    auto at = [&](int m) {
      const std::int64_t row = segment.first_row + tile.first + tile.row(m);
      return reinterpret_cast<const uint2*>(
          args.queries + (row * args.query_heads + tile.kv_head * tile.group + m % tile.group) * dim + d);
    };
    low[j] = tile.valid(m0) ? *at(m0) : make_uint2(0, 0);
    high[j] = tile.valid(m1) ? *at(m1) : make_uint2(0, 0);
  }
#pragma unroll
  for (int j = 0; j < each; ++j) {
    shared.queries[j * warps / 16][(j * warps + threadIdx.x / 32) % 16][lane] =
        make_uint4(low[j].x, high[j].x, low[j].y, high[j].y);
  }
}

// Weights of one block of 64 positions: scores against this warp's 16 keys, maxima over the block, weights to shared
// memory as fp16 with the value scale inside: w = 2^(s + log2(scale) - maximum) <= 1, so fp16 never overflows and a
// tiny scale never underflows; the denominator sums 2^(s - maximum).
template <int MT, int STAGES>
__device__ __forceinline__ void weigh_positions(const QueryRows& tile, int position, const std::uint8_t* pages,
                                            ChunkShared<MT, STAGES>& shared, int warp, int lane, Running<MT>& run,
                                            float (&factors)[MT][2]) {
  const int g = lane / 4, t = lane % 4, in_page = warp % 2 * 16;
  const std::uint8_t* keys = pages + warp / 2 * page_bytes;
  float scores[MT][2][4] = {};
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    uint4 words[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int row = in_page + n * 8 + g;
      words[n] = *reinterpret_cast<const uint4*>(keys + row * dim + ((s * 64 + t * 16) ^ (row & 1) << 6));
    }
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      std::uint32_t b[2][2];
#pragma unroll
      for (int n = 0; n < 2; ++n)
        codes_to_fp16(u == 0 ? words[n].x : u == 1 ? words[n].y : u == 2 ? words[n].z : words[n].w, b[n]);
#pragma unroll
      for (int i = 0; i < MT; ++i) {
        const uint4 a = shared.queries[i][s * 4 + u][lane];
#pragma unroll
        for (int n = 0; n < 2; ++n) cuda::mma_fp16(scores[i][n], a.x, a.y, a.z, a.w, b[n][0], b[n][1]);
      }
    }
  }
  float value_logs[2][2];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int at = in_page + n * 8 + 2 * t;
    const float2 key_scales = *reinterpret_cast<const float2*>(keys + key_scales_offset + at * 4);
    const float2 value_scales = *reinterpret_cast<const float2*>(keys + value_scales_offset + at * 4);
    value_logs[n][0] = __log2f(value_scales.x), value_logs[n][1] = __log2f(value_scales.y);
    const int first = position + warp * 16 + n * 8 + 2 * t;
#pragma unroll
    for (int i = 0; i < MT; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int m = i * 16 + g + c / 2 * 8;
        const bool seen = tile.valid(m) && first + c % 2 <= tile.position + tile.row(m);
        scores[i][n][c] = seen ? scores[i][n][c] * (c % 2 ? key_scales.y : key_scales.x) : -INFINITY;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < MT; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = -INFINITY;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float score = scores[i][n][h * 2 + c];
          if (score != -INFINITY) top = fmaxf(top, score + value_logs[n][c]);
        }
      }
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      if (t == 0) shared.maxima[warp][i * 16 + h * 8 + g] = top;
    }
  }
  __syncthreads();  // also: everyone is done with the weights and the pages of the block before
#pragma unroll
  for (int i = 0; i < MT; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int m = i * 16 + h * 8 + g;
      float top = run.maximum[i][h];
#pragma unroll
      for (int w = 0; w < warps; ++w) top = fmaxf(top, shared.maxima[w][m]);
      factors[i][h] = power(run.maximum[i][h], top);
      run.maximum[i][h] = top;
      float sum = run.sum[i][h] * factors[i][h];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float w[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float score = scores[i][n][h * 2 + c];
          w[c] = score == -INFINITY ? 0.0f : exp2_fast(score + value_logs[n][c] - top);
          sum += power(score, top);
        }
        // Position 8 t' + 4 u + 2 pair + low bit of a page is thread t' of step u: t' = 2 (warp % 2) + n, u = t / 2,
        // pair = t % 2.
        reinterpret_cast<std::uint32_t*>(
            &shared.weights[i][warp / 2 * 2 + t / 2][g * 4 + warp % 2 * 2 + n])[t % 2 * 2 + h] =
            cuda::pack_fp16(w[0], w[1]);
      }
      run.sum[i][h] = sum;
    }
  }
  __syncthreads();
}

// out = out * factor + weights * values, this warp's 64 dims.
template <int MT, int STAGES>
__device__ __forceinline__ void add_positions(const std::uint8_t* pages, const ChunkShared<MT, STAGES>& shared, int warp,
                                           int lane, const float (&factors)[MT][2], Running<MT>& run) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < MT; ++i) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) run.out[i][n][c] *= factors[i][c / 2];
    }
  }
#pragma unroll
  for (int p = 0; p < 2; ++p) {
    uint4 a[MT][2];
#pragma unroll
    for (int i = 0; i < MT; ++i) a[i][0] = shared.weights[i][p * 2][lane], a[i][1] = shared.weights[i][p * 2 + 1][lane];
    // Several groups of dims at a time: eight or more independent sums, so that a product never waits for the one
    // before it.
    constexpr int together = MT > 3 ? 2 : 4;
#pragma unroll
    for (int first = 0; first < 8; first += together) {
      uint2 words[together];
#pragma unroll
      for (int n = 0; n < together; ++n) {
        words[n] = *reinterpret_cast<const uint2*>(pages + p * page_bytes + values_offset +
                                                   (warp * 64 + (first + n) * 8 + g) * page + t * 8);
      }
#pragma unroll
      for (int u = 0; u < 2; ++u) {
#pragma unroll
        for (int n = 0; n < together; ++n) {
          std::uint32_t b[2];
          codes_to_fp16(u == 0 ? words[n].x : words[n].y, b);
#pragma unroll
          for (int i = 0; i < MT; ++i)
            cuda::mma_fp16(run.out[i][first + n], a[i][u].x, a[i][u].y, a[i][u].z, a[i][u].w, b[0], b[1]);
        }
      }
    }
  }
}

template <int MT, int STAGES>
constexpr std::size_t chunk_bytes = (sizeof(ChunkShared<MT, STAGES>) + 127) / 128 * 128;

// Grid: splits x (kv heads * tiles) x segments. Split s takes chunks s, s + splits, ...; with one split (prefill)
// chunks are merged here, by the very steps of the merge kernel, in `merged`: [segment][kv head, tile][MT * 16][256] in
// the L2, because 99 KB of shared memory (8.6, 8.9, 12.0) hold the pages and the queries only. A thread reads only what
// it wrote.
template <int MT, int STAGES>
__global__ void __launch_bounds__(threads)
    portable_chunk_kernel(const __grid_constant__ Arguments args, float* merged) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<ChunkShared<MT, STAGES>*>(memory);
  const bool alone = merged;
  if (alone) merged += (static_cast<std::int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * MT * 16 * dim;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const SegmentEntry segment = args.segments[blockIdx.z];
  QueryRows tile;
  const int tile_index = blockIdx.y % args.tiles;
  tile.kv_head = blockIdx.y / args.tiles;
  tile.group = args.query_heads / args.kv_heads;
  tile.first = tile_index * rows_per_tile;
  tile.rows = min(rows_per_tile, segment.rows - tile.first);
  tile.position = segment.position + tile.first;
  if (tile.rows <= 0) return;
  const int limit = tile.position + tile.rows;  // positions visible to the last row
  const int chunks = chunks_for(limit);
  if (static_cast<int>(blockIdx.x) >= chunks) return;
  auto request = [&](int position, int stage) {  // all threads, pieces of 16 bytes
    const std::uint32_t to = cuda::shared_address(shared.pages[stage]);
    for (int p = 0; p < 2; ++p) {
      if (position + p * page >= limit) break;
      const std::uint8_t* from = page_at(args, segment, position / page + p, tile.kv_head);
      for (int at = threadIdx.x * 16; at < page_bytes; at += threads * 16)
        cuda::copy_16(to + p * page_bytes + at, from + at);
    }
  };
  // The blocks of this split's chunks in order; the next one is always on its way.
  auto next_block = [&](int& chunk, int position) {
    position += block;
    if (position >= min(chunk_begin(chunk + 1), limit)) {
      chunk += gridDim.x;
      position = chunk_begin(chunk);
    }
    return position;
  };
  int ahead_chunk = blockIdx.x, ahead_position = chunk_begin(ahead_chunk), stage = 0;
  request(ahead_position, 0);
  load_query_tile<MT, STAGES>(args, segment, tile, shared);
  __syncthreads();
  float maximum[MT][2], sum[MT][2];
#pragma unroll
  for (int i = 0; i < MT; ++i) maximum[i][0] = maximum[i][1] = -INFINITY, sum[i][0] = sum[i][1] = 0;
  for (int chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    Running<MT> run;
#pragma unroll
    for (int i = 0; i < MT; ++i) {
      run.maximum[i][0] = run.maximum[i][1] = -INFINITY, run.sum[i][0] = run.sum[i][1] = 0;
#pragma unroll
      for (int n = 0; n < 8; ++n) run.out[i][n][0] = run.out[i][n][1] = run.out[i][n][2] = run.out[i][n][3] = 0;
    }
    const int end = min(chunk_begin(chunk + 1), limit);
    for (int position = chunk_begin(chunk); position < end; position += block) {
      cuda::finish_copies();
      __syncthreads();  // all of this block of positions is here, and everyone has left the one before
      ahead_position = next_block(ahead_chunk, ahead_position);
      const bool more = ahead_chunk < chunks;
      if (STAGES == 2 && more) request(ahead_position, stage ^ 1);
      float factors[MT][2];
      weigh_positions<MT, STAGES>(tile, position, shared.pages[stage], shared, warp, lane, run, factors);
      add_positions<MT, STAGES>(shared.pages[stage], shared, warp, lane, factors, run);
      if constexpr (STAGES == 2) {
        stage ^= 1;
      } else {
        __syncthreads();
        if (more) request(ahead_position, 0);
      }
    }
    // The row sums of the warps.
#pragma unroll
    for (int i = 0; i < MT; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float share = run.sum[i][h];
        share += __shfl_xor_sync(0xffffffffu, share, 1);
        share += __shfl_xor_sync(0xffffffffu, share, 2);
        if (t == 0) shared.sums[warp][i * 16 + h * 8 + g] = share;
      }
    }
    __syncthreads();
    const std::int64_t part =
        ((static_cast<std::int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * max_chunks + chunk) * MT * 16;
#pragma unroll
    for (int i = 0; i < MT; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int m = i * 16 + h * 8 + g;
        const float total = shared.sums[0][m] + shared.sums[1][m] + shared.sums[2][m] + shared.sums[3][m];
        if (alone) {
          float keep, add;
          merge_factors(maximum[i][h], sum[i][h], run.maximum[i][h], total, keep, add);
          float2* to = reinterpret_cast<float2*>(merged + m * dim + warp * 64 + 2 * t);
          float2 before[8];
#pragma unroll
          for (int n = 0; n < 8; ++n) before[n] = chunk == 0 ? make_float2(0, 0) : to[n * 4];
#pragma unroll
          for (int n = 0; n < 8; ++n) {
            to[n * 4] = make_float2(fmaf(before[n].x, keep, __fmul_rn(run.out[i][n][h * 2], add)),
                                    fmaf(before[n].y, keep, __fmul_rn(run.out[i][n][h * 2 + 1], add)));
          }
        } else {
          if (warp == 0 && t == 0)
            *reinterpret_cast<float2*>(args.stats + (part + m) * 2) = make_float2(run.maximum[i][h], total);
#pragma unroll
          for (int n = 0; n < 8; ++n) {
            *reinterpret_cast<float2*>(args.partials + (part + m) * dim + warp * 64 + n * 8 + 2 * t) =
                make_float2(run.out[i][n][h * 2], run.out[i][n][h * 2 + 1]);
          }
        }
      }
    }
    __syncthreads();
  }
  if (alone) {
#pragma unroll
    for (int i = 0; i < MT; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int m = i * 16 + h * 8 + g;
        if (!tile.valid(m)) continue;
        const int row = segment.first_row + tile.first + tile.row(m), head = tile.kv_head * tile.group + m % tile.group;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const int d = warp * 64 + n * 8 + 2 * t + c;
            const float gate = cuda::row_of(args.rows.q_gate, row)[head * 2 * dim + dim + d];
            const float value = merged[m * dim + d] / sum[i][h] / (1.0f + expf(-gate));
            cuda::row_of(args.out, row)[head * dim + d] = value;
            cuda::store_element(args.panel, row, head * dim + d, value);
          }
        }
      }
    }
  }
}

// Chunks in order, then the gate. A warp per query row, eight dims per lane. Grid: rows of a tile / 4 x (kv heads *
// tiles) x segments.
__global__ void __launch_bounds__(threads) portable_merge_kernel(const __grid_constant__ Arguments args, int matrix_rows) {
  cuda::begin_kernel();
  const SegmentEntry segment = args.segments[blockIdx.z];
  const int lane = threadIdx.x % 32, m = blockIdx.x * warps + threadIdx.x / 32;
  const int group = args.query_heads / args.kv_heads;
  const int tile_index = blockIdx.y % args.tiles, kv_head = blockIdx.y / args.tiles;
  const int in_segment = tile_index * rows_per_tile + m / group;
  if (m / group >= rows_per_tile || in_segment >= segment.rows) return;
  const int last = min(tile_index * rows_per_tile + rows_per_tile, segment.rows);
  const int chunks = chunks_for(segment.position + last);
  const std::int64_t base =
      (static_cast<std::int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * max_chunks * matrix_rows + m;
  float maximum = -INFINITY, sum = 0, out[8] = {};
#pragma unroll 4
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const std::int64_t part = base + static_cast<std::int64_t>(chunk) * matrix_rows;
    const float2 stats = *reinterpret_cast<const float2*>(args.stats + part * 2);
    const float4 low = *reinterpret_cast<const float4*>(args.partials + part * dim + lane * 8);
    const float4 high = *reinterpret_cast<const float4*>(args.partials + part * dim + lane * 8 + 4);
    const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    float keep, add;
    merge_factors(maximum, sum, stats.x, stats.y, keep, add);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = fmaf(out[i], keep, __fmul_rn(values[i], add));
  }
  const int row = segment.first_row + in_segment, head = kv_head * group + m % group;
  float gate[8];
  cuda::load_columns(args.rows.q_gate, row, head * 2 * dim + dim + lane * 8, gate);
#pragma unroll
  for (int i = 0; i < 8; ++i) out[i] = out[i] / sum / (1.0f + expf(-gate[i]));
  cuda::store_columns(args.out, row, head * dim + lane * 8, out);
  cuda::store_line(args.panel, row, head * dim + lane * 8, out);
}

template <int MT, int STAGES>
void run(cuda::Stream& stream, const Arguments& args, int segments, int splits) {
  const int pairs = args.kv_heads * args.tiles;
  auto* kernel = portable_chunk_kernel<MT, STAGES>;
  cuda::allow_shared(stream, kernel, chunk_bytes<MT, STAGES>);
  float* merged = splits == 1 ? args.partials : nullptr;
  SPLASH_CHECK(splits > 1 || std::size_t{MT * 16 * dim * 4} * pairs * segments <= stream.partials_bytes());
  cuda::launch(stream, "attention chunks",
               {dim3(splits, pairs, segments), dim3(threads), chunk_bytes<MT, STAGES>}, kernel, args, merged);
  if (splits == 1) return;
  cuda::launch(stream, "attention merge", {dim3(MT * 16 / warps, pairs, segments), dim3(threads)},
               portable_merge_kernel, args, MT * 16);
}

}  // namespace
}  // namespace portable

void run_portable(cuda::Stream& stream, Arguments args, int segments, int most_rows) {
  namespace p = portable;
  args.tiles = (most_rows + p::rows_per_tile - 1) / p::rows_per_tile;
  // Rows of the matrix tiles: a plain step has one row, and its tile only its heads.
  const int matrix_tiles = (std::min(most_rows, p::rows_per_tile) * args.query_heads / args.kv_heads + 15) / 16;
  // Enough blocks for two per multiprocessor, if the partial sums of that many fit.
  const int units = args.kv_heads * args.tiles * segments;
  const std::int64_t stats_floats = std::int64_t{units} * p::max_chunks * matrix_tiles * 16 * 2;
  const std::int64_t partial_floats = stats_floats / 2 * dim;
  int splits = std::clamp(2 * stream.facts().multiprocessors / units, 1, 64);
  if ((partial_floats + stats_floats) * 4 > static_cast<std::int64_t>(stream.partials_bytes())) splits = 1;
  args.stats = args.partials + partial_floats;
  // Two stages of pages and up to three matrix tiles fit 99 KB.
  static_assert(p::chunk_bytes<3, 2> <= 99 * 1024 && p::chunk_bytes<4, 1> <= 99 * 1024);
  switch (matrix_tiles) {
    case 1:
      return p::run<1, 2>(stream, args, segments, splits);
    case 2:
      return p::run<2, 2>(stream, args, segments, splits);
    case 3:
      return p::run<3, 2>(stream, args, segments, splits);
    default:
      return p::run<4, 1>(stream, args, segments, splits);
  }
}

}  // namespace splash::ops::paged
