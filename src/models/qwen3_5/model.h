// The dense hybrid model as the engine sees it, for one stream: pages, lanes, and the step.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "model/model.h"
#include "models/dflash2/forward.h"
#include "models/qwen3_5/check.h"
#include "models/qwen3_5/forward.h"
#include "models/qwen3_5/state.h"
#include "models/qwen3_5/weights.h"
#include "ops/sampling/sampling.h"

namespace splash::models::qwen3_5 {

template <class Stream>
inline constexpr ops::KvFormat kv_format = ops::KvFormat::int8;
template <>
inline constexpr ops::KvFormat kv_format<ref::Stream> = ops::KvFormat::f32;

template <class Stream>
class HybridModel final : public model::Model {
 public:
  // facts.block_rows, has_draft and vocab_size are set from the package; the rest is the caller's choice.
  HybridModel(std::unique_ptr<Stream> stream, std::shared_ptr<const pack::Package> package, model::Facts facts);

  const model::Facts& facts() const override { return facts_; }
  void start_lane(int lane, const model::LaneSetup& setup) override;
  Result<model::StepResult> step(const model::StepPlan& plan) override;
  void save(int lane, model::SnapshotId into) override;
  void restore(int lane, model::SnapshotId from) override;
  void save_mark(model::SnapshotId into) override;
  void copy_page(model::PageId from, model::PageId to) override { state_.copy_page(from, to); }

  // Brings a lane to rest and shows its state; for tests.
  std::span<const float> state_at_rest(int lane);
  const State& state() const { return state_; }

 private:
  // A slice on its way through a step.
  struct Prefill {
    const model::PrefillSlice* slice = nullptr;
    int first_row = 0;
    int logit_row = -1;  // of the last row, where a token is chosen
  };
  struct Decode {
    const model::DecodeSlice* slice = nullptr;
    std::vector<ops::Proposal> proposals;
    int first_row = 0;
    int logit_row = 0;

    int rows() const { return static_cast<int>(proposals.size()) + 1; }
  };

  void draft(std::vector<Decode>& decode);
  void verify(std::vector<Prefill>& prefill, std::vector<Decode>& decode);
  std::vector<Token> choose(int lane, int position, std::span<const ops::Proposal> proposals, int logit_row);
  model::SliceResult commit(const Prefill& prefill);
  model::SliceResult accept_and_commit(const Decode& decode);
  void commit_draft_context();

  int proposals_for(const model::DecodeSlice& slice) const {
    return qwen3_5::proposals_for(slice, facts_, draft_weights_ && lanes_[slice.lane].use_draft);
  }
  void bring_to_rest(int lane);

  std::unique_ptr<Stream> stream_;
  std::shared_ptr<const pack::Package> package_;  // owns what the weights view
  model::Facts facts_;
  Weights weights_;
  std::optional<dflash2::Weights> draft_weights_;
  State state_;
  std::vector<model::LaneSetup> lanes_;
  std::vector<int> lengths_;  // committed tokens, by lane
  std::vector<int> snapshot_length_;

  // Of the step in progress; views into the stream's arena.
  MatrixView<float> features_;  // [rows, taps * H]
  MatrixView<float> logits_;
  std::vector<dflash2::ContextRows> context_;  // rows of `features_` to commit
  std::optional<dflash2::ContextRows> rest_;   // those behind a mark
  int mark_length_ = 0;  // committed tokens at the mark of the last step
  std::vector<std::uint32_t> masks_;
  ops::Law law_;
};

extern template class HybridModel<ref::Stream>;
extern template class HybridModel<cpu::Stream>;

}  // namespace splash::models::qwen3_5
