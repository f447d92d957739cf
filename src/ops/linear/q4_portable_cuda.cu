#include "backend/cuda/launch.h"
#include "ops/linear/q4_launch.h"
#include "ops/linear/q4_portable.cuh"

namespace splash::ops {
namespace portable {
namespace {

template <int NT, int STRIPS>
void launch_rows(cuda::Stream& stream, const Q4Work& work) {
  auto* kernel = q4_portable_rows_kernel<NT, STRIPS>;
  cuda::allow_shared(stream, kernel, rows_shared_bytes<NT, STRIPS>);
  cuda::launch(stream, "q4 portable rows",
               {dim3((work.groups * Q4Order::group + STRIPS - 1) / STRIPS), dim3(rows_threads),
                rows_shared_bytes<NT, STRIPS>},
               kernel, work);
}

// Two strips a warp read the panel half as often; of small matrices one, so that there are warps enough to wait for
// memory and row blocks, in however many parts, to fill the device.
bool two_strips(cuda::Stream& stream, const Q4Work& work) {
  return work.gated || work.groups * Q4Order::group >= 4 * stream.facts().multiprocessors;
}

template <int NT>
void launch_rows(cuda::Stream& stream, const Q4Work& work) {
  static_assert(cuda::panel_row_tile(NT * 8) == NT * 8);
  two_strips(stream, work) ? launch_rows<NT, 2>(stream, work) : launch_rows<NT, 1>(stream, work);
}

// In how many a row block's parts of K are split: what fills the device's places best, the fewest of those. The bits are
// the same for all.
template <class Shared>
int mid_splits(cuda::Stream& stream, int row_blocks) {
  const auto bytes = [&](int splits) { return row_blocks * mid_slots(splits) * Shared::total_bytes; };
  const auto filled = [&](int splits) {
    const int places = Shared::resident * stream.facts().multiprocessors, blocks = row_blocks * splits;
    return static_cast<double>(blocks) / ((blocks + places - 1) / places * places);
  };
  constexpr double worth = 1.05;
  int best = 1;
  for (int splits = 2; splits <= k_parts && bytes(splits) <= stream.partials_bytes() / 2; splits *= 2) {
    if (filled(splits) > worth * filled(best)) best = splits;
  }
  return best;
}

// False: not split, and then the wide kernel's.
template <class Shared>
bool launch_mid(cuda::Stream& stream, const Q4Work& work) {
  const int row_blocks = (work.groups * Q4Order::group + Shared::strips - 1) / Shared::strips;
  const int splits = mid_splits<Shared>(stream, row_blocks);
  if (splits == 1 && !Shared::holds_total) return false;
  SPLASH_CHECK(splits == 1 || row_blocks * sizeof(unsigned) <= stream.exchange_bytes());
  auto* kernel = q4_portable_mid_kernel<Shared>;
  constexpr std::size_t most = sizeof(Shared) + (Shared::holds_total ? Shared::total_bytes : 0);
  static_assert(most <= 99 * 1024);
  cuda::allow_shared(stream, kernel, most);
  cuda::launch(stream, "q4 portable mid",
               {dim3(row_blocks * splits), dim3(Shared::threads), splits == 1 ? most : sizeof(Shared)}, kernel, work,
               splits);
  return true;
}

template <int SIDES>
bool launch_mid(cuda::Stream& stream, const Q4Work& work) {
  return two_strips(stream, work) ? launch_mid<MidShared<SIDES, 2>>(stream, work)
                                  : launch_mid<MidShared<SIDES, 1>>(stream, work);
}

}  // namespace
}  // namespace portable

void launch_q4_portable(cuda::Stream& stream, const Q4Work& work) {
  namespace p = portable;
  if (work.tokens <= 8) return p::launch_rows<1>(stream, work);
  if (work.tokens <= 16) return p::launch_rows<2>(stream, work);
  if (work.tokens <= 64 && (work.tokens <= 32 ? p::launch_mid<1>(stream, work) : p::launch_mid<2>(stream, work))) return;
  cuda::allow_shared(stream, p::q4_portable_wide_kernel, sizeof(p::WideShared));
  cuda::launch(stream, "q4 portable wide",
               {dim3((work.tokens + p::wide_tokens - 1) / p::wide_tokens, (work.groups * Q4Order::group + p::wide_strips - 1) / p::wide_strips),
                dim3(p::wide_threads), sizeof(p::WideShared)},
               p::q4_portable_wide_kernel, work, cuda::panel_row_tile(work.tokens));
}

}  // namespace splash::ops
