// Engine: what a step costs on this machine, before anyone waits for one.
#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "engine/engine.h"

namespace splash::engine {

Status Engine::warm_up() {
  SPLASH_CHECK(running() == 0 && queue_.empty());
  SPLASH_TRY_STATUS(model_.prepare());
  constexpr int prompt_tokens = link::page_tokens;
  constexpr int repeats = 3;  // the fastest counts: the others met something else on the machine
  const int widest = facts_.has_draft && config_.use_draft ? facts_.block_rows : 1;
  std::vector<int> widths;
  for (int width = 1; width < widest; width *= 2) widths.push_back(width);
  widths.push_back(widest);
  const int positions = prompt_tokens + static_cast<int>(widths.size()) * repeats * widest;
  if (positions > limits_.context || !prefixes_.make_room(pages_for(positions)) || !open_pages(pages_for(positions))) {
    return {};
  }

  std::vector<model::PageId> pages;
  while (static_cast<int>(pages.size()) < pages_for(positions)) pages.push_back(pages_.take());
  const auto measure = [&]() -> Status {
    const std::vector<Token> prompt(prompt_tokens, 0);
    model_.start_lane(0, {.sampling = {.temperature = 0.0f}, .use_draft = config_.use_draft});
    int position = 0;
    Token anchor = 0;
    while (position < prompt_tokens) {
      const int rows = std::min(facts_.max_prefill_rows, prompt_tokens - position);
      model::StepPlan plan;
      plan.prefill.push_back(
          {0, position, std::span(prompt).subspan(position, rows), pages, position + rows == prompt_tokens});
      SPLASH_TRY(const model::StepResult result, model_.step(plan));
      position += rows;
      if (position == prompt_tokens) anchor = result.prefill.front().chosen.front();
    }
    StepCost cost(facts_.lanes * facts_.block_rows);
    for (const int width : widths) {
      double fastest = 0.0;
      for (int i = 0; i < repeats; ++i) {
        model::StepPlan plan;
        plan.decode.push_back({0, position, anchor, pages, widest, width});
        const TimePoint start = clock_.now();
        SPLASH_TRY(const model::StepResult result, model_.step(plan));
        const double seconds = std::chrono::duration<double>(clock_.now() - start).count();
        fastest = i == 0 ? seconds : std::min(fastest, seconds);
        position += result.decode.front().committed;
        anchor = result.decode.front().chosen.back();
      }
      cost.record(width, fastest);
    }
    scheduler_.set_cost(cost);
    return {};
  };
  const Status status = measure();
  for (const model::PageId page : pages) pages_.lane_release(page);
  return status;
}

}  // namespace splash::engine
