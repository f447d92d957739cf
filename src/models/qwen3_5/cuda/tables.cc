#include "models/qwen3_5/cuda/tables.h"

#include <algorithm>

namespace splash::models::qwen3_5 {

Result<StepTables> StepTables::make(const TableSizes& sizes) {
  const auto lanes = static_cast<std::size_t>(sizes.lanes), block = static_cast<std::size_t>(sizes.block),
             layers = static_cast<std::size_t>(sizes.draft_layers);
  const std::size_t rows = lanes * block, prefill_rows = static_cast<std::size_t>(sizes.prefill_rows);
  const std::size_t entry_bytes = sizeof(ops::SegmentEntry) + sizeof(ops::LaneChoice) + sizeof(ops::DraftBlockSegment) +
                                  2 * layers * (sizeof(ops::DraftContextSegment) + sizeof(ops::DraftBlockSegment));
  StepTables t;
  t.sizes = sizes;
  SPLASH_TRY(t.step,
             cuda::Twin::allocate(2 * lanes * entry_bytes + (prefill_rows + 4 * rows + 8 * lanes) * 4 + (64 << 10)));
  const auto pass = [&](std::size_t pass_rows, std::size_t choosing_rows) {
    return PassTables{t.step.add<Token>(pass_rows), t.step.add<ops::SegmentEntry>(lanes),
                      t.step.add<ops::LaneChoice>(lanes), t.step.add<ops::DraftContextSegment>(layers * lanes),
                      t.step.add<int>(choosing_rows)};
  };
  t.prefill = pass(prefill_rows, lanes);
  t.decode = pass(rows, rows);
  t.draft_tokens = t.step.add<Token>(rows);
  t.blocks = t.step.add<ops::DraftBlockSegment>(layers * lanes);

  const std::size_t pages = lanes * static_cast<std::size_t>(sizes.pages),
                    masks = rows * static_cast<std::size_t>(sizes.mask_words);
  SPLASH_TRY(t.own, cuda::Twin::allocate((pages + masks + rows) * 4 + 2 * lanes * sizeof(ops::LaneChosen) + 4096));
  t.pages = t.own.add<ops::PageId>(pages);
  t.masks = t.own.add<std::uint32_t>(masks);
  t.chosen = t.own.add<ops::LaneChosen>(2 * lanes);
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
