#include <cmath>
#include <numbers>

#include "backend/cuda/launch.h"
#include "ops/attention/attention_cuda.cuh"
#include "ops/attention/attention_portable_cuda.h"
#include "ops/attention/attention_tiles_cuda.h"

namespace splash::ops {
namespace paged {
namespace {

// Grid: (query heads + 2 kv heads) / 4 x rows of a segment x segments; a warp per head.
__global__ void __launch_bounds__(threads) prepare_kernel(const __grid_constant__ Arguments args) {
  cuda::dependents_may_start();
  const SegmentEntry segment = args.segments[blockIdx.z];
  const int head = blockIdx.x * warps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (head >= args.query_heads + 2 * args.kv_heads || static_cast<int>(blockIdx.y) >= segment.rows) return;
  const int row = segment.first_row + blockIdx.y, position = segment.position + blockIdx.y;
  Rotation rotation;  // while the predecessor still runs
  find_rotation(args, position, lane, rotation);
  cuda::wait_for_predecessors();
  float x[8];
  if (head < args.query_heads) {
    cuda::load_columns(args.rows.q_gate, row, head * 2 * dim + lane * 8, x);
    norm_and_rotate(args, args.q_norm, rotation, lane, x);
    constexpr float factor = 0.0625f * 1.4426950408889634f;  // 1 / sqrt(256), and weights are powers of two
    uint4 packed;
    packed.x = cuda::pack_fp16(x[0] * factor, x[1] * factor), packed.y = cuda::pack_fp16(x[2] * factor, x[3] * factor);
    packed.z = cuda::pack_fp16(x[4] * factor, x[5] * factor), packed.w = cuda::pack_fp16(x[6] * factor, x[7] * factor);
    *reinterpret_cast<uint4*>(args.queries + (static_cast<std::int64_t>(row) * args.query_heads + head) * dim +
                              lane * 8) = packed;
    return;
  }
  const bool is_value = head >= args.query_heads + args.kv_heads;
  const int kv_head = head - args.query_heads - (is_value ? args.kv_heads : 0);
  cuda::load_columns(is_value ? args.rows.v : args.rows.k, row, kv_head * dim + lane * 8, x);
  if (!is_value) norm_and_rotate(args, args.k_norm, rotation, lane, x);
  std::uint8_t codes[8];
  const float scale = quantise(x, codes);
  std::uint8_t* to = page_at(args, segment, position / page, kv_head);
  const int in_page = position % page;
  if (is_value) {
#pragma unroll
    for (int i = 0; i < 8; ++i) to[values_offset + (lane * 8 + i) * page + in_page] = codes[i];
  } else {
    std::uint32_t words[2];
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      words[w] = codes[4 * w] | codes[4 * w + 1] << 8 | codes[4 * w + 2] << 16 |
                 static_cast<std::uint32_t>(codes[4 * w + 3]) << 24;
    }
    const int unit = lane / 2 ^ (in_page & 1) << 2;
    *reinterpret_cast<uint2*>(to + in_page * dim + unit * 16 + lane % 2 * 8) = make_uint2(words[0], words[1]);
  }
  if (lane == 0) reinterpret_cast<float*>(to + (is_value ? value_scales_offset : key_scales_offset))[in_page] = scale;
}

// Grid: splits x (kv heads * tiles) x segments. Split s takes chunks s, s + splits, ...; with one split (prefill)
// chunks are merged here, in shared memory, by the very steps of merge_kernel.
template <int MT, bool alone>
__global__ void __launch_bounds__(threads, alone ? 1 : 2) chunk_kernel(const __grid_constant__ Arguments args) {
  if constexpr (!cuda::hopper_code) return;  // attention_portable_cuda.cu is in its place
  constexpr int STAGES = 2;
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<MT, STAGES>*>(memory);
  float* merged =
      reinterpret_cast<float*>(memory + (sizeof(Shared<MT, STAGES>) + 127) / 128 * 128);  // [MT * 16][256], alone
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) cuda::barrier_init(cuda::shared_address(&shared.full[i]), 1);
    cuda::barrier_init_done();
  }
  __syncthreads();
  cuda::dependents_may_start();
  const SegmentEntry segment = args.segments[blockIdx.z];
  Tile tile;
  const int tile_index = blockIdx.y % args.tiles;
  tile.kv_head = blockIdx.y / args.tiles;
  tile.group = args.query_heads / args.kv_heads;
  tile.first = tile_index * tile_rows;
  tile.rows = min(tile_rows, segment.rows - tile.first);
  tile.position = segment.position + tile.first;
  if (tile.rows <= 0) return;
  const int limit = tile.position + tile.rows;  // positions visible to the last row
  const int chunks = chunks_for(limit);
  if (static_cast<int>(blockIdx.x) >= chunks) return;
  auto request = [&](int position, int stage) {  // thread 0
    const std::uint32_t barrier = cuda::shared_address(&shared.full[stage]);
    const int count = position + page < limit ? 2 : 1;
    cuda::barrier_expect(barrier, count * page_bytes);
    for (int p = 0; p < count; ++p) {
      cuda::bulk_copy(cuda::shared_address(shared.pages[stage] + p * page_bytes),
                      page_at(args, segment, position / page + p, tile.kv_head), page_bytes, barrier);
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
  int ahead_chunk = blockIdx.x, ahead_position = chunk_begin(ahead_chunk), stage = 0, parity = 0;
  // Pages that hold no row of this pass are complete since earlier steps: the first is requested before the wait.
  const bool early = ahead_position + block <= segment.position;
  if (threadIdx.x == 0 && early) request(ahead_position, 0);
  cuda::wait_for_predecessors();
  if (threadIdx.x == 0 && !early) request(ahead_position, 0);
  load_queries<MT, STAGES>(args, segment, tile, shared);
  __syncthreads();
  float maximum[MT][2], sum[MT][2];
  if constexpr (alone) {
#pragma unroll
    for (int i = 0; i < MT; ++i) maximum[i][0] = maximum[i][1] = -INFINITY, sum[i][0] = sum[i][1] = 0;
    for (int index = threadIdx.x; index < MT * 16 * dim; index += threads) merged[index] = 0;
    __syncthreads();
  }
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
      cuda::barrier_wait(cuda::shared_address(&shared.full[stage]), parity);
      float factors[MT][2];
      weigh_block<MT, STAGES>(tile, position, shared.pages[stage], shared, warp, lane, run, factors);
      // All warps have left the block before: its stage is free.
      ahead_position = next_block(ahead_chunk, ahead_position);
      if (threadIdx.x == 0 && ahead_chunk < chunks) request(ahead_position, stage ^ 1);
      add_values<MT, STAGES>(shared.pages[stage], shared, warp, lane, factors, run);
      stage ^= 1;
      if (stage == 0) parity ^= 1;
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
        if constexpr (alone) {
          float keep, add;
          merge_factors(maximum[i][h], sum[i][h], run.maximum[i][h], total, keep, add);
#pragma unroll
          for (int n = 0; n < 8; ++n) {
            float2& to = *reinterpret_cast<float2*>(merged + m * dim + warp * 64 + n * 8 + 2 * t);
            to.x = fmaf(to.x, keep, run.out[i][n][h * 2] * add);
            to.y = fmaf(to.y, keep, run.out[i][n][h * 2 + 1] * add);
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
  if constexpr (alone) {
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
__global__ void __launch_bounds__(threads) merge_kernel(const __grid_constant__ Arguments args, int rows_per_tile) {
  cuda::begin_kernel();
  const SegmentEntry segment = args.segments[blockIdx.z];
  const int lane = threadIdx.x % 32, m = blockIdx.x * warps + threadIdx.x / 32;
  const int group = args.query_heads / args.kv_heads;
  const int tile_index = blockIdx.y % args.tiles, kv_head = blockIdx.y / args.tiles;
  const int in_segment = tile_index * tile_rows + m / group;
  if (m / group >= tile_rows || in_segment >= segment.rows) return;
  const int last = min(tile_index * tile_rows + tile_rows, segment.rows);
  const int chunks = chunks_for(segment.position + last);
  const std::int64_t base =
      (static_cast<std::int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * max_chunks * rows_per_tile + m;
  float maximum = -INFINITY, sum = 0, out[8] = {};
#pragma unroll 4
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const std::int64_t part = base + static_cast<std::int64_t>(chunk) * rows_per_tile;
    const float2 stats = *reinterpret_cast<const float2*>(args.stats + part * 2);
    const float4 low = *reinterpret_cast<const float4*>(args.partials + part * dim + lane * 8);
    const float4 high = *reinterpret_cast<const float4*>(args.partials + part * dim + lane * 8 + 4);
    const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    float keep, add;
    merge_factors(maximum, sum, stats.x, stats.y, keep, add);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = fmaf(out[i], keep, values[i] * add);
  }
  const int row = segment.first_row + in_segment, head = kv_head * group + m % group;
  float gate[8];
  cuda::load_columns(args.rows.q_gate, row, head * 2 * dim + dim + lane * 8, gate);
#pragma unroll
  for (int i = 0; i < 8; ++i) out[i] = out[i] / sum / (1.0f + expf(-gate[i]));
  cuda::store_columns(args.out, row, head * dim + lane * 8, out);
  cuda::store_line(args.panel, row, head * dim + lane * 8, out);
}

template <int MT>
void run(cuda::Stream& stream, const Arguments& args, int segments, int splits) {
  const int pairs = args.kv_heads * args.tiles;
  const std::size_t bytes = (sizeof(Shared<MT, 2>) + 127) / 128 * 128;
  if (splits == 1) {
    const std::size_t with_merge = bytes + MT * 16 * dim * sizeof(float);
    cuda::allow_shared(stream, chunk_kernel<MT, true>, with_merge);
    cuda::launch(stream, "attention tiles", {dim3(1, pairs, segments), dim3(threads), with_merge},
                 chunk_kernel<MT, true>, args);
    return;
  }
  cuda::allow_shared(stream, chunk_kernel<MT, false>, bytes);
  cuda::launch(stream, "attention chunks", {dim3(splits, pairs, segments), dim3(threads), bytes},
               chunk_kernel<MT, false>, args);
  cuda::launch(stream, "attention merge", {dim3(MT * 16 / warps, pairs, segments), dim3(threads)}, merge_kernel, args,
               MT * 16);
}

}  // namespace
}  // namespace paged

void attention(cuda::Stream& stream, const AttentionGeometry& geometry, const AttentionWeights& weights,
               const AttentionRows& rows, std::span<const Segment> segments, const KvPool& pool, int layer,
               MatrixView<float> out) {
  namespace p = paged;
  const int group = geometry.query_heads / geometry.kv_heads;
  SPLASH_CHECK(
      geometry.head_dim == p::dim && geometry.rotary_dim == 64 && group <= 8 && pool.geometry.format == KvFormat::int8,
      "the CUDA kernel is for int8 pages, heads of 256 with 64 rotating and at most 8 query heads per kv head");
  int most_rows = 0;
  for (const Segment& segment : segments) most_rows = std::max(most_rows, segment.rows);
  const int count = static_cast<int>(segments.size());
  p::Arguments args{geometry.query_heads,
                    geometry.kv_heads,
                    geometry.rms_eps,
                    weights.q_norm.data(),
                    weights.k_norm.data(),
                    rows,
                    out,
                    stream.panel_to_fill(out),
                    segment_table(stream, segments),
                    pool.at(0, layer),
                    pool.geometry.page_bytes(),
                    nullptr,
                    stream.partials(),
                    nullptr,
                    (most_rows + p::tile_rows - 1) / p::tile_rows,
                    {}};
  for (int i = 0; i < 32; ++i) {
    args.inverse_turns[i] = std::pow(geometry.rope_theta, -2.0 * i / geometry.rotary_dim) / (2 * std::numbers::pi);
  }
  args.queries = stream.allocate<__half>(static_cast<std::size_t>(out.rows) * geometry.query_heads * p::dim);

  const int heads = geometry.query_heads + 2 * geometry.kv_heads, matrix_tiles = (p::tile_rows * group + 15) / 16;
  cuda::launch(stream, "attention prepare",
               {dim3((heads + p::warps - 1) / p::warps, most_rows, count), dim3(p::threads)}, p::prepare_kernel, args);
  if (stream.portable()) return p::run_portable(stream, args, count, most_rows);
  if (out.rows >= cuda::wide_pass_rows && stream.wide_passes_apart())
    return p::run_tiles(stream, args, count, most_rows);
  // Enough blocks for two per multiprocessor, if the partial sums of that many fit.
  const int units = geometry.kv_heads * args.tiles * count;
  const std::int64_t stats_floats = std::int64_t{units} * p::max_chunks * matrix_tiles * 16 * 2;
  const std::int64_t partial_floats = stats_floats / 2 * p::dim;
  int splits = std::clamp(2 * stream.facts().multiprocessors / units, 1, 64);
  if ((partial_floats + stats_floats) * 4 > static_cast<std::int64_t>(stream.partials_bytes())) splits = 1;
  args.stats = args.partials + partial_floats;
  switch (matrix_tiles) {
    case 1:
      return p::run<1>(stream, args, count, splits);
    case 2:
      return p::run<2>(stream, args, count, splits);
    case 3:
      return p::run<3>(stream, args, count, splits);
    default:
      return p::run<4>(stream, args, count, splits);
  }
}

}  // namespace splash::ops
