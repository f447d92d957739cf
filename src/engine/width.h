// How many rows a lane verifies. Wider blocks keep more tokens per step and cost more per step on a device that is not
// bound by bytes; the choice maximises expected tokens per second. It reads only what earlier steps measured, never a
// value sampled in the step it is made for, so it cannot bias the law of the tokens.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "link/limits.h"

namespace splash::engine {

// Seconds of a decode step by its verify rows, all lanes together: a running estimate per row count and straight lines
// between the counts seen. What disturbs a step makes it longer, never shorter: a faster step is believed at once, a
// slower one little by little. More rows never cost less, so a wide step bounds every narrower one from above; an old
// measurement of a width that is no longer run cannot keep the wider ones dear.
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
  // `prior` is the estimate while this one has few trials of its own.
  double probability(int position, double prior) const;

  static constexpr double typical = 0.7;  // of a draft we know nothing about

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

// Tokens a lane expects to get out of one step of that width: 1 + p0 + p0 p1 + ...
double expected_tokens(const WidthView& lane, int width);

// Rows of the same step that are decided already, and the tokens expected of them.
struct Company {
  int rows = 0;
  double tokens = 0.0;
};

// Widths (>= 1) for lanes that decode in one step, maximising expected tokens / seconds(rows) of the whole step. A
// lane's gain from one more row falls with every row, so the best rows of any total are the largest gains.
std::vector<int> choose_widths(std::span<const WidthView> lanes, const StepCost& cost, const Company& company = {});

}  // namespace splash::engine
