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
  scheduler.complete({.decode = {{1, 8}, {3, 8}}}, 9.0);
  EXPECT_EQ(scheduler.next({&prompt, 1}, lanes).prefill_rows(), 32);
}

TEST(Scheduler, NarrowsBlocksThatAreNotKept) {
  Scheduler scheduler(facts(), {}, 0);
  StepCost cost(32);
  cost.record(1, 0.010);
  cost.record(8, 0.024);
  scheduler.set_alone_cost(cost);
  const DecodeView lane = decoding(0);
  const int before = scheduler.next({}, {&lane, 1}).decode.front().rows;
  EXPECT_GT(before, 2);
  for (int i = 0; i < 200; ++i) scheduler.complete_slice(7, 0, false);
  EXPECT_EQ(scheduler.next({}, {&lane, 1}).decode.front().rows, 1);
  // Now and then it looks whether that is still so.
  DecodeView probe = lane;
  probe.steps = Scheduler::probe_every - 1;
  EXPECT_EQ(scheduler.next({}, {&probe, 1}).decode.front().rows, 8);
}

TEST(Scheduler, ASampledLaneKnowsOnlyItself) {
  Scheduler scheduler(facts(), {}, 0);
  StepCost cost(32);
  cost.record(1, 0.010);
  cost.record(8, 0.016);
  scheduler.set_alone_cost(cost);
  DecodeView lane = decoding(0);
  lane.sampled = true;
  const int alone = scheduler.next({}, {&lane, 1}).decode.front().rows;
  for (int i = 0; i < 200; ++i) scheduler.complete_slice(7, 0, false);
  for (int i = 0; i < 200; ++i) scheduler.complete({.decode = {{0, 8}, {1, 8}}}, 5.0);
  const DecodeView lanes[] = {lane, decoding(1), decoding(2)};
  const Choice choice = scheduler.next({}, lanes);
  EXPECT_EQ(rows_of(choice.decode, 0), alone);
  EXPECT_EQ(rows_of(choice.decode, 1), 1) << "a greedy lane follows the load";
  // A budget only cuts.
  lane.max_width = 2;
  EXPECT_EQ(scheduler.next({}, {&lane, 1}).decode.front().rows, std::min(alone, 2));
}

// Where a second row is dear and eight cost no more than two, eight are best, yet of at most two rows one is. Near the
// end of its budget the lane still runs the first rows of the block it would run without one.
TEST(Scheduler, ABudgetOnlyShortensASampledBlock) {
  Scheduler scheduler(facts(), {}, 0);
  StepCost cost(32);
  cost.record(1, 0.010);
  cost.record(2, 0.020);
  cost.record(8, 0.020);
  scheduler.set_alone_cost(cost);
  DecodeView lane = decoding(0);
  lane.sampled = true;
  EXPECT_EQ(scheduler.next({}, {&lane, 1}).decode.front().rows, 8);
  lane.max_width = 2;
  EXPECT_EQ(scheduler.next({}, {&lane, 1}).decode.front().rows, 2);
  lane.sampled = false;
  EXPECT_EQ(scheduler.next({}, {&lane, 1}).decode.front().rows, 1);
}

// A stated seed must give the same tokens on another day: no measured cost and no acceptance may narrow its block.
TEST(Scheduler, AStatedSeedRunsFullBlocks) {
  Scheduler scheduler(facts(), {}, 0);
  StepCost cost(32);
  cost.record(1, 0.010);
  cost.record(8, 0.100);
  scheduler.set_alone_cost(cost);
  DecodeView lane = decoding(0);
  lane.sampled = true;
  EXPECT_LT(scheduler.next({}, {&lane, 1}).decode.front().rows, 8);
  lane.reproducible = true;
  EXPECT_EQ(scheduler.next({}, {&lane, 1}).decode.front().rows, 8);
  lane.sampled = false;
  EXPECT_LT(scheduler.next({}, {&lane, 1}).decode.front().rows, 8) << "greedy tokens depend on no width";
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
