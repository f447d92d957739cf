#include "backend/cuda/launch.h"
#include "ops/linear/q4_launch.h"
#include "ops/linear/q4_portable.cuh"

namespace splash::ops {
namespace portable {
namespace {

template <int NT, int STRIPS>
void launch_rows(cuda::Stream& stream, const Q4Work& work, int row_tile) {
  auto* kernel = q4_portable_rows_kernel<NT, STRIPS>;
  cuda::allow_shared(stream, kernel, rows_shared_bytes<NT, STRIPS>);
  cuda::launch(stream, "q4 portable rows",
               {dim3((work.groups * Q4Order::group + STRIPS - 1) / STRIPS, (work.tokens + NT * 8 - 1) / (NT * 8)), dim3(rows_threads),
                rows_shared_bytes<NT, STRIPS>},
               kernel, work, row_tile);
}

// Four strips a warp read the panel half as often; two where four would leave multiprocessors idle, and for 32 tokens,
// where four do not fit the registers.
template <int NT>
void launch_rows(cuda::Stream& stream, const Q4Work& work, int row_tile) {
  if constexpr (NT < 4) {
    if (work.groups * Q4Order::group >= 8 * stream.facts().multiprocessors) return launch_rows<NT, 4>(stream, work, row_tile);
  }
  launch_rows<NT, 2>(stream, work, row_tile);
}

}  // namespace
}  // namespace portable

void launch_q4_portable(cuda::Stream& stream, const Q4Work& work) {
  namespace p = portable;
  const int row_tile = cuda::panel_row_tile(work.tokens);
  if (work.tokens <= 8) return p::launch_rows<1>(stream, work, row_tile);
  if (work.tokens <= 16) return p::launch_rows<2>(stream, work, row_tile);
  if (work.tokens <= 64) return p::launch_rows<4>(stream, work, row_tile);
  cuda::allow_shared(stream, p::q4_portable_wide_kernel, sizeof(p::WideShared));
  cuda::launch(stream, "q4 portable wide",
               {dim3((work.tokens + p::wide_tokens - 1) / p::wide_tokens, (work.groups * Q4Order::group + p::wide_strips - 1) / p::wide_strips),
                dim3(p::wide_threads), sizeof(p::WideShared)},
               p::q4_portable_wide_kernel, work, row_tile);
}

}  // namespace splash::ops
