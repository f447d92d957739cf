// The engine: takes commands, runs steps, tells each request's sink what happened. One thread calls tick() and owns all
// mutable state; post() and counters() are for every thread.
//
// A request's life: queued -> prefilling -> decoding -> gone (exactly one Finished or Failed). Pages of the whole prompt
// are taken at admission, pages of the reply as it grows. When none is left, even after the cache gave up its own, the
// youngest lane is suspended: it goes back to the head of the queue and later replays its own tokens. The oldest request
// is never suspended for another and one request always fits the pool alone, so every request ends.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "cache/page_pool.h"
#include "cache/plan.h"
#include "cache/prefix_cache.h"
#include "engine/counters.h"
#include "engine/inbox.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/width.h"
#include "link/command.h"
#include "model/model.h"

namespace splash::engine {

struct Config {
  bool use_draft = true;          // false: plain one-row steps
  int fixed_width = 0;            // verify rows of every step; 0 = chosen by measured cost and acceptance
  int checkpoint_tokens = 4096;   // a snapshot this often inside a long prompt
  int junction_tokens = 256;      // a prompt that parts from a cached one this far past its snapshot gets one there
  int headroom_tokens = 256;      // reply tokens whose pages must be free when a request is admitted
  int max_queued = link::max_queued_requests;
  Pacing pacing;                  // how prefill shares steps with decode
};

// What the door refuses by itself; the text half may check the same numbers before it submits.
struct Limits {
  int vocab_size = 0;
  int context = 0;  // prompt and reply together
  int max_queued = 0;
  int max_prompt_tokens() const { return context - 1; }
};

class Engine {
 public:
  // `model` was opened for `plan`; both and `clock` (used only to measure steps) outlive the engine.
  Engine(model::Model& model, const cache::MemoryPlan& plan, const Config& config, const Clock& clock);

  // Measures the step by width on an idle engine, before the first request. Without it sampled lanes run full blocks.
  Status warm_up();

  // Any thread. Refusals reach the sink as Failed at the next tick, like everything else. Errors name the field:
  // "prompt", "max_tokens", "reply_boundary", "stop", "id", "temperature", ...
  void post(link::Command command) { inbox_.post(std::move(command)); }

  // receive -> schedule -> forward -> apply. False when there was nothing to run: sleep until next_wake() or a post.
  bool tick(TimePoint now);

  // The earliest deadline of a live request.
  TimePoint next_wake() const;

  // Waits for a post (or interrupt()) until `until`; for the thread that calls tick().
  void wait(TimePoint until) { inbox_.wait(until); }
  void interrupt() { inbox_.interrupt(); }

  // From now on submits are refused as overloaded; running and queued requests go on.
  void close_door(std::string reason);
  // Fails every live request.
  void fail_all(const Error& error);
  // No request queued or running and no command waiting.
  bool idle() const;

  const Counters& counters() const { return counters_; }
  const Limits& limits() const { return limits_; }
  const cache::MemoryPlan& plan() const { return plan_; }

  // Checks every invariant that ties lanes, pages and snapshots together; aborts on a breach. For tests.
  void audit() const;
  const cache::PagePool& pages() const { return pages_; }
  const cache::PrefixCache& prefixes() const { return prefixes_; }
  void clear_cache();

 private:
  // receive
  void receive();
  Status check(const link::Submit& submit) const;
  void submit(link::Submit submit);
  void cancel(link::RequestId id);
  void expire(TimePoint now);
  // admission
  void admit();
  bool try_admit(Request& request, int lane, bool use_cache);
  void plan_saves(Request& request, const cache::Match& match) const;
  // schedule
  Choice schedule();
  void make_room_to_decode();
  bool grow(Request& request, int positions);
  void suspend(Request& request);
  model::StepPlan step_plan(const Choice& choice) const;
  // apply
  void apply(const Choice& choice, const model::StepResult& result);
  void apply_prefill(Request& request, const model::SliceResult& slice);
  void apply_decode(Request& request, const model::SliceResult& slice);
  void take_tokens(Request& request, const model::SliceResult& slice);
  void fail_step(const Choice& choice, const Error& error);
  // leave
  void save(Request& request, cache::Kind kind);
  void leave_lane(Request& request);
  void finish(Request& request, link::FinishReason reason);
  void fail(Request& request, const Error& error);
  void remove_done();
  int max_width(const Request& request) const;
  void update_gauges();

  model::Model& model_;
  const model::Facts facts_;
  const cache::MemoryPlan plan_;
  const Config config_;
  const Clock& clock_;
  const Limits limits_;
  Inbox inbox_;
  cache::PagePool pages_;
  cache::PrefixCache prefixes_;
  Scheduler scheduler_;
  Counters counters_;
  std::vector<std::unique_ptr<Request>> lanes_;  // by lane; null = free seat
  std::deque<std::unique_ptr<Request>> queue_;   // by arrival
  std::unordered_set<link::RequestId> live_;
  std::uint64_t arrivals_ = 0;
  std::optional<std::string> closed_;  // why the door is closed
};

}  // namespace splash::engine
