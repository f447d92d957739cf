#include "backend/cuda/launch.h"
#include "ops/linear/q4_launch.h"
#include "ops/linear/q4_wide.cuh"

namespace splash::ops {
namespace {

template <class Shape>
void launch_shape(cuda::Stream& stream, const Q4Work& work) {
  auto* kernel = q4_wide_kernel<Shape>;
  cuda::allow_shared(stream, kernel, Shape::shared_bytes);
  SPLASH_CHECK(work.tiles_k % Shape::TILES == 0, "K = {} is not a multiple of {}", work.tiles_k * 64,
               Shape::TILES * 64);
  const int token_tiles = (work.tokens + Shape::NB - 1) / Shape::NB;
  const int k_steps = work.tiles_k / Shape::TILES;
  const int tiles = (work.strips + Shape::strips - 1) / Shape::strips * token_tiles;
  const int blocks = std::min(stream.facts().multiprocessors, Shape::whole ? tiles : tiles * k_steps);
  if (!Shape::whole) {
    SPLASH_CHECK(static_cast<long long>(tiles) * k_steps * blocks < (1LL << 32));
    static const bool resident = cuda::all_resident(stream, kernel, Shape::threads, Shape::shared_bytes, 1);
    SPLASH_CHECK(resident);  // q4_exchange's condition
    SPLASH_CHECK(blocks * Shape::exchange_bytes <= stream.exchange_bytes());
  }
  cuda::launch(stream, "q4 wide", {dim3(blocks), dim3(Shape::threads), Shape::shared_bytes}, kernel, work, token_tiles);
}

}  // namespace

void launch_q4_wide(cuda::Stream& stream, const Q4Work& work) {
  switch (cuda::panel_row_tile(work.tokens)) {
    case 32:
      return launch_shape<Q4WideShape<32, 2, 8, false>>(stream, work);
    case 64:
      return launch_shape<Q4WideShape<64, 2, 8, false>>(stream, work);
    case 128:
      return launch_shape<Q4WideShape<128, 2, 5, true>>(stream, work);
    case 256:
      return launch_shape<Q4WideShape<256, 2, 3, true>>(stream, work);
    default:
      SPLASH_CHECK(false, "{} tokens are not for the wide kernel", work.tokens);
  }
}

}  // namespace splash::ops
