// A model for tests whose next token is a hash of every token committed before it, so that any mistake in pages,
// snapshots, positions or lanes changes the answer; most are caught at once, because each step re-reads the committed
// tokens from the pages and compares them with the lane's running hash.
#pragma once

#include <vector>

#include "base/clock.h"
#include "model/model.h"

namespace splash::model {

struct FakeOptions {
  Facts facts;
  std::uint64_t seed = 0;      // of acceptance and failures; never of the tokens
  double acceptance = 0.7;     // chance that a proposal is right
  double failure = 0.0;        // chance that a step fails
  ErrorKind failure_kind = ErrorKind::internal;
  int device_pages = 1 << 30;  // for which the fake device has memory
  FakeClock* clock = nullptr;  // advanced by the cost of a step
  double step_seconds = 0.010;
  double row_seconds = 0.001;
  double save_seconds = 0;     // of a snapshot, marked or not
  double restore_seconds = 0;
};

class FakeModel final : public Model {
 public:
  explicit FakeModel(const FakeOptions& options);

  const Facts& facts() const override { return options_.facts; }
  Status back_pages(int pages) override;
  void start_lane(int lane, const LaneSetup& setup) override;
  Result<StepResult> step(const StepPlan& plan) override;
  void save(int lane, SnapshotId into) override;
  void restore(int lane, SnapshotId from) override;
  void save_mark(SnapshotId into) override;
  void copy_page(PageId from, PageId to) override;

  // The reply the model gives to a prompt on its own: what every request must get in whatever company.
  static std::vector<Token> reply_alone(std::span<const Token> prompt, const LaneSetup& setup, int vocab_size,
                                        int reply_limit);

  // Overwrites what nobody should read any more.
  void poison_page(PageId page);
  void poison_snapshot(SnapshotId snapshot);

  std::int64_t steps() const { return steps_; }
  std::int64_t prefill_rows() const { return prefill_rows_; }

 private:
  struct Row {
    Token token = -1;
    int position = -1;
  };
  // The recurrent state at rest: a hash of the committed tokens, and how many there were.
  struct State {
    std::uint64_t hash = 0;
    int length = -1;  // -1 = undefined
  };
  struct Lane {
    LaneSetup setup;
    State state;
  };

  void pass(double seconds);
  void check_slice(int lane, int position, std::span<const PageId> pages, int rows);
  void check_writers(const StepPlan& plan) const;
  void write(std::span<const PageId> pages, int position, Token token);
  SliceResult prefill(const PrefillSlice& slice);
  SliceResult decode(const DecodeSlice& slice);
  std::vector<Token> draft(const Lane& lane, const DecodeSlice& slice) const;
  tl::unexpected<Error> fail_step(const StepPlan& plan);

  FakeOptions options_;
  std::vector<Lane> lanes_;
  std::vector<std::vector<Row>> pages_;
  int backed_ = 0;
  std::vector<State> snapshots_;
  State mark_;  // of the last step
  std::int64_t steps_ = 0;
  std::int64_t prefill_rows_ = 0;
};

}  // namespace splash::model
