#include "engine/engine.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"

namespace splash::engine {

int pages_for(int positions) { return (positions + link::page_tokens - 1) / link::page_tokens; }

Engine::Engine(model::Model& model, const cache::MemoryPlan& plan, const Config& config, const Clock& clock)
    : model_(model),
      facts_(model.facts()),
      plan_(plan),
      config_(config),
      clock_(clock),
      limits_{facts_.vocab_size, std::min(plan.context, facts_.max_context), config.max_queued},
      pages_(facts_.pages),
      prefixes_(pages_, facts_.snapshots),
      scheduler_(facts_, config.pacing, config.fixed_width),
      lanes_(facts_.lanes) {
  SPLASH_CHECK(facts_.lanes >= 1 && facts_.vocab_size >= 1 && facts_.max_prefill_rows >= 1);
  SPLASH_CHECK(facts_.block_rows >= 1 && facts_.block_rows <= link::max_block);
  SPLASH_CHECK(limits_.context >= 2 && config.checkpoint_tokens > 0 && config.pacing.minimum_rows > 0);
  // One request alone can fill its context: the ground on which nothing ever waits for pages in a circle.
  SPLASH_CHECK(pages_for(limits_.context) <= facts_.pages, "{} pages, context {}", facts_.pages, limits_.context);
  update_gauges();
}

bool Engine::tick(TimePoint now) {
  receive();
  expire(now);
  stop_following();
  admit();
  const Choice choice = schedule();
  if (choice.empty()) {
    step_ended_.reset();
  } else {
    const model::StepPlan plan = step_plan(choice);
    const TimePoint begun = clock_.now();
    const Result<model::StepResult> result = model_.step(plan);
    count_step(choice, begun);
    if (result) {
      apply(choice, *result);
    } else {
      fail_step(choice, result.error());
    }
  }
  update_gauges();
  // Whoever waits when all others have just been suspended or failed is admitted next.
  return !choice.empty() || !queue_.empty();
}

TimePoint Engine::next_wake() const {
  TimePoint wake = TimePoint::max();
  for (const auto& request : queue_) wake = std::min(wake, request->submit.deadline);
  for (const auto& request : lanes_) {
    if (request) wake = std::min(wake, request->submit.deadline);
  }
  return wake;
}

// The views of the running lanes, in lane order, as the policy sees them.
Choice Engine::schedule() {
  make_room_to_decode();
  std::vector<PrefillView> prefill;
  std::vector<DecodeView> decode;
  const Request* marking = marked_request();
  for (const auto& request : lanes_) {
    if (!request || request->follows) continue;
    if (request->phase == Phase::prefilling) {
      const int stop = request->prefill_stop(request.get() == marking ? 1 : 0);
      prefill.push_back({request->lane, request->arrival, stop - request->committed,
                         request->prefill_end() - request->committed});
    } else {
      decode.push_back({request->lane, max_width(*request), request->sampled() && request->submit.sampling.reproducible,
                        &request->acceptance});
    }
  }
  // Who is followed is as urgent as the shortest that waits for it, lest a short prompt wait behind a long one's rest.
  for (const auto& request : lanes_) {
    if (!request || !request->follows) continue;
    const auto leader = std::ranges::find(prefill, request->follows->lane, &PrefillView::lane);
    if (leader == prefill.end()) continue;
    leader->rows_to_end = std::min(leader->rows_to_end, request->prefill_end() - lanes_[leader->lane]->committed);
  }
  return scheduler_.next(prefill, decode);
}

// Whose slice may run past the next snapshot that is due, its state there kept aside by the model: the oldest prompt's.
// The others stop at theirs.
const Request* Engine::marked_request() const {
  const Request* oldest = nullptr;
  for (const auto& request : lanes_) {
    if (!request || request->phase != Phase::prefilling || request->follows || request->saves.empty()) continue;
    if (oldest == nullptr || request->arrival < oldest->arrival) oldest = request.get();
  }
  return oldest;
}

model::StepPlan Engine::step_plan(const Choice& choice) const {
  model::StepPlan plan;
  for (const Grant& grant : choice.prefill) {
    const Request& request = *lanes_[grant.lane];
    const int end = request.committed + grant.rows;
    plan.prefill.push_back({.lane = grant.lane,
                            .position = request.committed,
                            .tokens = std::span(request.tokens).subspan(request.committed, grant.rows),
                            .pages = request.pages,
                            .choose = end == request.prefill_end() && request.choose_at_end(),
                            .mark = request.passes_save(grant.rows) ? request.saves.front().position - request.committed : 0});
  }
  for (const Grant& grant : choice.decode) {
    const Request& request = *lanes_[grant.lane];
    plan.decode.push_back({.lane = grant.lane,
                           .position = request.committed,
                           .anchor = request.tokens.back(),
                           .pages = request.pages,
                           .budget = request.budget(),
                           .width = grant.rows});
  }
  return plan;
}

// Clients first: what is filed after that is for the next turn, and nobody waits for it.
void Engine::apply(const Choice& choice, const model::StepResult& result) {
  SPLASH_CHECK(result.prefill.size() == choice.prefill.size() && result.decode.size() == choice.decode.size());
  for (std::size_t i = 0; i < choice.prefill.size(); ++i) {
    const model::SliceResult& slice = result.prefill[i];
    SPLASH_CHECK(slice.lane == choice.prefill[i].lane && slice.committed == choice.prefill[i].rows);
    apply_prefill(*lanes_[slice.lane], slice);
  }
  for (std::size_t i = 0; i < choice.decode.size(); ++i) {
    const model::SliceResult& slice = result.decode[i];
    SPLASH_CHECK(slice.lane == choice.decode[i].lane && slice.drafted < choice.decode[i].rows);
    apply_decode(*lanes_[slice.lane], slice);
  }
  for (const Grant& grant : choice.prefill) save_mark(*lanes_[grant.lane]);  // a save would take its buffer
  for (const Grant& grant : choice.prefill) save_due(*lanes_[grant.lane]);
  leave_finished();
  sweep();
}

void Engine::apply_prefill(Request& request, const model::SliceResult& slice) {
  request.committed += slice.committed;
  if (request.committed < request.prefill_end()) return;
  const bool choose = request.choose_at_end();
  SPLASH_CHECK(slice.chosen.size() == (choose ? 1 : 0));
  request.phase = Phase::decoding;
  if (choose) take_tokens(request, slice.chosen);
}

void Engine::apply_decode(Request& request, const model::SliceResult& slice) {
  const std::vector<Token>& chosen = slice.chosen;
  SPLASH_CHECK(!chosen.empty() && static_cast<int>(chosen.size()) == slice.committed);
  SPLASH_CHECK(0 <= slice.accepted && slice.accepted <= slice.drafted);
  const bool cut = static_cast<int>(chosen.size()) == request.budget() ||
                   std::ranges::count(request.submit.stop_tokens, chosen.back()) > 0;
  request.committed += slice.committed;
  ++request.usage.decode_steps;
  request.usage.drafted_tokens += slice.drafted;
  request.usage.accepted_tokens += slice.accepted;
  request.acceptance.record(slice.drafted, slice.accepted, cut);
  scheduler_.complete_slice(slice.drafted, slice.accepted, cut);
  counters_.decode_steps.add();
  counters_.drafted_tokens.add(slice.drafted);
  counters_.accepted_tokens.add(slice.accepted);
  for (int i = 0; i < slice.drafted; ++i) counters_.drafted_by_position[i].add();
  for (int i = 0; i < slice.accepted; ++i) counters_.accepted_by_position[i].add();
  take_tokens(request, chosen);
}

// Newly chosen tokens: into the history, past the grammar, to the sink; the last may end the request.
void Engine::take_tokens(Request& request, const std::vector<Token>& chosen) {
  SPLASH_CHECK(static_cast<int>(chosen.size()) <= request.budget());
  const auto is_stop = [&](Token token) { return std::ranges::count(request.submit.stop_tokens, token) > 0; };
  const bool stopped = is_stop(chosen.back());
  link::Tokens event;
  for (const Token token : chosen) {
    SPLASH_CHECK(token >= 0 && token < facts_.vocab_size, "the model chose token {}", token);
    request.tokens.push_back(token);
    if (is_stop(token)) break;
    event.tokens.push_back(token);
    if (request.submit.constraint && !request.submit.constraint->accept(token)) {
      fail(request, {ErrorKind::internal, "the reply left its grammar: please report this with the model's name", ""});
      return;
    }
  }
  SPLASH_CHECK(request.committed + 1 == static_cast<int>(request.tokens.size()), "tokens behind the first stop token");
  if (request.usage.reply_tokens == 0) request.first_chosen = clock_.now();
  request.usage.reply_tokens = request.chosen();
  request.usage.decode_ms = std::chrono::duration<double, std::milli>(clock_.now() - request.first_chosen).count();
  counters_.reply_tokens.add(chosen.size());
  if (!event.tokens.empty()) request.submit.sink(std::move(event));
  if (stopped) {
    finish(request, link::FinishReason::stop);
  } else if (request.budget() == 0) {
    finish(request, link::FinishReason::length);
  }
}

// The model says that its lanes are undefined now: nothing of them may be kept, and the others go on.
void Engine::fail_step(const Choice& choice, const Error& error) {
  counters_.failed_steps.add();
  for (const Grant& grant : choice.prefill) fail(*lanes_[grant.lane], error);
  for (const Grant& grant : choice.decode) fail(*lanes_[grant.lane], error);
  sweep();
  if (error.kind == ErrorKind::lost) give_up(error);
}

// The device is gone: whoever runs, waits or comes is told so, at once.
void Engine::give_up(const Error& error) {
  if (lost_) return;
  lost_ = error;
  fail_all(error);
  if (config_.on_lost) config_.on_lost(error);
}

void Engine::count_step(const Choice& choice, TimePoint begun) {
  if (step_ended_) (turnover_ ? counters_.turnovers : counters_.between_steps).add(begun - *step_ended_);
  turnover_ = false;
  step_ended_ = clock_.now();
  const double seconds = std::chrono::duration<double>(*step_ended_ - begun).count();
  scheduler_.complete(choice, seconds);
  counters_.steps.add();
  counters_.prefill_rows.add(choice.prefill_rows());
  counters_.decode_rows.add(choice.decode_rows());
  counters_.step_ms.record_ms(seconds * 1000.0);
  if (choice.prefill.empty()) counters_.decode_step_ms.record_ms(seconds * 1000.0);
}

int Engine::running() const {
  return static_cast<int>(std::ranges::count_if(lanes_, [](const auto& request) { return request != nullptr; }));
}

void Engine::update_gauges() {
  counters_.queued.set(queue_.size());
  counters_.running.set(running());
  counters_.pages_total.set(pages_.total());
  counters_.pages_lanes.set(pages_.held_by_lanes());
  counters_.pages_cached.set(pages_.cached_only());
  counters_.snapshots_total.set(prefixes_.snapshots_total());
  counters_.snapshots_used.set(prefixes_.snapshots_used());
  counters_.snapshots_evicted.set(prefixes_.evicted());
}

}  // namespace splash::engine
