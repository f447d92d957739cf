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

// Grid: (query heads + 2 kv heads) / 4 x rows of a segment x segments; a warp per head.
__global__ void __launch_bounds__(threads) prepare_kernel(const __grid_constant__ Arguments args) {
  cuda::dependents_may_start();
  const SegmentEntry segment = args.segments[blockIdx.z];
  const int head = blockIdx.x * warps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (head >= args.query_heads + 2 * args.kv_heads || static_cast<int>(blockIdx.y) >= segment.rows) return;
  const int row = segment.first_row + blockIdx.y, position = segment.position + blockIdx.y;
  Rotation rotation;  // while the predecessor still runs
  find_rotation(args, position, lane, rotation);
  float gain[8];
  read_gain(head < args.query_heads ? args.q_norm : args.k_norm, lane, gain);
  cuda::wait_for_predecessors();
  float x[8];
  if (head < args.query_heads) {
    cuda::load_columns(args.rows.q_gate, row, head * 2 * dim + lane * 8, x);
    norm_and_rotate(args, gain, rotation, lane, x);
    *reinterpret_cast<uint4*>(args.queries + (static_cast<std::int64_t>(row) * args.query_heads + head) * dim +
                              lane * 8) = pack_query(x);
    return;
  }
  const bool is_value = head >= args.query_heads + args.kv_heads;
  const int kv_head = head - args.query_heads - (is_value ? args.kv_heads : 0);
  cuda::load_columns(is_value ? args.rows.v : args.rows.k, row, kv_head * dim + lane * 8, x);
  if (!is_value) norm_and_rotate(args, gain, rotation, lane, x);
  store_in_page(args, segment, position, kv_head, is_value, lane, x);
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
               {dim3((heads + p::warps - 1) / p::warps, most_rows, count), dim3(p::threads)}, p::prepare_kernel, args);
  if (stream.portable()) return p::run_portable(stream, args, count, most_rows);
  wide ? p::run_tiles(stream, args, count, most_rows) : p::run_narrow(stream, args, count, most_rows);
}

}  // namespace splash::ops
