// What a model offers the engine. The engine never sees a tensor: it hands over a StepPlan in tokens, positions and pages
// and gets back which tokens were chosen. One thread calls all of this.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "link/command.h"
#include "link/limits.h"
#include "link/token.h"

namespace splash::model {

using PageId = std::int32_t;
using SnapshotId = std::int32_t;

// Fixed once a model is open.
struct Facts {
  std::string name;
  int vocab_size = 0;       // width of logits and masks
  int sampling_limit = 0;   // ids at or above it are padding and never chosen
  int block_rows = 8;       // widest verify pass, the anchor included; 1 without a draft
  int max_context = 0;      // positions
  int max_prefill_rows = 0; // rows of one step's prefill slices together
  int lanes = 0;
  int pages = 0;
  int snapshots = 0;
  int host_snapshots = 0;   // of them, where the model is on a device: the last ones, in host memory, slower to get at
  bool has_draft = false;
};

// Bytes that decide the memory plan; known before a model is opened.
struct Footprint {
  std::int64_t weights_bytes = 0;
  std::int64_t page_bytes = 0;      // 32 positions of KV, all layers
  std::int64_t lane_bytes = 0;      // recurrent state, tape, draft ring of one lane
  std::int64_t snapshot_bytes = 0;  // recurrent state and draft ring at rest
  std::int64_t scratch_bytes = 0;   // activations at max_prefill_rows
};

// How a lane's tokens are chosen; set when a request takes the lane.
struct LaneSetup {
  link::Sampling sampling;
  std::vector<Token> stop_tokens;
  std::shared_ptr<link::TokenConstraint> constraint;  // may be null; the model calls masks_along, the engine accept
  bool use_draft = true;  // false: plain one-row steps, for tests and comparison
};

// Prompt rows [position, position + tokens.size()) of a lane whose first `position` tokens are committed.
struct PrefillSlice {
  int lane = 0;
  int position = 0;
  std::span<const Token> tokens;
  std::span<const PageId> pages;  // covers position + tokens.size()
  bool choose = false;            // the prompt ends here: choose the first token from the last row
  // > 0: the lane's state behind that many of the rows is kept aside for save_mark, so that a snapshot inside a prompt
  // takes no step of its own. Fewer than all rows; at most one slice of a step has one.
  int mark = 0;
};

// One draft, verify, accept, commit of a lane: `position` tokens are committed, `anchor` is chosen but not yet run.
struct DecodeSlice {
  int lane = 0;
  int position = 0;
  Token anchor = 0;
  std::span<const PageId> pages;  // covers position + width
  int budget = 0;  // at most this many new tokens may be chosen (>= 1)
  int width = 0;   // verify rows wanted, 1..block_rows; proposals = width - 1
};

struct StepPlan {
  std::vector<PrefillSlice> prefill;
  std::vector<DecodeSlice> decode;
};

// What a slice did. Committed tokens grew by `committed`: the slice's tokens for a prefill; the anchor and the kept
// proposals (all but the last of {anchor, chosen...}) for a decode.
struct SliceResult {
  int lane = 0;
  int committed = 0;
  std::vector<Token> chosen;  // new tokens in order; the last one is the next anchor (or the stop token). Empty for a
                              // prefill slice without `choose`. Cut after the first stop token and at the budget.
  int drafted = 0;            // proposals verified
  int accepted = 0;           // proposals kept
};

struct StepResult {
  std::vector<SliceResult> prefill;  // in the plan's order
  std::vector<SliceResult> decode;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const Facts& facts() const = 0;

  // Makes now what the first step of each shape would otherwise make, so that steps can be measured. Called before serving;
  // not needed for a right answer.
  virtual Status prepare() { return {}; }

  // Memory for pages [0, pages): owed before a step or a copy uses them. An error (overloaded: the device is full) leaves
  // those that were there. Models whose pages are all there from the beginning have nothing to do.
  virtual Status back_pages([[maybe_unused]] int pages) { return {}; }

  // Empties a lane (zero state, nothing committed) and sets how it chooses.
  virtual void start_lane(int lane, const LaneSetup& setup) = 0;

  // Runs one step. An error leaves the lanes of the plan undefined (the engine fails their requests).
  virtual Result<StepResult> step(const StepPlan& plan) = 0;

  // The state at rest of a lane at its committed length: recurrent state and draft context, not the pages.
  virtual void save(int lane, SnapshotId into) = 0;
  virtual void restore(int lane, SnapshotId from) = 0;
  // The state that the last step's marked slice had at its mark: bit for bit what save would have taken had the slice
  // ended there. Once, before the next save or step.
  virtual void save_mark(SnapshotId into) = 0;

  // Copies the rows of one page into another (a shared, partly filled page gets its own copy before it is extended).
  virtual void copy_page(PageId from, PageId to) = 0;
};

}  // namespace splash::model
