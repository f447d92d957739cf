// The dense hybrid model on the GPU, as the engine sees it.
//
// Decode is one recorded graph per shape (lanes x width x kind of law): draft, verify, law, accept, commit without a
// host decision in between; the host writes one block of tables before it and reads one block of results after it. A
// step with grammars is cut once, between verify and accept, where the masks of the drafted path come in. Prefill rows
// run in a pass of their own before it, not recorded: their shapes hardly ever repeat, and a decoding lane's numbers
// then never depend on what is prefilled beside it.
#pragma once

// clang-format off
#include "ops/ops_cuda.h"  // first: see there
// clang-format on

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "model/model.h"
#include "models/probe.h"
#include "models/qwen3_5/cuda/state.h"
#include "models/qwen3_5/cuda/tables.h"
#include "models/qwen3_5/cuda/weights.h"
#include "models/qwen3_5/forward.h"

namespace splash::models::qwen3_5 {

class CudaModel final : public model::Model {
 public:
  // facts.block_rows, has_draft and vocab_size are set from the package; the rest is the caller's choice.
  static Result<std::unique_ptr<CudaModel>> open(const cuda::DeviceFacts& device,
                                                 std::shared_ptr<const pack::Package> package, model::Facts facts);
  ~CudaModel() override;

  const model::Facts& facts() const override { return facts_; }
  Status back_pages(int pages) override;
  Status prepare() override;  // records every shape of greedy and top_k steps without grammars
  void start_lane(int lane, const model::LaneSetup& setup) override;
  Result<model::StepResult> step(const model::StepPlan& plan) override;
  void save(int lane, model::SnapshotId into) override;
  void restore(int lane, model::SnapshotId from) override;
  void save_mark(model::SnapshotId into) override;
  void copy_page(model::PageId from, model::PageId to) override;

  // For probes and tests; they use lane 0 and the first pages. The logits (and hidden states) of a text run in chunks;
  // the draft block after a text's last token; a lane's state at rest, on the host.
  Result<Scores> score(std::span<const Token> text, int chunk, bool with_hidden);
  Result<DraftReport> draft_report(std::span<const Token> text, int chunk);
  std::vector<float> state_at_rest(int lane);
  const CudaState& state() const { return *state_; }

 private:
  // What a recording is for.
  struct Shape {
    int lanes = 0, width = 0;
    ops::LawKind kind = ops::LawKind::greedy;
    bool cut = false;       // in three parts, for grammars
    bool drafting = false;  // some lane has a draft, whose context grows with the step
    auto operator<=>(const Shape&) const = default;
  };
  struct Recorded {
    cuda::Recording draft, verify, accept;  // uncut: all of it in `verify`
    MatrixView<float> logits;
  };
  // What one part of a step leaves for the next, and the host's stand-ins for the tables, which live until the
  // recording ends.
  struct Between {
    MatrixView<float> logits, features;
    ops::SlotLaw* laws = nullptr;
    dflash2::BlockRows blocks;
    Rows rows;
    dflash2::ContextSegments contexts;
  };

  CudaModel() = default;
  bool drafts(int lane) const { return draft() && lanes_[lane].use_draft; }
  const dflash2::Weights* draft() const { return weights_.draft ? &*weights_.draft : nullptr; }
  std::vector<int> taps() const { return draft() ? draft()->geometry.taps : std::vector<int>(); }

  // step.cc
  Shape write_decode(std::span<const model::DecodeSlice> slices);
  Result<model::StepResult> collect(const model::StepPlan& plan);
  Result<std::vector<Token>> await(const ops::LaneChosen& chosen, int lane, int most);
  void write_prefill(std::span<const model::PrefillSlice> slices);
  Status run_decode(std::span<const model::DecodeSlice> slices, const Shape& shape);
  void run_prefill(std::span<const model::PrefillSlice> slices);
  Result<const Recorded*> recorded(const Shape& shape);
  void enqueue_draft(const Shape& shape, Between& between);
  void enqueue_verify(const Shape& shape, Between& between);
  void enqueue_accept(const Shape& shape, Between& between);
  void mask_path(int lane, std::span<const Token> path, int first_mask);
  struct Pass {
    MatrixView<float> x, normed;            // residual stream, and its final norm (for a linear only)
    MatrixView<float> features;             // what the draft reads: [rows, taps * H]
    std::vector<MatrixView<float>> hidden;  // if asked for: the residual after the embedding and after each layer
  };
  struct Wanted {
    bool features = false, hidden = false;
  };
  Pass run_rows(const Rows& rows, const PassTables& tables, Wanted wanted);
  void pad_prefill(Rows& rows) const;
  void set_choice(ops::LaneChoice& choice, int lane, int position, int rows, int budget) const;
  void bring_to_rest(int lane);

  std::unique_ptr<cuda::Stream> stream_;
  model::Facts facts_;
  std::shared_ptr<const pack::Package> package_;
  CudaWeights weights_;
  std::unique_ptr<CudaState> state_;
  StepTables tables_;
  std::uint32_t ticket_ = 0;  // of the step under way: its results carry it
  bool four_bit_ = false;
  std::map<Shape, Recorded> recordings_;
  cudaEvent_t drafted_ = nullptr;
  std::vector<model::LaneSetup> lanes_;
  std::vector<int> lengths_, kept_, snapshot_length_;
  int mark_length_ = 0;  // committed tokens at the mark of the last step
};

// Bytes of device memory.
model::Footprint cuda_footprint(const pack::Package& package, int max_prefill_rows, int max_context);

}  // namespace splash::models::qwen3_5
