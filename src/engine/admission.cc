// Engine: who gets a lane and pages, and who gives them back.
#include <algorithm>

#include "base/check.h"
#include "engine/engine.h"

namespace splash::engine {

// First come, first served: the head of the queue waits for pages rather than let a later, smaller request pass, so a
// long prompt cannot be starved by short ones.
void Engine::admit() {
  while (!queue_.empty()) {
    const auto seat = std::ranges::find_if(lanes_, [](const auto& request) { return request == nullptr; });
    if (seat == lanes_.end()) return;
    Request& request = *queue_.front();
    const int lane = static_cast<int>(seat - lanes_.begin());
    if (refused_ == chances(request)) return;
    const TimePoint begun = clock_.now();
    if (!try_admit(request, lane, true)) {
      if (running() > 0) {
        refused_ = chances(request);
        return;
      }
      // Alone and refused: the page behind its own cached tail is the one too many. Cold it fits by construction.
      if (!try_admit(request, lane, false)) {
        fail_for_memory(request);
        sweep();
        continue;
      }
    }
    refused_.reset();
    counters_.admission.add(clock_.now() - begun);
    turnover_ = true;
    *seat = std::move(queue_.front());
    queue_.pop_front();
  }
}

// All that decides whether the head of the queue gets in beside others: as long as it stays the same, the answer does.
Engine::Chances Engine::chances(const Request& request) const {
  return {request.arrival, running(), pages_.available(), prefixes_.version()};
}

bool Engine::try_admit(Request& request, int lane, bool use_cache) {
  const int end = request.prefill_end();
  const cache::Match match = use_cache ? prefixes_.match(request.tokens, request.last_resume()) : cache::Match{};
  for (const model::PageId page : match.pages) pages_.lane_hold(page);
  if (match.tail >= 0) pages_.lane_hold(match.tail);
  // Opened before the snapshot is restored and room is made: what the device refuses, the cache may have to give.
  if (!enough_pages(request, match) ||
      (!open_pages(pages_for(end) - static_cast<int>(match.pages.size())) && !enough_pages(request, match))) {
    for (const model::PageId page : match.pages) pages_.lane_release(page);
    if (match.tail >= 0) pages_.lane_release(match.tail);
    return false;
  }

  request.lane = lane;
  request.phase = Phase::prefilling;
  enter(request, match);
  request.pages = match.pages;
  SPLASH_CHECK(grow(request, end));
  if (match.tail >= 0) {
    model_.copy_page(match.tail, request.pages[match.pages.size()]);
    pages_.lane_release(match.tail);
  }
  request.saves = plan_saves(request, match);
  if (use_cache) follow(request);
  if (!request.follows) announce(request);
  return true;
}

// The lane, from the beginning or from the match's snapshot. Before room is made for pages: the snapshot itself may have to go
// for it.
void Engine::enter(Request& request, const cache::Match& match) {
  model_.start_lane(request.lane, {.sampling = request.submit.sampling,
                                   .stop_tokens = request.submit.stop_tokens,
                                   .constraint = request.submit.constraint,
                                   .use_draft = config_.use_draft});
  if (match.position > 0) {
    prefixes_.touch(match.snapshot);
    model_.restore(request.lane, match.snapshot);
    counters_.snapshots_restored.add();
  }
  request.committed = request.resumed_at = match.position;
  request.place = match.place;
}

// From here on the request's rows run.
void Engine::announce(Request& request) {
  if (request.committed == request.prefill_end()) request.phase = Phase::decoding;
  if (request.started) return;
  request.started = true;
  request.usage.cached_tokens = request.committed;
  counters_.prompt_tokens.add(request.prompt_tokens);
  counters_.cached_tokens.add(request.committed);
  request.submit.sink(link::Started{request.prompt_tokens, request.committed});
}

// Where two prompts part, in whole blocks, or at a snapshot that the older one takes anyway not far before that: as far as
// `request` may go on from `leader`. 0 = nowhere that the leader has yet to come to by itself.
int Engine::meeting_point(const Request& leader, const Request& request) const {
  const auto theirs = std::span(leader.tokens).first(leader.prefill_end());
  const auto ours = std::span(request.tokens).first(request.last_resume());
  const auto shared = static_cast<int>(std::ranges::mismatch(theirs, ours).in1 - theirs.begin());
  const int behind = leader.follows ? leader.follows->position : leader.committed;
  int planned = 0;
  for (const Save& save : leader.saves) {
    if (save.position > behind && save.position <= shared) planned = save.position;
  }
  const int parting = shared / link::page_tokens * link::page_tokens;
  return parting > behind && parting - planned >= config_.junction_tokens ? parting : planned;
}

// Requests with one long prefix that come together (an agent and its helpers, one prompt asked for several answers) would each
// run it. The younger waits for the older to pass the end of what they share, and goes on from the snapshot there.
void Engine::follow(Request& request) {
  if (prefixes_.snapshots_total() < 2) return;  // the leader's next one would push it out
  Request* leader = nullptr;
  int position = request.committed + config_.junction_tokens - 1;  // what is not worth waiting for
  for (const auto& other : lanes_) {
    if (!other || other->phase != Phase::prefilling || other->arrival >= request.arrival) continue;
    const int here = meeting_point(*other, request);
    if (here > position || (here == position && leader != nullptr && other->arrival < leader->arrival)) {
      leader = other.get();
      position = here;
    }
  }
  if (leader == nullptr) return;
  request.follows = Lead{leader->lane, leader->arrival, position};
  const auto place = std::ranges::lower_bound(leader->saves, position, {}, &Save::position);
  if (place == leader->saves.end() || place->position != position) {
    leader->saves.insert(place, {position, cache::Kind::conversation});
  }
}

bool Engine::still_follows(const Request& request) const {
  const auto& leader = lanes_[request.follows->lane];
  return leader && leader->arrival == request.follows->arrival && leader->phase == Phase::prefilling &&
         leader->committed < request.follows->position;
}

// Whose leader has come to where they part, or is gone however that may be: they go on from the best snapshot there is now, on
// its pages and, behind them, their own.
void Engine::stop_following() {
  for (const auto& request : lanes_) {
    if (!request || !request->follows || still_follows(*request)) continue;
    request->follows.reset();
    turnover_ = true;
    const cache::Match match = prefixes_.match(request->tokens, request->last_resume());
    if (match.position > request->committed) {
      enter(*request, match);
      for (std::size_t i = 0; i < match.pages.size(); ++i) {
        pages_.lane_hold(match.pages[i]);
        pages_.lane_release(request->pages[i]);
        request->pages[i] = match.pages[i];
      }
      if (match.tail >= 0) model_.copy_page(match.tail, request->pages[match.pages.size()]);
      std::erase_if(request->saves, [&](const Save& save) { return save.position <= match.position; });
    }
    announce(*request);
  }
}

// Called with the match held by the lane. Beyond the prompt some of the reply must fit too, lest the request be
// suspended as soon as it has begun; a request that has the pool to itself needs no such margin.
bool Engine::enough_pages(const Request& request, const cache::Match& match) const {
  const int end = request.prefill_end();
  const int margin = running() > 0 ? std::min(config_.headroom_tokens, request.budget()) : 0;
  return pages_.available() >= pages_for(end + margin) - match.cached_pages();
}

// Where the prompt's state is worth keeping: before the generation prompt (the next turn may render the reply anew),
// where it parts from a cached prompt (a third one may part there too), and now and then on a long way.
std::vector<Save> Engine::plan_saves(const Request& request, const cache::Match& match) const {
  std::vector<Save> saves;
  if (prefixes_.snapshots_total() == 0) return saves;
  const int end = request.prefill_end();
  const int boundary = request.submit.reply_boundary;
  const auto add = [&](int position, cache::Kind kind) {
    const bool known = std::ranges::count(saves, position, &Save::position) > 0;
    if (position > request.committed && position <= end && !known) saves.push_back({position, kind});
  };
  add(boundary, cache::Kind::conversation);
  if (match.chain - match.position >= config_.junction_tokens) add(match.chain, cache::Kind::conversation);
  const int last = boundary > 0 ? boundary : end;
  for (int position = request.committed / config_.checkpoint_tokens * config_.checkpoint_tokens;
       position + config_.checkpoint_tokens / 2 < last; position += config_.checkpoint_tokens) {
    add(position, cache::Kind::checkpoint);
  }
  std::ranges::sort(saves, {}, &Save::position);
  return saves;
}

// Pages for the rows that the decoding lanes may run next, the oldest request first. When even the cache has none left,
// the youngest running lane makes room; the oldest therefore always goes on.
void Engine::make_room_to_decode() {
  std::vector<Request*> order;
  for (const auto& request : lanes_) {
    if (request) order.push_back(request.get());
  }
  std::ranges::sort(order, {}, &Request::arrival);
  for (std::size_t i = 0; i < order.size(); ++i) {
    Request& request = *order[i];
    if (request.phase != Phase::decoding) continue;
    while (!grow(request, request.committed + max_width(request))) {
      if (order.size() == 1) {
        fail_for_memory(request);
        break;
      }
      Request& youngest = *order.back();
      order.pop_back();
      suspend(youngest);
      if (i == order.size()) break;  // it was this one
    }
  }
  sweep();
}

// Gives the request pages for that many positions, at the cache's expense if need be. False changes nothing.
bool Engine::grow(Request& request, int positions) {
  const int missing = pages_for(positions) - static_cast<int>(request.pages.size());
  if (missing <= 0) return true;
  if (!open_pages(missing) && pages_.available() < missing) return false;
  if (!prefixes_.make_room(missing)) return false;
  for (int i = 0; i < missing; ++i) request.pages.push_back(pages_.take());
  return true;
}

// Memory for the next pages of the plan, as many as are needed beyond the free ones. What the device refuses (someone
// else uses it too) is struck from the pool for good: the engine goes on with the pages that it has, as it would have
// with a smaller plan. False then.
bool Engine::open_pages(int pages) {
  const int more = pages_.to_open(pages);
  if (more == 0) return true;
  const Status status = model_.back_pages(pages_.opened() + more);
  if (status) {
    pages_.open(more);
    return true;
  }
  int most = 0;  // that it does have
  for (int beyond = more; beyond - most > 1;) {
    const int half = (most + beyond) / 2;
    (model_.back_pages(pages_.opened() + half) ? most : beyond) = half;
  }
  pages_.open(most);
  full_ = Error{ErrorKind::overloaded,
                fmt::format("the device's memory is full: {} of the planned {} tokens of context could be taken ({})",
                            pages_.opened() * link::page_tokens, pages_.total() * link::page_tokens,
                            status.error().message),
                ""};
  pages_.give_up_unopened();
  return false;
}

// A request that does not fit although it has the pool to itself. With the pool of the plan that cannot be.
void Engine::fail_for_memory(Request& request) {
  SPLASH_CHECK(full_.has_value(), "a request alone does not fit {} pages", pages_.total());
  Error error = *full_;
  error.message += ": shorten the prompt or the reply, or free memory on the device and start again";
  fail(request, error);
}

// Back to the queue, in its old place. What it has done stays in the cache as long as the cache can afford it.
void Engine::suspend(Request& request) {
  keep_what_is_done(request);
  counters_.suspended.add();
  turnover_ = true;
  auto& seat = lanes_[request.lane];
  leave_lane(request);
  request.phase = Phase::queued;
  const auto place =
      std::ranges::upper_bound(queue_, request.arrival, {}, [](const auto& other) { return other->arrival; });
  queue_.insert(place, std::move(seat));
}

// A sampled lane may verify one row more than its budget: the last token of the reply then rests on the same random
// numbers as if the budget were larger, and max_tokens only ever shortens a reply.
int Engine::max_width(const Request& request) const {
  int width = facts_.has_draft && config_.use_draft ? facts_.block_rows : 1;
  if (config_.fixed_width > 0) width = std::min(width, config_.fixed_width);
  return std::min(width, request.budget() + (request.sampled() ? 1 : 0));
}

// Files the lane's state at its committed length.
void Engine::save(Request& request, cache::Kind kind) {
  if (request.committed == 0) return;
  file(request, request.committed, kind, [&](model::SnapshotId slot) { model_.save(request.lane, slot); });
}

// After a step that passed a due snapshot: files the state that the model kept aside there.
void Engine::save_mark(Request& request) {
  if (request.saves.empty() || request.saves.front().position >= request.committed) return;
  const Save passed = request.saves.front();
  request.saves.erase(request.saves.begin());
  file(request, passed.position, passed.kind, [&](model::SnapshotId slot) { model_.save_mark(slot); });
}

// After a step that ended at a due snapshot.
void Engine::save_due(Request& request) {
  if (request.saves.empty() || request.saves.front().position > request.committed) return;
  SPLASH_CHECK(request.saves.front().position == request.committed, "prefill ran past a snapshot");
  save(request, request.saves.front().kind);
  request.saves.erase(request.saves.begin());
}

template <class Keep>
void Engine::file(Request& request, int position, cache::Kind kind, Keep&& keep) {
  const TimePoint begun = clock_.now();
  const auto prefix = std::span(request.tokens).first(position);
  if (const auto slot = prefixes_.publish(prefix, request.pages, kind, request.place)) {
    keep(*slot);
    counters_.snapshots_saved.add();
  }
  counters_.filing.add(clock_.now() - begun);
  turnover_ = true;
}

// A lane that goes before its time: keep its state if it got somewhere. A client that cuts a reply (a stop string, the
// user's stop button) usually comes back with the same text.
void Engine::keep_what_is_done(Request& request) {
  constexpr int worth_keeping = 256;  // prompt rows; fewer are run again sooner than a better snapshot is lost
  const int done = request.committed - request.resumed_at;
  if (request.phase == Phase::decoding || done >= worth_keeping) {
    save(request, cache::Kind::conversation);
  }
}

void Engine::leave_lane(Request& request) {
  for (const model::PageId page : request.pages) pages_.lane_release(page);
  request.pages.clear();
  request.place = {};
  request.saves.clear();
  request.lane = -1;
  request.committed = 0;
}

void Engine::clear_cache() {
  prefixes_.clear();
  update_gauges();
}

void Engine::audit() const {
  prefixes_.audit();
  std::vector<int> holds(pages_.total());
  std::size_t live = queue_.size();
  for (int lane = 0; lane < facts_.lanes; ++lane) {
    if (!lanes_[lane]) continue;
    const Request& request = *lanes_[lane];
    ++live;
    SPLASH_CHECK(request.running() && request.lane == lane && live_.contains(request.submit.id));
    SPLASH_CHECK(static_cast<int>(request.pages.size()) >= pages_for(request.committed));
    SPLASH_CHECK(static_cast<int>(request.pages.size()) <= pages_for(limits_.context));
    SPLASH_CHECK(request.committed <= request.prefill_end() || request.phase == Phase::decoding);
    if (request.phase == Phase::decoding) {
      SPLASH_CHECK(request.committed + 1 == static_cast<int>(request.tokens.size()) && request.budget() > 0);
    }
    for (const model::PageId page : request.pages) ++holds[page];
  }
  SPLASH_CHECK(live == live_.size());
  SPLASH_CHECK(std::ranges::is_sorted(queue_, {}, [](const auto& request) { return request->arrival; }));
  for (const auto& request : queue_) SPLASH_CHECK(request->phase == Phase::queued && request->pages.empty());
  for (model::PageId page = 0; page < pages_.total(); ++page) {
    SPLASH_CHECK(holds[page] == pages_.lane_holds(page), "page {}", page);
  }
}

}  // namespace splash::engine
