#include <cmath>
#include <numbers>

#include "backend/cuda/launch.h"
#include "ops/attention/attention_cuda.cuh"
#include "ops/attention/attention_narrow_cuda.h"
#include "ops/attention/attention_portable_cuda.h"
#include "ops/attention/attention_tiles_cuda.h"

namespace splash::ops {
namespace paged {
namespace {

// Grid: (query heads + 2 kv heads) / 8 x rows of a segment x segments; half a warp per head.
__global__ void __launch_bounds__(threads) prepare_kernel(const __grid_constant__ Arguments args) {
  cuda::dependents_may_start();
  const SegmentEntry segment = args.segments[blockIdx.z];
  const int lane = threadIdx.x % 32, j = lane % head_lanes, first_head = (blockIdx.x * warps + threadIdx.x / 32) * 2;
  const int heads = args.query_heads + 2 * args.kv_heads;
  if (first_head >= heads || static_cast<int>(blockIdx.y) >= segment.rows) return;
  const bool here = first_head + lane / head_lanes < heads;  // the last warp may have one
  const int head = here ? first_head + lane / head_lanes : first_head;
  const bool is_query = head < args.query_heads, is_value = head >= args.query_heads + args.kv_heads;
  const int row = segment.first_row + blockIdx.y, position = segment.position + blockIdx.y;
  Rotation rotation;  // while the predecessor still runs
  find_rotation(args, position, j, rotation);
  float gain[lane_dims];
  read_dims(is_query ? args.q_norm : args.k_norm, j, gain);
  cuda::wait_for_predecessors();
  const int kv_head = (head - args.query_heads) % args.kv_heads;
  const MatrixView<const float>& from = is_query ? args.rows.q_gate : is_value ? args.rows.v : args.rows.k;
  float x[lane_dims];
  read_dims(cuda::row_of(from, row) + (is_query ? head * 2 : kv_head) * dim, j, x);
  norm_and_rotate(args, gain, rotation, j, x, is_value);
  if (is_query && here) {
    __half* to = args.queries + (static_cast<std::int64_t>(row) * args.query_heads + head) * dim;
#pragma unroll
    for (int line = 0; line < 2; ++line)
      *reinterpret_cast<uint4*>(to + dims_of(j, line)) = pack_query(x + line * 8);
  }
  if (first_head + 1 < args.query_heads) return;  // both
  std::uint8_t codes[lane_dims];
  const float scale = quantise(x, codes);
  if (is_query || !here) return;
  store_codes(page_at(args, segment, position / page, kv_head), position % page, is_value, j, codes, scale);
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
                    0,
                    0,
                    0,
                    0,
                    group,
                    (65536 + group - 1) / group,
                    {}};
  for (int i = 0; i < 32; ++i) {
    args.inverse_turns[i] = std::pow(geometry.rope_theta, -2.0 * i / geometry.rotary_dim) / (2 * std::numbers::pi);
  }
  const bool wide = out.rows >= cuda::wide_pass_rows && stream.wide_passes_apart();
  // A step's lanes have one tile each, whose blocks make their queries, keys and values themselves.
  if (!stream.portable() && !wide && most_rows <= p::narrow_own_rows(group))
    return p::run_narrow(stream, args, count, most_rows);
  args.queries = stream.allocate<__half>(static_cast<std::size_t>(out.rows) * geometry.query_heads * p::dim);
  const int heads = geometry.query_heads + 2 * geometry.kv_heads;
  cuda::launch(stream, "attention prepare",
               {dim3((heads + 2 * p::warps - 1) / (2 * p::warps), most_rows, count), dim3(p::threads)}, p::prepare_kernel, args);
  if (stream.portable()) return p::run_portable(stream, args, count, most_rows);
  wide ? p::run_tiles(stream, args, count, most_rows) : p::run_narrow(stream, args, count, most_rows);
}

}  // namespace splash::ops
