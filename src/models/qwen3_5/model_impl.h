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
  lanes_[lane] = {setup, 0};
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
  snapshot_length_[into] = lanes_[lane].length;
}

template <class Stream>
void HybridModel<Stream>::restore(int lane, model::SnapshotId from) {
  state_.restore(lane, from);
  lanes_[lane].length = snapshot_length_[from];
}

template <class Stream>
std::span<const float> HybridModel<Stream>::state_at_rest(int lane) {
  bring_to_rest(lane);
  return state_.rest(lane);
}

// Rows that may be verified beyond the anchor: what was asked for, cut by the block and by the context's end.
template <class Stream>
int HybridModel<Stream>::proposals_for(const model::DecodeSlice& slice) const {
  if (!draft_weights_ || !lanes_[slice.lane].setup.use_draft) return 0;
  const int room = std::min(facts_.max_context, static_cast<int>(slice.pages.size()) * link::page_tokens);
  return std::max(0, std::min({slice.width, facts_.block_rows, room - slice.position}) - 1);
}

template <class Stream>
Status HybridModel<Stream>::check(const model::StepPlan& plan) const {
  std::vector<bool> taken(lanes_.size());
  const auto take = [&](int lane) -> Status {
    if (lane < 0 || lane >= facts_.lanes || taken[lane]) {
      return fail(ErrorKind::internal, "lane {} is not one of {} lanes or is in the plan twice", lane, facts_.lanes);
    }
    taken[lane] = true;
    return {};
  };
  int rows = 0;
  for (const model::PrefillSlice& slice : plan.prefill) {
    SPLASH_TRY_STATUS(take(slice.lane));
    rows += static_cast<int>(slice.tokens.size());
    SPLASH_TRY_STATUS(check_slice(slice.lane, slice.position, static_cast<int>(slice.tokens.size()), slice.pages));
    SPLASH_TRY_STATUS(check_tokens(slice.tokens));
  }
  if (rows > facts_.max_prefill_rows) {
    return fail(ErrorKind::internal, "{} prefill rows in one step, the limit is {}", rows, facts_.max_prefill_rows);
  }
  for (const model::DecodeSlice& slice : plan.decode) {
    SPLASH_TRY_STATUS(take(slice.lane));
    SPLASH_TRY_STATUS(check_slice(slice.lane, slice.position, 1, slice.pages));
    SPLASH_TRY_STATUS(check_tokens({&slice.anchor, 1}));
    if (slice.budget < 1) return fail(ErrorKind::internal, "a decode slice needs a budget of at least 1");
  }
  return {};
}

template <class Stream>
Status HybridModel<Stream>::check_slice(int lane, int position, int rows, std::span<const model::PageId> pages) const {
  if (rows < 1) return fail(ErrorKind::internal, "an empty slice for lane {}", lane);
  if (position != lanes_[lane].length) {
    return fail(ErrorKind::internal, "lane {} has {} committed tokens, the plan says {}", lane, lanes_[lane].length,
                position);
  }
  if (position + rows > facts_.max_context) {
    return fail(ErrorKind::invalid, "position {} is beyond the context of {} tokens", position + rows - 1,
                facts_.max_context);
  }
  if (position + rows > static_cast<int>(pages.size()) * link::page_tokens) {
    return fail(ErrorKind::internal, "{} pages do not hold {} positions", pages.size(), position + rows);
  }
  for (const model::PageId page : pages) {
    if (page < 0 || page >= facts_.pages) return fail(ErrorKind::internal, "page {} of {}", page, facts_.pages);
  }
  return {};
}

template <class Stream>
Status HybridModel<Stream>::check_tokens(std::span<const Token> tokens) const {
  for (const Token token : tokens) {
    if (token < 0 || token >= facts_.vocab_size) {
      return fail(ErrorKind::invalid, "token id {} is outside the vocabulary of {}", token, facts_.vocab_size);
    }
  }
  return {};
}

}  // namespace splash::models::qwen3_5
