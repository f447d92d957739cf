#include "models/qwen3_5/cuda/tables.h"

#include <algorithm>

namespace splash::models::qwen3_5 {

Result<StepTables> StepTables::make(const TableSizes& sizes) {
  const auto lanes = static_cast<std::size_t>(sizes.lanes), block = static_cast<std::size_t>(sizes.block),
             layers = static_cast<std::size_t>(sizes.draft_layers);
  const std::size_t rows = lanes * block, prefill_rows = static_cast<std::size_t>(sizes.prefill_rows);
  const std::size_t entry_bytes = sizeof(ops::SegmentEntry) + sizeof(ops::LaneChoice) +
                                  layers * (sizeof(ops::DraftContextSegment) + sizeof(ops::DraftBlockSegment));
  constexpr std::size_t ends = 16 * 256;  // of the parts
  StepTables t;
  t.sizes = sizes;
  const std::size_t mark_bytes = (lanes + 1) * sizeof(ops::SegmentEntry) + layers * sizeof(ops::DraftContextSegment);
  SPLASH_TRY(t.of_prefill,
             cuda::Twin::allocate(lanes * entry_bytes + (prefill_rows + lanes) * 4 + mark_bytes + ends));
  SPLASH_TRY(t.of_decode, cuda::Twin::allocate(lanes * entry_bytes + 3 * rows * 4 + ends));
  const auto pass = [&](cuda::Twin& twin, std::size_t pass_rows, std::size_t choosing_rows) {
    return PassTables{twin.add<Token>(pass_rows), twin.add<ops::SegmentEntry>(lanes), twin.add<ops::LaneChoice>(lanes),
                      twin.add<ops::DraftContextSegment>(layers * lanes), twin.add<int>(choosing_rows)};
  };
  t.prefill = pass(t.of_prefill, prefill_rows, lanes);
  t.mark = {t.of_prefill.add<ops::SegmentEntry>(lanes), t.of_prefill.add<ops::SegmentEntry>(1),
            t.of_prefill.add<ops::DraftContextSegment>(layers)};
  t.decode = pass(t.of_decode, rows, rows);
  t.draft_tokens = t.of_decode.add<Token>(rows);
  t.blocks = t.of_decode.add<ops::DraftBlockSegment>(layers * lanes);
  SPLASH_TRY(t.results, cuda::PinnedBuffer::allocate(2 * lanes * sizeof(ops::LaneChosen)));
  std::memset(t.results.data(), 0, t.results.bytes());
  t.prefill_chosen = t.results.as<ops::LaneChosen>();
  t.decode_chosen = t.prefill_chosen + lanes;

  const std::size_t pages = lanes * static_cast<std::size_t>(sizes.pages),
                    masks = rows * static_cast<std::size_t>(sizes.mask_words);
  SPLASH_TRY(t.own, cuda::Twin::allocate((pages + masks + rows) * 4 + 4096));
  t.pages = t.own.add<ops::PageId>(pages);
  t.masks = t.own.add<std::uint32_t>(masks);
  t.drafted = t.own.add<Token>(rows);
  std::fill_n(t.pages.host, pages, -1);
  return t;
}

void StepTables::set_pages(cuda::Stream& stream, int lane, std::span<const ops::PageId> list) {
  SPLASH_CHECK(static_cast<int>(list.size()) <= sizes.pages);
  ops::PageId* known = pages.host + std::int64_t{lane} * sizes.pages;
  const auto same = std::mismatch(list.begin(), list.end(), known).first - list.begin();
  if (same == std::ssize(list)) return;
  std::copy(list.begin() + same, list.end(), known + same);
  cuda::upload(stream, pages, static_cast<std::size_t>(std::int64_t{lane} * sizes.pages + same),
               list.size() - static_cast<std::size_t>(same));
}

}  // namespace splash::models::qwen3_5
