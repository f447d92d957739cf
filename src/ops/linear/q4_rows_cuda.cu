#include "backend/cuda/launch.h"
#include "ops/linear/linear_cuda.h"
#include "ops/linear/q4_launch.h"
#include "ops/linear/q4_rows.cuh"

namespace splash::ops {
namespace {

template <class Shape, bool gated>
void launch_shape(cuda::Stream& stream, const Q4Work& work) {
  auto* kernel = q4_rows_kernel<Shape, gated>;
  cuda::allow_shared(stream, kernel, Shape::shared_bytes);
  static const bool resident =
      cuda::all_resident(stream, kernel, Shape::threads, Shape::shared_bytes, Shape::PER_SM);
  SPLASH_CHECK(resident);  // q4_exchange's condition
  const int k_steps = (work.tiles_k + Shape::TILES - 1) / Shape::TILES;
  const int row_blocks = (work.strips + Shape::row_block - 1) / Shape::row_block;
  const int blocks = std::min(stream.facts().multiprocessors * Shape::PER_SM, row_blocks * k_steps);
  SPLASH_CHECK(row_blocks * Shape::WARPS <= cuda::Stream::counter_count);
  SPLASH_CHECK(blocks * Shape::partial_floats * sizeof(float) <= stream.partials_bytes());
  SPLASH_CHECK(blocks * Shape::exchange_bytes <= stream.exchange_bytes() || Shape::NT > 1);
  cuda::launch(stream, gated ? "q4 rows gated" : "q4 rows", {dim3(blocks), dim3(Shape::threads), Shape::shared_bytes},
               kernel, work);
}

// The tiles of a stage are the same for all widths, so the split of K, and with it every bit, does not depend on the
// width; 32 tokens take one stage less to leave room for two blocks per multiprocessor. Slower on the H200 (decision
// 0009): three blocks of 12 warps, one block with K cut inside it, pairs of blocks that share x, room for the next
// launch beside this one.
constexpr int warps = 4, strips = 2;
template <bool gated>
void launch_width(cuda::Stream& stream, const Q4Work& work) {
  if (work.tokens <= 8) return launch_shape<Q4RowsShape<1, warps, strips, 4, 4, 2>, gated>(stream, work);
  if (work.tokens <= 16) return launch_shape<Q4RowsShape<2, warps, strips, 4, 4, 2>, gated>(stream, work);
  launch_shape<Q4RowsShape<4, warps, strips, 4, 3, 2>, gated>(stream, work);
}

}  // namespace

void launch_q4_rows(cuda::Stream& stream, const Q4Work& work, bool gated) {
  gated ? launch_width<true>(stream, work) : launch_width<false>(stream, work);
}
int q4_square_parts(const Q4Work& work) {
  constexpr int row_block = warps * strips;  // one part per warp of every row block
  return (work.strips + row_block - 1) / row_block * warps;
}

}  // namespace splash::ops
