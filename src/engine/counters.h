// What the engine counts. Written by the engine's thread only, read by any thread without a lock (/metrics, /health):
// each number is right by itself, two numbers read together may be one step apart.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "link/limits.h"

namespace splash::engine {

// One writer: a plain load and store, no locked instruction on the hot path.
class Counter {
 public:
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }
  operator std::uint64_t() const { return value(); }
  void add(std::uint64_t by = 1) { set(value() + by); }
  void set(std::uint64_t to) { value_.store(to, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// Upper bounds of the step time buckets in milliseconds; the last bucket is everything above.
inline constexpr std::array<double, 13> step_bounds_ms = {0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000};

// How often something was done, and how long that took altogether.
struct Spent {
  Counter count;
  Counter ns;

  std::uint64_t us() const { return ns / 1000; }
  void add(std::chrono::nanoseconds took) {
    count.add();
    ns.add(static_cast<std::uint64_t>(took.count()));
  }
};

struct Histogram {
  std::array<Counter, step_bounds_ms.size() + 1> buckets;  // not cumulative
  Counter sum_us;
  Counter count;

  void record_ms(double ms) {
    std::size_t bucket = 0;
    while (bucket < step_bounds_ms.size() && ms > step_bounds_ms[bucket]) ++bucket;
    buckets[bucket].add();
    sum_us.add(static_cast<std::uint64_t>(ms * 1000.0));
    count.add();
  }
};

struct Counters {
  // Totals.
  Counter steps;  // model steps of any kind
  Counter failed_steps;
  Counter decode_steps;   // draft-verify-accept-commit of one lane
  Counter decode_rows;    // verify rows run
  Counter prefill_rows;   // prompt rows run (a resumed request's replayed rows included)
  Counter prompt_tokens;  // of started requests
  Counter cached_tokens;  // prompt tokens taken from the prefix cache
  Counter reply_tokens;   // chosen
  Counter drafted_tokens;
  Counter accepted_tokens;
  // Proposals at block position i (the first is 0): verified up to there, and kept.
  std::array<Counter, link::max_block> drafted_by_position;
  std::array<Counter, link::max_block> accepted_by_position;
  Counter submitted;
  Counter finished_stop;
  Counter finished_length;
  Counter failed;   // every Failed event except the three below
  Counter refused;  // at the door: invalid or overloaded
  Counter cancelled;
  Counter timed_out;
  Counter suspended;  // lanes given up for want of pages, resumed later
  Counter snapshots_saved;
  Counter snapshots_restored;
  Counter snapshots_evicted;
  // Our own part of the time: from a step's results to the beginning of the step that follows at once. What stands between
  // two tokens of the lanes that run, and the same where a request came or went or a state was filed in between.
  Spent between_steps;
  Spent turnovers;
  // Parts of the latter, and of what happens when no step follows or none was before.
  Spent admission;  // of a request to a lane: the cached prefix found, its state restored, pages taken
  Spent filing;     // of a state in the prefix cache
  Histogram step_ms;         // every step
  Histogram decode_step_ms;  // steps without prefill rows
  // Gauges.
  Counter queued;
  Counter running;
  Counter pages_total;
  Counter pages_lanes;   // held by lanes
  Counter pages_cached;  // held by the prefix cache alone
  Counter snapshots_total;
  Counter snapshots_used;
};

}  // namespace splash::engine
