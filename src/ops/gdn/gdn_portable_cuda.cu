// gdn on devices without clusters: every pass in the kernels of gdn_rows.cuh, behind one that folds the kept rows in. The
// arithmetic is gdn_cuda.cuh's, so a row has the bits that it has on Hopper.
#include "ops/gdn/gdn_rows.cuh"

namespace splash::ops::delta {
namespace {

// What a lane's earlier passes left on its tape goes into its state and history, in a kernel of its own,
// because blocks of one pass could not tell the old tape from the new one without meeting. Grid: halves of value heads x
// segments; threads as in gdn_cuda.cu.
__global__ void __launch_bounds__(state_threads) gdn_fold_kernel(const __grid_constant__ Arguments args) {
  cuda::begin_kernel();
  const GdnGeometry& g = args.geometry;
  const GdnLane lane = args.tables.lanes[args.tables.segments[blockIdx.y].lane];
  const int kept = *lane.kept;
  if (kept == 0) return;
  const int value_head = blockIdx.x / 2, side = blockIdx.x % 2, group = g.value_heads / g.key_heads;
  const int key_head = value_head / group, part = part_of(threadIdx.x);
  const int column = side * half + first_column_of(threadIdx.x);
  Keys s[2];  // a thread's part of two neighbouring columns
#pragma unroll
  for (int j = 0; j < 8; ++j)
    cuda::take_four(*state_at(lane, value_head, side, j, threadIdx.x), s[j / 4][j % 4]);
  fold_kept(g, lane, kept, key_head, part, [&](int c) { return ValueColumn{value_head, column + c}; }, s);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float(&from)[4] = s[j / 4][j % 4];
    *state_at(lane, value_head, side, j, threadIdx.x) = make_float4(from[0], from[1], from[2], from[3]);
  }
  // The last three inputs of this block's values, and where it is the first of its key head's group of q and k.
  const int kind = threadIdx.x / half, of_head = side * half + static_cast<int>(threadIdx.x) % half;
  if (kind > 2 || (kind > 0 && value_head % group != 0)) return;
  const int channel = kind == 0 ? (2 * g.key_heads + value_head) * dim + of_head
                                : ((kind - 1) * g.key_heads + key_head) * dim + of_head;
  float last[history];
#pragma unroll
  for (int j = 0; j < history; ++j) last[j] = earlier_input(g, lane, kept, channel, history - j);
#pragma unroll
  for (int j = 0; j < history; ++j) lane.conv[j * (2 * g.key_heads + g.value_heads) * dim + channel] = last[j];
}

}  // namespace

void run_portable(cuda::Stream& stream, const Arguments& args) {
  cuda::launch(stream, "gdn fold", {dim3(2 * args.geometry.value_heads, args.tables.segment_count), dim3(state_threads)},
               gdn_fold_kernel, args);
  if (args.out.rows == 0) return;
  SPLASH_CHECK(prefill_fits(stream, args.geometry, args.out.rows), "{} rows are too many for one pass", args.out.rows);
  run_rows<true>(stream, args, args.out.rows);
}

}  // namespace splash::ops::delta
