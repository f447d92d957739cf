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
  const int k_steps = (work.tiles_k + Shape::TILES - 1) / Shape::TILES;
  const int row_blocks = (work.strips + Shape::row_block - 1) / Shape::row_block;
  const int blocks = std::min(stream.facts().multiprocessors * Shape::PER_SM, row_blocks * k_steps);
  SPLASH_CHECK(row_blocks * Shape::WARPS <= cuda::Stream::counter_count);
  SPLASH_CHECK(blocks * Shape::partial_floats * sizeof(float) <= stream.partials_bytes());
  cuda::launch(stream, gated ? "q4 rows gated" : "q4 rows", {dim3(blocks), dim3(Shape::threads), Shape::shared_bytes},
               kernel, work);
}

// What linear uses. The tiles of a stage are the same for all widths, so the split of K, and with it every bit, does
// not depend on the width; 32 tokens take one stage less to leave room for two blocks per multiprocessor.
template <bool gated>
void launch_default(cuda::Stream& stream, const Q4Work& work) {
  if (work.tokens <= 8) return launch_shape<Q4RowsShape<1, 4, 2, 4, 4, 2>, gated>(stream, work);
  if (work.tokens <= 16) return launch_shape<Q4RowsShape<2, 4, 2, 4, 4, 2>, gated>(stream, work);
  launch_shape<Q4RowsShape<4, 4, 2, 4, 3, 2>, gated>(stream, work);
}
constexpr int default_warps = 4, default_strips = 2;

// The others are for the benchmark: 8 tokens, neither gated nor with a norm behind.
struct Variant {
  const char* name;
  void (*launch)(cuda::Stream&, const Q4Work&);
};
constexpr Variant variants[] = {
    {"4 warps x 2 strips, 4 tiles x 4 stages, 2 per SM", launch_default<false>},
    {"4 warps x 2 strips, 4 tiles x 3 stages, 3 per SM", launch_shape<Q4RowsShape<1, 4, 2, 4, 3, 3>, false>},
    {"2 warps x 4 strips, 4 tiles x 4 stages, 2 per SM", launch_shape<Q4RowsShape<1, 2, 4, 4, 4, 2>, false>},
    {"4 warps x 4 strips, 2 tiles x 4 stages, 2 per SM", launch_shape<Q4RowsShape<1, 4, 4, 2, 4, 2>, false>},
    {"8 warps x 1 strip, 4 tiles x 4 stages, 2 per SM", launch_shape<Q4RowsShape<1, 8, 1, 4, 4, 2>, false>},
    {"8 warps x 2 strips, 4 tiles x 3 stages, 1 per SM", launch_shape<Q4RowsShape<1, 8, 2, 4, 3, 1>, false>},
};
int chosen = 0;

}  // namespace

void launch_q4_rows(cuda::Stream& stream, const Q4Work& work, bool gated) {
  SPLASH_CHECK(chosen == 0 || (work.tokens <= 8 && !gated && !work.gain));
  if (gated) return launch_default<true>(stream, work);
  variants[chosen].launch(stream, work);
}
int q4_square_parts(const Q4Work& work) {
  constexpr int row_block = default_warps * default_strips;  // one part per warp of every row block
  return (work.strips + row_block - 1) / row_block * default_warps;
}
int q4_rows_variants() { return static_cast<int>(std::size(variants)); }
void set_q4_rows_variant(int variant) { chosen = variant; }
const char* q4_rows_variant_name(int variant) { return variants[variant].name; }

}  // namespace splash::ops
