#include <algorithm>

#include "backend/cuda/launch.h"
#include "ops/linear/q4_few.cuh"
#include "ops/linear/q4_launch.h"

namespace splash::ops {
namespace {

// Row blocks of eight strips, where a multiprocessor has no more than one: fewer blocks, or none, share one then, and
// sums are half as many at its end (0026). Of the matrices and the device alone, whatever the tokens.
bool small_row_blocks(cuda::Stream& stream, const Q4Work& work) {
  return !work.gated && work.groups <= stream.facts().multiprocessors;
}

template <class Shape>
void launch_shape(cuda::Stream& stream, Q4Work work) {
  auto* kernel = q4_few_kernel<Shape>;
  cuda::allow_shared(stream, kernel, Shape::shared_bytes);
  static const bool resident = cuda::all_resident(stream, kernel, Shape::threads, Shape::shared_bytes, 1);
  SPLASH_CHECK(resident);  // blocks wait for each other
  const int row_blocks = (work.groups + Shape::HALVES - 1) / Shape::HALVES;
  const int multiprocessors = stream.facts().multiprocessors;
  SPLASH_CHECK(Q4Split::fits(row_blocks, work.tiles_k, multiprocessors));
  work.split = Q4Split(row_blocks, work.tiles_k, multiprocessors);
  for (const Q4Matrix& matrix : work.matrices) SPLASH_CHECK(matrix.out_stride < 1LL << 31);  // Q4Output
  const int blocks = static_cast<int>(work.split.blocks);
  SPLASH_CHECK(blocks * Shape::part_bytes <= stream.parts_bytes());
  cuda::launch(stream, "q4 few", {dim3(blocks), dim3(Shape::threads), Shape::shared_bytes}, kernel, work);
}

// What K is cut into, and the order in which its sums meet, are the same for all widths, so no bit depends on the
// width. Stages of the ring: for 8, 16 and 32 tokens, what shared memory holds.
template <int HALVES, bool GATED, int stages_8, int stages_16, int stages_32>
void launch_width(cuda::Stream& stream, const Q4Work& work) {
  if (work.tokens <= 8) return launch_shape<Q4FewShape<1, HALVES, GATED, stages_8>>(stream, work);
  if (work.tokens <= 16) return launch_shape<Q4FewShape<2, HALVES, GATED, stages_16>>(stream, work);
  launch_shape<Q4FewShape<4, HALVES, GATED, stages_32>>(stream, work);
}

}  // namespace

void launch_q4_few(cuda::Stream& stream, const Q4Work& work) {
  if (work.gated) return launch_width<2, true, 5, 8, 7>(stream, work);
  small_row_blocks(stream, work) ? launch_width<1, false, 8, 6, 6>(stream, work)
                                 : launch_width<2, false, 5, 8, 7>(stream, work);
}

int q4_square_parts(cuda::Stream& stream, const Q4Work& work) {
  return small_row_blocks(stream, work) ? work.groups : (work.groups + 1) / 2 * 2;  // of every half of a row block
}

}  // namespace splash::ops
