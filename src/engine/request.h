// A request from submit to its last event.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cache/prefix_cache.h"
#include "engine/width.h"
#include "link/command.h"
#include "model/model.h"

namespace splash::engine {

enum class Phase { queued, prefilling, decoding, done };

// A position inside the prompt where a snapshot is due.
struct Save {
  int position = 0;
  cache::Kind kind = cache::Kind::checkpoint;
};

// What a request waits for whose prompt begins like that of an older one which is being read: to go on from the older one's
// snapshot at `position` instead of running the same rows beside it.
struct Lead {
  int lane = 0;
  std::uint64_t arrival = 0;  // of the older one
  int position = 0;
};

struct Request {
  link::Submit submit;        // its prompt has moved to `tokens`
  std::uint64_t arrival = 0;  // order of submission; the queue's order too
  std::vector<Token> tokens;  // the prompt, then every chosen token
  int prompt_tokens = 0;
  int reply_limit = 0;  // max_tokens, or what the context leaves
  link::Usage usage;
  bool started = false;  // the sink has seen Started

  Phase phase = Phase::queued;
  int lane = -1;
  int committed = 0;                 // tokens[0, committed) have been run in this lane
  int resumed_at = 0;                // committed when it took the lane
  std::vector<model::PageId> pages;  // hold tokens[0, committed) and room for what is to come
  cache::Place place;                // how far `pages` are the prefix cache's own
  std::vector<Save> saves;           // ascending, all > committed and <= prefill_end()
  std::optional<Lead> follows;       // while prefilling: nothing is run until it is there or gone
  Acceptance acceptance;             // of this request alone
  TimePoint first_chosen;

  int chosen() const { return static_cast<int>(tokens.size()) - prompt_tokens; }
  int budget() const { return reply_limit - chosen(); }
  bool running() const { return phase == Phase::prefilling || phase == Phase::decoding; }
  bool sampled() const { return submit.sampling.temperature > 0.0f; }
  // Where prefill ends. A resumed request has its anchor already and runs only what stands before it.
  int prefill_end() const { return chosen() == 0 ? prompt_tokens : static_cast<int>(tokens.size()) - 1; }
  bool choose_at_end() const { return chosen() == 0; }
  // The last position it can go on from. The last prompt token must run, it gives the first token's logits; a resumed request
  // has its next token already.
  int last_resume() const { return choose_at_end() ? prefill_end() - 1 : prefill_end(); }
  bool passes_save(int rows) const { return !saves.empty() && saves.front().position < committed + rows; }
  // How far a slice may go that passes `passed` of the due snapshots.
  int prefill_stop(std::size_t passed) const {
    return saves.size() > passed ? saves[passed].position : prefill_end();
  }
};

}  // namespace splash::engine
