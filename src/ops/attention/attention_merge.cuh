// The chunks of a tile in order, then the gate: behind both kernels of attention that cut tiles at their chunks.
#pragma once

#include "backend/cuda/launch.h"
#include "ops/attention/attention_cuda.cuh"

namespace splash::ops::paged {

constexpr int merge_threads = 64;  // four dims each
constexpr int merged_at_once = 16;

// Grid: query rows of a tile x (tiles * kv heads) x segments. Partial sums wait in registers: blocks of the linear that
// comes next, which want most of a multiprocessor's shared memory, can be there before these are done.
template <class Kind>
__global__ void __launch_bounds__(merge_threads) merge_kernel(const __grid_constant__ Arguments args) {
  __shared__ float2 stats[Kind::most_chunks];
  cuda::dependents_may_start();
  const SegmentEntry segment = args.segments[blockIdx.z];
  const int m = blockIdx.x, thread = threadIdx.x;
  int kv_head = blockIdx.y, first = 0;
  if (args.tiles > 1) {
    kv_head = blockIdx.y % args.kv_heads;
    first = (args.tiles - 1 - static_cast<int>(blockIdx.y) / args.kv_heads) * args.tile_rows;
  }
  const int rows = min(args.tile_rows, segment.rows - first), in_tile = m * args.group_inverse >> 16;
  if (in_tile >= rows) return;
  const int chunks = args.slots == 1 ? 1 : Kind::chunks_for(segment.position + first + rows);
  const std::int64_t base =
      (static_cast<std::int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * args.slots * args.part_rows + m;
  const int row = segment.first_row + first + in_tile;
  const int column = (kv_head * args.group + m - in_tile * args.group) * dim + thread * 4;
  const float* from = args.partials + base * dim + thread * 4;
  const std::int64_t step = std::int64_t{args.part_rows} * dim;
  cuda::wait_for_predecessors();
  float4 values[merged_at_once];
  auto read = [&](int begin) {
#pragma unroll
    for (int i = 0; i < merged_at_once; ++i) {
      if (begin + i < chunks) values[i] = *reinterpret_cast<const float4*>(from + i * step);
    }
    from += merged_at_once * step;
  };
  read(0);
  const float4 gate = *reinterpret_cast<const float4*>(cuda::row_of(args.rows.q_gate, row) + column * 2 - thread * 4 + dim);
  for (int i = thread; i < chunks; i += merge_threads)
    stats[i] = *reinterpret_cast<const float2*>(args.stats + (base + std::int64_t{i} * args.part_rows) * 2);
  __syncthreads();
  float maximum = stats[0].x, sum = stats[0].y;
  float4 out = values[0];
#pragma unroll 1
  for (int begin = 0;;) {
#pragma unroll
    for (int i = 0; i < merged_at_once; ++i) {
      if (begin + i == 0 || begin + i >= chunks) continue;
      float keep, add;
      merge_factors(maximum, sum, stats[begin + i].x, stats[begin + i].y, keep, add);
      out.x = fmaf(out.x, keep, __fmul_rn(values[i].x, add)), out.y = fmaf(out.y, keep, __fmul_rn(values[i].y, add));
      out.z = fmaf(out.z, keep, __fmul_rn(values[i].z, add)), out.w = fmaf(out.w, keep, __fmul_rn(values[i].w, add));
    }
    begin += merged_at_once;
    if (begin >= chunks) break;
    read(begin);
  }
  const float inverse_sum = 1.0f / sum;
  out.x = gated_value(out.x, inverse_sum, gate.x), out.y = gated_value(out.y, inverse_sum, gate.y);
  out.z = gated_value(out.z, inverse_sum, gate.z), out.w = gated_value(out.w, inverse_sum, gate.w);
  *reinterpret_cast<float4*>(cuda::row_of(args.out, row) + column) = out;
  cuda::store_half_line(args.panel, row, column, {out.x, out.y, out.z, out.w});
}

template <class Kind>
void launch_merge(cuda::Stream& stream, const Arguments& args, int pairs, int segments) {
  cuda::launch(stream, "attention merge", {dim3(args.part_rows, pairs, segments), dim3(merge_threads)},
               merge_kernel<Kind>, args);
}

}  // namespace splash::ops::paged
