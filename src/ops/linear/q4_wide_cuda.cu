#include "backend/cuda/launch.h"
#include "ops/linear/q4_launch.h"
#include "ops/linear/q4_wide.cuh"

namespace splash::ops {
namespace {

template <class Shape, bool gated = false>
void launch_shape(cuda::Stream& stream, const Q4Work& work) {
  auto* kernel = q4_wide_kernel<Shape, gated>;
  cuda::allow_shared(stream, kernel, Shape::shared_bytes);
  SPLASH_CHECK(work.tiles_k % Shape::TILES == 0, "K = {} is not a multiple of {}", work.tiles_k * 64,
               Shape::TILES * 64);
  const int token_tiles = (work.tokens + Shape::NB - 1) / Shape::NB;
  const int k_steps = work.tiles_k / Shape::TILES;
  const int tiles = work.groups * token_tiles;
  const int blocks = std::min(stream.facts().multiprocessors, tiles * (work.tail_from < tiles ? 4
                                                                       : Shape::whole         ? work.parts
                                                                                              : k_steps));
  if (!Shape::whole) {
    SPLASH_CHECK(static_cast<long long>(tiles) * k_steps * blocks < (1LL << 32));
    static const bool resident = cuda::all_resident(stream, kernel, Shape::threads, Shape::shared_bytes, 1);
    SPLASH_CHECK(resident);  // q4_exchange's condition
    SPLASH_CHECK(blocks * Shape::exchange_bytes <= stream.exchange_bytes());
  }
  cuda::launch(stream, gated ? "q4 wide gated" : "q4 wide", {dim3(blocks), dim3(Shape::threads), Shape::shared_bytes},
               kernel, work, token_tiles);
}

}  // namespace

int q4_wide_parts(const Q4Work& work) {
  // 40 groups of output rows (27B: out, down) x 2 tiles of tokens leave 52 of 132 multiprocessors idle; x 3 parts, 24
  // of 264. Never more: a part is a round trip of its sums.
  return work.matrix_count == 1 && work.groups <= 44 && work.tiles_k >= 24 && work.matrices[0].rows % 8 == 0 ? 3 : 1;
}

void launch_q4_wide(cuda::Stream& stream, const Q4Work& work) {
  switch (cuda::panel_row_tile(work.tokens)) {
    case 64:
      if (work.parts > 1) return launch_shape<Q4WideShape<64, 2, 8, true>>(stream, work);
      return launch_shape<Q4WideShape<64, 2, 8, false>>(stream, work);
    case 128:
      return launch_shape<Q4WideShape<128, 2, 5, true>>(stream, work);
    case 256:
      return launch_shape<Q4WideShape<256, 2, 3, true>>(stream, work);
    default:
      SPLASH_CHECK(false, "{} tokens are not for the wide kernel", work.tokens);
  }
}

void launch_q4_wide_gated(cuda::Stream& stream, const Q4Work& work) {
  SPLASH_CHECK(work.gated_panel.data && work.parts == 1);
  if (cuda::panel_row_tile(work.tokens) == 64) return launch_shape<Q4WideShape<64, 2, 8, false>, true>(stream, work);
  if (cuda::panel_row_tile(work.tokens) == 128) return launch_shape<Q4WideShape<128, 2, 5, true>, true>(stream, work);
  using Shape = Q4WideShape<256, 2, 3, true>;
  // Of 544 tiles (27B, 512 tokens) on 132 multiprocessors, 16 would take a fifth wave for themselves: in quarters they
  // take a third of one (272 -> 250 us). A rest that quarters would spread over two waves gains nothing. The order of
  // each sum is the same.
  Q4Work tailed = work;
  const int tiles = work.groups * ((work.tokens + Shape::NB - 1) / Shape::NB);
  const int rest = tiles % stream.facts().multiprocessors;
  if (4 * rest <= stream.facts().multiprocessors) tailed.tail_from = tiles - rest;
  launch_shape<Shape, true>(stream, tailed);
}

}  // namespace splash::ops
