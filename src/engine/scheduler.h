// The policy: which rows run in the next step. Pure in what it is shown: next() changes nothing, complete() learns from
// what a step did. Every decoding lane is in every step; prefill rows ride along, as many as keep the step short enough
// for the lanes that wait for their next token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/width.h"
#include "model/model.h"

namespace splash::engine {

struct Pacing {
  double slice_seconds = 0.25;  // aim of a step that also decodes; without decoding lanes a step takes all rows
  int minimum_rows = 32;        // prefill rows that a step always has room for: prompts never starve either
};

struct PrefillView {
  int lane = 0;
  std::uint64_t arrival = 0;
  int rows_to_stop = 0;  // up to the next snapshot or the end, > 0
  int rows_to_end = 0;
};

struct DecodeView {
  int lane = 0;
  int max_width = 1;  // what budget, context and model allow, >= 1
  bool reproducible = false;  // a stated seed: always the full block, what was measured may not show in its tokens
  const Acceptance* acceptance = nullptr;  // of this request
};

struct Grant {
  int lane = 0;
  int rows = 0;
};

struct Choice {
  std::vector<Grant> prefill;  // a lane at most once
  std::vector<Grant> decode;   // rows = verify width
  bool empty() const { return prefill.empty() && decode.empty(); }
  int prefill_rows() const;
  int decode_rows() const;
};

class Scheduler {
 public:
  // `fixed_width` 0 = chosen by cost and acceptance.
  Scheduler(const model::Facts& facts, const Pacing& pacing, int fixed_width);

  Choice next(std::span<const PrefillView> prefill, std::span<const DecodeView> decode) const;

  // The step took `seconds`; one of its decode slices kept `accepted` of `drafted` proposals.
  void complete(const Choice& choice, double seconds);
  void complete_slice(int drafted, int accepted, bool cut) { acceptance_.record(drafted, accepted, cut); }

  // What warm-up measured for one lane.
  void set_cost(const StepCost& cost) { cost_ = cost; }

  // Every so many decode steps of the engine all lanes run full blocks, so that an estimate that was wrong can recover
  // whatever the length of the replies.
  static constexpr int probe_every = 32;

 private:
  bool settled(const DecodeView& lane) const;
  WidthView estimate(const DecodeView& lane) const;
  std::vector<Grant> widths(std::span<const DecodeView> decode) const;
  std::vector<Grant> slices(std::span<const PrefillView> prefill, int rows) const;
  int row_budget(int decode_rows) const;

  int block_rows_ = 1;
  int max_prefill_rows_ = 0;
  int fixed_width_ = 0;
  Pacing pacing_;
  StepCost cost_;  // decode rows -> seconds, running
  std::uint64_t decode_steps_ = 0;
  double row_seconds_ = 0;  // of one prefill row, running; 0 = not measured
  Acceptance acceptance_;   // of all requests
};

}  // namespace splash::engine
