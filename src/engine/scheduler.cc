#include "engine/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace splash::engine {
namespace {

constexpr double row_memory = 0.75;  // weight of the past in the running time of a prefill row

int sum_rows(std::span<const Grant> grants) {
  int rows = 0;
  for (const Grant& grant : grants) rows += grant.rows;
  return rows;
}

}  // namespace

int Choice::prefill_rows() const { return sum_rows(prefill); }
int Choice::decode_rows() const { return sum_rows(decode); }

Scheduler::Scheduler(const model::Facts& facts, const Pacing& pacing, int fixed_width)
    : block_rows_(facts.block_rows),
      max_prefill_rows_(facts.max_prefill_rows),
      fixed_width_(fixed_width),
      pacing_(pacing),
      cost_(facts.lanes * facts.block_rows) {}

Choice Scheduler::next(std::span<const PrefillView> prefill, std::span<const DecodeView> decode) const {
  Choice choice;
  choice.decode = widths(decode);
  choice.prefill = slices(prefill, row_budget(choice.decode_rows()));
  return choice;
}

void Scheduler::complete(const Choice& choice, double seconds) {
  const int decode_rows = choice.decode_rows();
  const int prefill_rows = choice.prefill_rows();
  if (decode_rows > 0) ++decode_steps_;
  if (prefill_rows == 0 && decode_rows > 0) cost_.record(decode_rows, seconds);
  // A few rows cost as much as reading the weights: they say nothing about the time of one more.
  if (prefill_rows < std::min(pacing_.minimum_rows, max_prefill_rows_)) return;
  if (decode_rows > 0 && cost_.known()) seconds -= cost_.seconds(decode_rows);
  if (seconds <= 0.0) return;
  const double row = seconds / prefill_rows;
  row_seconds_ = row_seconds_ == 0.0 ? row : row_memory * row_seconds_ + (1.0 - row_memory) * row;
}

// Lanes whose width is no question: nothing to choose from, a stated seed, or a probe is due.
bool Scheduler::settled(const DecodeView& lane) const {
  return fixed_width_ > 0 || lane.max_width == 1 || lane.reproducible ||
         decode_steps_ % probe_every == probe_every - 1;
}

WidthView Scheduler::estimate(const DecodeView& lane) const {
  WidthView view{.max_width = lane.max_width};
  for (int i = 0; i + 1 < block_rows_; ++i) {
    view.probability[i] = lane.acceptance->probability(i, acceptance_.probability(i, Acceptance::typical));
  }
  return view;
}

std::vector<Grant> Scheduler::widths(std::span<const DecodeView> decode) const {
  std::vector<Grant> grants;
  std::vector<WidthView> open;  // lanes to be decided together
  std::vector<std::size_t> open_grants;
  Company company;
  for (const DecodeView& lane : decode) {
    SPLASH_CHECK(lane.max_width >= 1 && lane.max_width <= block_rows_);
    if (settled(lane)) {
      company.rows += lane.max_width;
      company.tokens += expected_tokens(estimate(lane), lane.max_width);
    } else {
      open.push_back(estimate(lane));
      open_grants.push_back(grants.size());
    }
    grants.push_back({lane.lane, lane.max_width});
  }
  const std::vector<int> chosen = choose_widths(open, cost_, company);
  for (std::size_t i = 0; i < chosen.size(); ++i) grants[open_grants[i]].rows = chosen[i];
  return grants;
}

// The oldest prompt gets at least half of the rows, so it never starves; what is left goes to whoever is done first, so
// a short question does not wait behind a long document.
std::vector<Grant> Scheduler::slices(std::span<const PrefillView> prefill, int rows) const {
  std::vector<PrefillView> order(prefill.begin(), prefill.end());
  std::vector<Grant> grants;
  const auto give = [&](const PrefillView& lane, int most) {
    auto grant = std::ranges::find(grants, lane.lane, &Grant::lane);
    if (grant == grants.end()) grant = grants.insert(grant, {lane.lane, 0});
    const int given = std::min({most, rows, lane.rows_to_stop - grant->rows});
    grant->rows += given;
    rows -= given;
  };
  if (order.empty()) return grants;
  give(*std::ranges::min_element(order, {}, &PrefillView::arrival), (rows + 1) / 2);
  std::ranges::sort(order, {}, [](const PrefillView& lane) { return std::pair(lane.rows_to_end, lane.arrival); });
  for (const PrefillView& lane : order) give(lane, rows);
  std::erase_if(grants, [](const Grant& grant) { return grant.rows == 0; });
  return grants;
}

int Scheduler::row_budget(int decode_rows) const {
  if (decode_rows == 0) return max_prefill_rows_;
  const int least = std::min(pacing_.minimum_rows, max_prefill_rows_);
  if (row_seconds_ == 0.0) return least;
  const double spare = pacing_.slice_seconds - (cost_.known() ? cost_.seconds(decode_rows) : 0.0);
  return static_cast<int>(std::clamp<double>(spare / row_seconds_, least, max_prefill_rows_));
}

}  // namespace splash::engine
