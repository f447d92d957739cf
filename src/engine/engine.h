// The engine: takes commands, runs steps, tells each request's sink what happened. One thread calls tick() and owns all
// mutable state; post() and counters() are for every thread.
//
// A request's life: queued -> prefilling -> decoding -> gone (exactly one Finished or Failed). Pages of the whole
// prompt are taken at admission, pages of the reply as it grows. When none is left, even after the cache gave up its
// own, the youngest lane is suspended: it goes back to the head of the queue and later replays its own tokens. The
// oldest request is never suspended for another and one request always fits the pool alone, so every request ends.
// A prefilling request may follow an older one that reads the same prefix; it waits for nobody else, so nobody in a circle.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "cache/page_pool.h"
#include "cache/plan.h"
#include "cache/prefix_cache.h"
#include "engine/counters.h"
#include "engine/door.h"
#include "engine/inbox.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/width.h"
#include "link/command.h"
#include "model/model.h"

namespace splash::engine {

struct Config {
  bool use_draft = true;         // false: plain one-row steps
  int fixed_width = 0;           // verify rows of every step; 0 = chosen by measured cost and acceptance
  int checkpoint_tokens = 4096;  // a snapshot this often inside a long prompt
  int junction_tokens = 256;     // a prompt that parts from a cached one this far past its snapshot gets one there
  int headroom_tokens = 256;     // reply tokens whose pages must be free when a request is admitted
  int max_queued = link::max_queued_requests;
  Pacing pacing;  // how prefill shares steps with decode
  std::function<void(const Error&)> on_lost;  // on the engine's thread, once, after every request has been told
};

// Pages that hold so many positions.
int pages_for(int positions);

class Engine {
 public:
  // `model` was opened for `plan`; both and `clock` (used only to measure) outlive the engine.
  Engine(model::Model& model, const cache::MemoryPlan& plan, const Config& config, const Clock& clock);

  // Measures the step by width on an idle engine, before the first request. Without it sampled lanes run full blocks.
  Status warm_up();

  // Any thread. Refusals reach the sink as Failed at the next tick, like everything else; their parameter is the field
  // of link::Submit at fault. Once the engine's thread has ended, a submit fails at once on the caller's thread.
  void post(link::Command command);

  // receive -> schedule -> forward -> apply. False when there was nothing to run: sleep until next_wake() or a post.
  bool tick(TimePoint now);

  // The earliest deadline of a live request.
  TimePoint next_wake() const;

  // Waits for a post (or interrupt()) until `until`; for the thread that calls tick().
  void wait(TimePoint until) { inbox_.wait(until); }
  void interrupt() { inbox_.interrupt(); }

  // The engine's thread: from now on submits are refused as overloaded; running and queued requests go on.
  void close_door();
  // The engine's thread: fails every live request.
  void fail_all(const Error& error);
  // The engine's thread: true, for good, when no request is live and no command waits.
  bool retire();

  const Counters& counters() const { return counters_; }
  const Limits& limits() const { return limits_; }
  const cache::MemoryPlan& plan() const { return plan_; }

  // Checks every invariant that ties lanes, pages and snapshots together; aborts on a breach. For tests.
  void audit() const;
  const cache::PagePool& pages() const { return pages_; }
  const cache::PrefixCache& prefixes() const { return prefixes_; }
  void clear_cache();

  int queued() const { return static_cast<int>(queue_.size()); }
  int running() const;

 private:
  // receive
  void receive();
  void submit(link::Submit submit);
  void refuse(link::Submit& submit, Error error);
  void cancel(link::RequestId id);
  void expire(TimePoint now);
  Request* find(link::RequestId id);
  // admission
  struct Chances {
    std::uint64_t arrival = 0;
    int running = 0;
    int available = 0;          // pages
    std::uint64_t version = 0;  // of the prefix cache
    bool operator==(const Chances&) const = default;
  };
  void admit();
  Chances chances(const Request& request) const;
  bool try_admit(Request& request, int lane, bool use_cache);
  bool enough_pages(const Request& request, const cache::Match& match) const;
  std::vector<Save> plan_saves(const Request& request, const cache::Match& match) const;
  void enter(Request& request, const cache::Match& match);
  void announce(Request& request);
  void follow(Request& request);
  int meeting_point(const Request& leader, const Request& request) const;
  bool still_follows(const Request& request) const;
  void stop_following();
  // schedule
  Choice schedule();
  const Request* marked_request() const;
  void make_room_to_decode();
  bool grow(Request& request, int positions);
  bool open_pages(int pages);
  void fail_for_memory(Request& request);
  void suspend(Request& request);
  int max_width(const Request& request) const;
  model::StepPlan step_plan(const Choice& choice) const;
  // apply
  void apply(const Choice& choice, const model::StepResult& result);
  void apply_prefill(Request& request, const model::SliceResult& slice);
  void apply_decode(Request& request, const model::SliceResult& slice);
  void take_tokens(Request& request, const std::vector<Token>& chosen);
  void fail_step(const Choice& choice, const Error& error);
  void give_up(const Error& error);
  void count_step(const Choice& choice, TimePoint begun);
  // leave
  void save(Request& request, cache::Kind kind);
  void save_mark(Request& request);
  void save_due(Request& request);
  template <class Keep>
  void file(Request& request, int position, cache::Kind kind, Keep&& keep);
  void keep_what_is_done(Request& request);
  void leave_lane(Request& request);
  void finish(Request& request, link::FinishReason reason);
  void leave_finished();
  void fail(Request& request, const Error& error);
  void sweep();
  void update_gauges();
  // every live request, the running ones first
  template <class Visit>
  void each_live(Visit&& visit);

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
  std::vector<std::unique_ptr<Request>> lanes_;  // by lane; null = a free seat
  std::deque<std::unique_ptr<Request>> queue_;   // by arrival
  std::unordered_set<link::RequestId> live_;
  std::uint64_t arrivals_ = 0;
  std::optional<TimePoint> step_ended_;  // of the step just before
  bool turnover_ = false;  // since then a request came or went, or a state was filed
  std::optional<Chances> refused_;       // of the queue's head, when it was last refused
  bool closed_ = false;
  std::optional<Error> lost_;  // the device is gone: what every request is told
  std::optional<Error> full_;  // the device refused pages of the plan: why
};

}  // namespace splash::engine
