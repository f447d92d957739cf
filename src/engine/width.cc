#include "engine/width.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace splash::engine {
namespace {

constexpr double faster_weight = 0.75;  // of a step that was faster than its estimate
constexpr double slower_weight = 0.1;   // of one that was slower,
constexpr double slowest_ratio = 1.5;   // which counts as this many estimates at most
constexpr double trial_memory = 0.98;  // per trial: about the last fifty decide
constexpr double prior_trials = 4.0;   // how many trials the prior is worth

}  // namespace

StepCost::StepCost(int max_rows) : measured_(max_rows + 1), smoothed_(max_rows + 1) { SPLASH_CHECK(max_rows > 0); }

void StepCost::record(int rows, double seconds) {
  SPLASH_CHECK(rows > 0 && rows < static_cast<int>(measured_.size()));
  if (seconds <= 0.0) return;  // the clock did not see it
  double& slot = measured_[rows];
  if (slot == 0.0) {
    slot = seconds;
  } else if (seconds < slot) {
    slot += faster_weight * (seconds - slot);
  } else {
    slot += slower_weight * (std::min(seconds, slowest_ratio * slot) - slot);
  }
  ++samples_;
  smooth();
}

double StepCost::seconds(int rows) const {
  SPLASH_CHECK(known());
  return smoothed_[std::clamp(rows, 1, static_cast<int>(smoothed_.size()) - 1)];
}

void StepCost::smooth() {
  double least = std::numeric_limits<double>::infinity();  // of the widths measured from here up
  for (int rows = static_cast<int>(measured_.size()) - 1; rows > 0; --rows) {
    if (measured_[rows] == 0.0) continue;
    smoothed_[rows] = least = std::min(least, measured_[rows]);
  }
  int last = 0;  // the last row count seen, and the slope up to it
  double slope = 0.0;
  for (int rows = 1; rows < static_cast<int>(measured_.size()); ++rows) {
    if (measured_[rows] == 0.0) {
      // Past the last measurement the slope goes on; before the next one this is overwritten.
      smoothed_[rows] = last == 0 ? 0.0 : smoothed_[last] + slope * (rows - last);
      continue;
    }
    slope = last == 0 ? 0.0 : (smoothed_[rows] - smoothed_[last]) / (rows - last);
    for (int between = last + 1; between < rows; ++between) {
      smoothed_[between] = last == 0 ? smoothed_[rows] : smoothed_[last] + slope * (between - last);
    }
    last = rows;
  }
}

void Acceptance::record(int drafted, int accepted, bool cut) {
  SPLASH_CHECK(0 <= accepted && accepted <= drafted && drafted < link::max_block);
  const bool rejected = accepted < drafted && !cut;
  for (int i = 0; i < accepted + (rejected ? 1 : 0); ++i) {
    trials_[i].all = trials_[i].all * trial_memory + 1.0;
    trials_[i].kept = trials_[i].kept * trial_memory + (i < accepted ? 1.0 : 0.0);
  }
}

double Acceptance::probability(int position, double prior) const {
  const Trials& trials = trials_[position];
  return (trials.kept + prior_trials * prior) / (trials.all + prior_trials);
}

double expected_tokens(const WidthView& lane, int width) {
  double reached = 1.0;
  double tokens = 1.0;
  for (int i = 0; i + 1 < width; ++i) tokens += reached *= lane.probability[i];
  return tokens;
}

std::vector<int> choose_widths(std::span<const WidthView> lanes, const StepCost& cost, const Company& company) {
  struct Gain {
    double tokens;
    int lane;
  };
  std::vector<Gain> gains;
  for (int lane = 0; lane < static_cast<int>(lanes.size()); ++lane) {
    double reached = 1.0;
    for (int i = 0; i + 1 < lanes[lane].max_width; ++i) gains.push_back({reached *= lanes[lane].probability[i], lane});
  }
  // Stable: of equal gains the earlier lane's and the earlier row's come first, so rows stay contiguous.
  std::ranges::stable_sort(gains, std::greater<>(), &Gain::tokens);

  const int base_rows = company.rows + static_cast<int>(lanes.size());
  double tokens = company.tokens + static_cast<double>(lanes.size());
  std::size_t best = gains.size();  // an unmeasured device runs full blocks
  if (cost.known()) {
    best = 0;
    double best_rate = tokens / cost.seconds(base_rows);
    for (std::size_t taken = 1; taken <= gains.size(); ++taken) {
      tokens += gains[taken - 1].tokens;
      const double rate = tokens / cost.seconds(base_rows + static_cast<int>(taken));
      if (rate > best_rate) {
        best_rate = rate;
        best = taken;
      }
    }
  }
  std::vector<int> widths(lanes.size(), 1);
  for (std::size_t taken = 0; taken < best; ++taken) ++widths[gains[taken].lane];
  return widths;
}

}  // namespace splash::engine
