// Everything of HybridModel but the step itself. Included by ref.cc and cpu.cc only.
#pragma once

#include <algorithm>

#include "models/qwen3_5/model.h"

namespace splash::models::qwen3_5 {

template <class Stream>
HybridModel<Stream>::HybridModel(std::unique_ptr<Stream> stream, std::shared_ptr<const pack::Package> package,
                                 model::Facts facts)
    : stream_(std::move(stream)),
      package_(std::move(package)),
      facts_(std::move(facts)),
      weights_(load(*package_)),
      state_(state_geometry(package_->target(), package_->draft(), kv_format<Stream>, facts_.max_context), facts_.lanes,
             facts_.pages, facts_.snapshots),
      lanes_(facts_.lanes),
      lengths_(facts_.lanes),
      snapshot_length_(facts_.snapshots) {
  if (package_->draft() != nullptr) draft_weights_ = dflash2::load(*package_);
  facts_.vocab_size = weights_.geometry.vocab_size;
  facts_.has_draft = draft_weights_.has_value();
  facts_.block_rows = draft_weights_ ? std::min(draft_weights_->geometry.block_size, link::max_block) : 1;
  if (facts_.sampling_limit <= 0) facts_.sampling_limit = facts_.vocab_size;
  SPLASH_CHECK(facts_.sampling_limit <= facts_.vocab_size && facts_.max_context > 0);
}

template <class Stream>
void HybridModel<Stream>::start_lane(int lane, const model::LaneSetup& setup) {
  lanes_[lane] = setup;
  lengths_[lane] = 0;
  state_.clear(lane);
}

template <class Stream>
void HybridModel<Stream>::bring_to_rest(int lane) {
  if (state_.kept(lane) == 0) return;
  for (int layer = 0; layer < weights_.gdn_layers; ++layer) {
    ops::gdn_fold(*stream_, weights_.gdn, state_.gdn(lane, layer));
  }
  state_.kept(lane) = 0;
}

template <class Stream>
void HybridModel<Stream>::save(int lane, model::SnapshotId into) {
  bring_to_rest(lane);
  state_.save(lane, into);
  snapshot_length_[into] = lengths_[lane];
}

template <class Stream>
void HybridModel<Stream>::restore(int lane, model::SnapshotId from) {
  state_.restore(lane, from);
  lengths_[lane] = snapshot_length_[from];
}

template <class Stream>
void HybridModel<Stream>::save_mark(model::SnapshotId into) {
  SPLASH_CHECK(mark_length_ > 0);
  state_.save_mark(into);
  snapshot_length_[into] = std::exchange(mark_length_, 0);
}

template <class Stream>
std::span<const float> HybridModel<Stream>::state_at_rest(int lane) {
  bring_to_rest(lane);
  return state_.rest(lane);
}

}  // namespace splash::models::qwen3_5
