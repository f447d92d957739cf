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

// The chosen variant has the same stages for all widths: the split of K, and so every bit, does not depend on the width.
// The other variants are for the benchmark and know 8 and 16 tokens.
void launch_32(cuda::Stream& stream, const Q4Work& work, bool gated) {
  using Shape = Q4RowsShape<4, 4, 4, 2, 4, 2>;
  if (gated) return launch_shape<Shape, true>(stream, work);
  launch_shape<Shape, false>(stream, work);
}
template <int WARPS, int STRIPS, int TILES, int STAGES, int PER_SM>
void launch_variant(cuda::Stream& stream, const Q4Work& work, bool gated) {
  const int blocks = work.tokens <= 8 ? 1 : work.tokens <= 16 ? 2 : 4;
  auto start = [&]<int NT>() {
    using Shape = Q4RowsShape<NT, WARPS, STRIPS, TILES, STAGES, PER_SM>;
    if (gated) return launch_shape<Shape, true>(stream, work);
    launch_shape<Shape, false>(stream, work);
  };
  if (blocks == 1) return start.template operator()<1>();
  if (blocks == 2) return start.template operator()<2>();
  launch_32(stream, work, gated);
}

struct Variant {
  const char* name;
  void (*launch)(cuda::Stream&, const Q4Work&, bool);
  int warps, strips;  // per block, per warp
};
constexpr Variant variants[] = {
    {"4 warps x 4 strips, 2 tiles x 4 stages, 2 per SM", launch_variant<4, 4, 2, 4, 2>, 4, 4},
    {"8 warps x 2 strips, 2 tiles x 4 stages, 2 per SM", launch_variant<8, 2, 2, 4, 2>, 8, 2},
    {"4 warps x 2 strips, 4 tiles x 4 stages, 2 per SM", launch_variant<4, 2, 4, 4, 2>, 4, 2},
    {"8 warps x 2 strips, 4 tiles x 3 stages, 1 per SM", launch_variant<8, 2, 4, 3, 1>, 8, 2},
};
int chosen = 0;

}  // namespace

void launch_q4_rows(cuda::Stream& stream, const Q4Work& work, bool gated) { variants[chosen].launch(stream, work, gated); }
int q4_square_parts(const Q4Work& work) {
  // One per warp of every row block; 32 tokens always run the first shape.
  const Variant& variant = variants[work.tokens <= 16 ? chosen : 0];
  const int row_block = variant.warps * variant.strips;
  return (work.strips + row_block - 1) / row_block * variant.warps;
}
int q4_rows_variants() { return static_cast<int>(std::size(variants)); }
void set_q4_rows_variant(int variant) { chosen = variant; }
const char* q4_rows_variant_name(int variant) { return variants[variant].name; }

}  // namespace splash::ops
