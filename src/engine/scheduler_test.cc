#include "engine/scheduler.h"

#include <gtest/gtest.h>

namespace splash::engine {
namespace {

model::Facts facts() {
  model::Facts facts;
  facts.lanes = 4;
  facts.block_rows = 8;
  facts.max_prefill_rows = 512;
  facts.has_draft = true;
  return facts;
}

int rows_of(const std::vector<Grant>& grants, int lane) {
  for (const Grant& grant : grants) {
    if (grant.lane == lane) return grant.rows;
  }
  return 0;
}

const Acceptance unknown;

DecodeView decoding(int lane, int max_width = 8) {
  return {.lane = lane, .max_width = max_width, .acceptance = &unknown};
}

TEST(Scheduler, ALonePromptTakesEveryRow) {
  const Scheduler scheduler(facts(), {}, 0);
  const PrefillView prompt{.lane = 2, .arrival = 5, .rows_to_stop = 9000, .rows_to_end = 9500};
  const Choice choice = scheduler.next({&prompt, 1}, {});
  EXPECT_EQ(rows_of(choice.prefill, 2), 512);
  EXPECT_TRUE(choice.decode.empty());
}

TEST(Scheduler, PrefillStopsAtTheSnapshot) {
  const Scheduler scheduler(facts(), {}, 0);
  const PrefillView prompt{.lane = 0, .arrival = 0, .rows_to_stop = 37, .rows_to_end = 300};
  EXPECT_EQ(rows_of(scheduler.next({&prompt, 1}, {}).prefill, 0), 37);
}

TEST(Scheduler, TheOldestKeepsHalfAndTheShortestPass) {
  const Scheduler scheduler(facts(), {}, 0);
  const PrefillView prompts[] = {{.lane = 0, .arrival = 1, .rows_to_stop = 20'000, .rows_to_end = 20'000},
                                 {.lane = 1, .arrival = 2, .rows_to_stop = 5'000, .rows_to_end = 5'000},
                                 {.lane = 2, .arrival = 3, .rows_to_stop = 40, .rows_to_end = 40}};
  const Choice choice = scheduler.next(prompts, {});
  EXPECT_EQ(rows_of(choice.prefill, 0), 256);
  EXPECT_EQ(rows_of(choice.prefill, 2), 40);
  EXPECT_EQ(rows_of(choice.prefill, 1), 512 - 256 - 40);
  EXPECT_EQ(choice.prefill_rows(), 512);
}

TEST(Scheduler, EveryDecodingLaneIsInEveryStep) {
  Scheduler scheduler(facts(), {.slice_seconds = 0.1, .minimum_rows = 32}, 0);
  const PrefillView prompt{.lane = 0, .arrival = 0, .rows_to_stop = 20'000, .rows_to_end = 20'000};
  const DecodeView lanes[] = {decoding(1), decoding(3)};
  Choice choice = scheduler.next({&prompt, 1}, lanes);
  EXPECT_EQ(choice.decode.size(), 2u);
  EXPECT_EQ(choice.prefill_rows(), 32) << "carefully, before anything was measured";

  // One millisecond a row and 20 ms of decode leave 80 rows in a step of 100 ms.
  scheduler.complete({.prefill = {{0, 500}}}, 0.5);
  scheduler.complete({.decode = {{1, 8}, {3, 8}}}, 0.02);
  choice = scheduler.next({&prompt, 1}, lanes);
  EXPECT_NEAR(choice.prefill_rows(), 80, 1);
  EXPECT_EQ(choice.decode.size(), 2u);

  // However slow, prompts go on.
  for (int i = 0; i < 100; ++i) scheduler.complete({.decode = {{1, 8}, {3, 8}}}, 9.0);
  EXPECT_EQ(scheduler.next({&prompt, 1}, lanes).prefill_rows(), 32);
}

TEST(Scheduler, NarrowsBlocksThatAreNotKept) {
  Scheduler scheduler(facts(), {}, 0);
  StepCost cost(32);
  cost.record(1, 0.010);
  cost.record(8, 0.024);
  scheduler.set_cost(cost);
  const DecodeView lane = decoding(0);
  const int before = scheduler.next({}, {&lane, 1}).decode.front().rows;
  EXPECT_GT(before, 2);
  for (int i = 0; i < 200; ++i) scheduler.complete_slice(7, 0, false);
  EXPECT_EQ(scheduler.next({}, {&lane, 1}).decode.front().rows, 1);
}

// One disturbed minute of the machine (another process on its cores) made wide blocks look dear. Replies are short, so
// no lane lives for long: the width recovers all the same, and is wrong for no more than a few probes.
TEST(Scheduler, RecoversFromADisturbedMachineWithShortReplies) {
  Scheduler scheduler(facts(), {}, 0);
  const auto seconds = [](int rows) { return 0.010 + 0.0005 * rows; };
  int steps = 0, full = 0;
  const auto run = [&](int count, auto disturbance) {
    full = 0;
    for (int i = 0; i < count; ++i, ++steps) {
      static Acceptance fresh;
      if (steps % 10 == 0) fresh = {};  // another request
      const DecodeView lane{.lane = 0, .max_width = 8, .acceptance = &fresh};
      const Choice choice = scheduler.next({}, {&lane, 1});
      const int width = choice.decode.front().rows;
      full += width == 8;
      fresh.record(width - 1, width - 1, false);
      scheduler.complete_slice(width - 1, width - 1, false);
      scheduler.complete(choice, seconds(width) * disturbance(width));
    }
  };
  const auto quiet = [](int) { return 1.0; };
  StepCost cost(32);
  for (const int width : {1, 2, 4, 8}) cost.record(width, seconds(width));
  scheduler.set_cost(cost);
  run(20, quiet);
  EXPECT_GT(full, 15) << "once it knows that the draft is good";
  run(200, [](int width) { return width > 2 ? 20.0 : 1.0; });
  EXPECT_LT(full, 100) << "it does follow a machine on which wide blocks are dear";
  run(2 * Scheduler::probe_every, quiet);
  run(20, quiet);
  EXPECT_EQ(full, 20);
}

// A stated seed must give the same tokens on another day: no measured cost and no acceptance may narrow its block.
TEST(Scheduler, AStatedSeedRunsFullBlocks) {
  Scheduler scheduler(facts(), {}, 0);
  StepCost cost(32);
  cost.record(1, 0.010);
  cost.record(8, 0.100);
  scheduler.set_cost(cost);
  DecodeView lane = decoding(0);
  EXPECT_LT(scheduler.next({}, {&lane, 1}).decode.front().rows, 8);
  lane.reproducible = true;
  EXPECT_EQ(scheduler.next({}, {&lane, 1}).decode.front().rows, 8);
}

TEST(Scheduler, FixedWidthIsFixed) {
  Scheduler scheduler(facts(), {}, 5);
  const DecodeView lanes[] = {decoding(0, 5), decoding(1, 3)};
  const Choice choice = scheduler.next({}, lanes);
  EXPECT_EQ(rows_of(choice.decode, 0), 5);
  EXPECT_EQ(rows_of(choice.decode, 1), 3);
}

}  // namespace
}  // namespace splash::engine
