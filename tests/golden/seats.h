// Drives a model the way an engine does, from a seed: requests take lanes, prompts are read in random slices, replies
// are decoded with random budgets and widths, lanes are reused. Small enough to be obviously right.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "model/model.h"

namespace splash::test {

struct SeatRequest {
  std::vector<Token> prompt;
  model::LaneSetup setup;
  int max_tokens = 32;
  // Results.
  std::vector<Token> reply;
  int committed = 0;  // positions run
  int steps = 0, drafted = 0, accepted = 0;
  int lane = -1;
};

struct SeatPlan {
  std::uint64_t seed = 1;
  int chunk = 0;   // rows of a prefill slice; 0: random 1..40
  int budget = 0;  // of each step; 0: random 1..9
  int width = 8;   // 0: random 1..8
  int lanes = 8;   // lanes in use at once
};

class Seats {
 public:
  explicit Seats(model::Model& model) : model_(model), pages_per_lane_(model.facts().pages / model.facts().lanes) {
    SPLASH_CHECK(model.back_pages(model.facts().pages).has_value());
  }

  // Pages of a lane, deliberately not in ascending order.
  std::vector<model::PageId> pages(int lane) const {
    std::vector<model::PageId> pages(pages_per_lane_);
    for (int i = 0; i < pages_per_lane_; ++i) pages[i] = lane * pages_per_lane_ + pages_per_lane_ - 1 - i;
    return pages;
  }

  void run(std::vector<SeatRequest>& requests, const SeatPlan& plan) {
    const int lanes = std::min(plan.lanes, model_.facts().lanes);
    std::vector<SeatRequest*> seats(lanes, nullptr);
    std::size_t next = 0;
    for (std::uint64_t tick = 0;; ++tick) {
      bool busy = false;
      for (int lane = 0; lane < lanes; ++lane) {
        if (seats[lane] == nullptr && next < requests.size()) {
          seats[lane] = &requests[next++];
          seats[lane]->lane = lane;
          model_.start_lane(lane, seats[lane]->setup);
        }
        busy = busy || seats[lane] != nullptr;
      }
      if (!busy) return;
      step(seats, plan, tick);
      for (auto& seat : seats) {
        if (seat != nullptr && done(*seat)) seat = nullptr;
      }
    }
  }

  static bool done(const SeatRequest& r) {
    const auto& stops = r.setup.stop_tokens;
    return std::ssize(r.reply) >= r.max_tokens ||
           (!r.reply.empty() && std::find(stops.begin(), stops.end(), r.reply.back()) != stops.end());
  }

 private:
  static int pick(const SeatPlan& plan, std::uint64_t tick, int lane, int salt, int most) {
    return 1 + static_cast<int>(uniform(plan.seed, tick * 64 + lane * 4 + salt, Purpose::test) * most);
  }

  void step(std::vector<SeatRequest*>& seats, const SeatPlan& plan, std::uint64_t tick) {
    model::StepPlan step_plan;
    std::vector<std::vector<model::PageId>> owned(seats.size());
    for (int lane = 0; lane < std::ssize(seats); ++lane) {
      if (seats[lane] == nullptr) continue;
      SeatRequest& r = *seats[lane];
      owned[lane] = pages(lane);
      const int prompt = static_cast<int>(std::ssize(r.prompt));
      if (r.committed < prompt) {
        const int rows = std::min(prompt - r.committed, plan.chunk > 0 ? plan.chunk : pick(plan, tick, lane, 0, 40));
        step_plan.prefill.push_back({lane, r.committed, std::span(r.prompt).subspan(r.committed, rows), owned[lane],
                                     r.committed + rows == prompt});
        continue;
      }
      const int left = r.max_tokens - static_cast<int>(std::ssize(r.reply));
      const int budget = std::min(left, plan.budget > 0 ? plan.budget : pick(plan, tick, lane, 1, 9));
      const int width = plan.width > 0 ? plan.width : pick(plan, tick, lane, 2, 8);
      step_plan.decode.push_back({lane, r.committed, r.reply.back(), owned[lane], budget, width});
    }
    auto result = model_.step(step_plan);
    SPLASH_CHECK(result.has_value(), "{}", result.error().message);
    SPLASH_CHECK(result->prefill.size() == step_plan.prefill.size() &&
                 result->decode.size() == step_plan.decode.size());
    for (const auto* slices : {&result->prefill, &result->decode}) {
      for (const model::SliceResult& slice : *slices) {
        SeatRequest& r = *seats[slice.lane];
        r.committed += slice.committed;
        if (slices == &result->decode) {
          SPLASH_CHECK(slice.committed == std::ssize(slice.chosen) && !slice.chosen.empty());
          ++r.steps;
          r.drafted += slice.drafted;
          r.accepted += slice.accepted;
        }
        for (const Token token : slice.chosen) {
          if (r.setup.constraint) SPLASH_CHECK(r.setup.constraint->accept(token), "a forbidden token was chosen");
          r.reply.push_back(token);
        }
      }
    }
  }

  model::Model& model_;
  int pages_per_lane_;
};

inline std::vector<Token> random_text(std::uint64_t seed, int length, int vocab) {
  std::vector<Token> text(length);
  for (int i = 0; i < length; ++i) text[i] = static_cast<Token>(uniform(seed, i, Purpose::test) * vocab);
  return text;
}

}  // namespace splash::test
