// How many rows a lane verifies. Wider blocks keep more tokens per step and cost more per step on a device that is not
// bound by bytes; the choice maximises expected tokens per second. It reads only what earlier steps measured, never a
// value sampled in the step it is made for, so it cannot bias the law of the tokens.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "link/limits.h"

namespace splash::engine {

// Seconds of a decode step by its verify rows, all lanes together: a running estimate per row count, straight lines
// between the counts seen, never falling with more rows.
class StepCost {
 public:
  explicit StepCost(int max_rows);
  void record(int rows, double seconds);
  bool known() const { return samples_ > 0; }
  double seconds(int rows) const;

 private:
  void smooth();

  std::vector<double> measured_;  // by rows; 0 = not seen
  std::vector<double> smoothed_;
  int samples_ = 0;
};

// P(the proposal at block position i is kept | those before it were), from counts that fade.
class Acceptance {
 public:
  // `cut`: the block ended at a stop token or the budget, so its first proposal not kept was not rejected.
  void record(int drafted, int accepted, bool cut);
  double probability(int position) const;

 private:
  struct Trials {
    double kept = 0;
    double all = 0;
  };
  std::array<Trials, link::max_block> trials_{};
};

// What one lane expects: probability[i] as above for its proposals, and the widest block it may run now.
struct WidthView {
  std::array<double, link::max_block> probability{};
  int max_width = 1;
};

// Widths (>= 1) for lanes that decode in one step, maximising sum of expected tokens / seconds(sum of rows). A lane's
// gain from one more row falls with every row, so the best rows for any total are the largest gains.
std::vector<int> choose_widths(std::span<const WidthView> lanes, const StepCost& cost);

}  // namespace splash::engine
