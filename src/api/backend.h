// All that the dialects need of the engine and the model, as values and functions, so that tests run them without
// either.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "chat/conversation.h"
#include "chat/prompt.h"
#include "link/command.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace splash::api {

// What the engine counts, at one moment (/metrics).
struct EngineStatus {
  std::uint64_t steps = 0, failed_steps = 0, decode_steps = 0, decode_rows = 0, prefill_rows = 0;
  std::uint64_t prompt_tokens = 0, cached_tokens = 0, reply_tokens = 0;
  std::uint64_t drafted_tokens = 0, accepted_tokens = 0;
  std::vector<std::uint64_t> drafted_by_position, accepted_by_position;
  std::uint64_t submitted = 0, stopped = 0, cut = 0, failed = 0, refused = 0, cancelled = 0, timed_out = 0;
  std::uint64_t suspended = 0, snapshots_saved = 0, snapshots_restored = 0, snapshots_evicted = 0;
  // Gauges.
  std::uint64_t queued = 0, running = 0;
  std::uint64_t pages_total = 0, pages_lanes = 0, pages_cached = 0, snapshots_total = 0, snapshots_used = 0;
  // Step times: counts per bucket (the last is above the last bound), not cumulative.
  std::vector<double> step_bounds_ms;
  std::vector<std::uint64_t> step_counts, decode_step_counts;
  double step_sum_ms = 0, decode_step_sum_ms = 0;
  // As engine/counters.h has them.
  struct Spent {
    std::uint64_t count = 0, us = 0;
    double mean_us() const { return count == 0 ? 0.0 : static_cast<double>(us) / static_cast<double>(count); }
  };
  Spent between_steps, turnovers, admission, filing;
};

// Where a request states nothing, this holds: generation_config.json over the family's usual values.
struct SamplingDefaults {
  float temperature = 1.0f;
  int top_k = 20;
  float top_p = 0.95f;
  float min_p = 0.0f;
};

struct Backend {
  std::string model;                 // the name that answers report
  std::vector<std::string> aliases;  // other names that requests may use
  std::string fingerprint;           // of model and build: what may change the tokens of a seed
  std::int64_t created = 0;          // when the server started, seconds since 1970
  int context = 0;                   // prompt and reply together
  int vocabulary = 0;                // width of the model's masks
  int lanes = 0;
  bool has_draft = false;
  SamplingDefaults sampling;
  std::optional<std::string> reasoning_effort;  // where a request states none
  std::vector<Token> stop_tokens;
  std::shared_ptr<const text::Tokenizer> tokenizer;

  std::function<Result<chat::Prompt>(const chat::Conversation&)> build_prompt;  // any thread
  std::function<Result<std::shared_ptr<text::GrammarFactory>>()> grammars;      // any thread; may wait for the trie
  std::function<void(link::Command)> post;                                      // any thread
  std::function<EngineStatus()> status;                                         // any thread
};

}  // namespace splash::api
