// SPLASH_SIM_SEED=n runs one schedule, SPLASH_SIM_SEEDS=n how many from 0 on.
#include <gtest/gtest.h>

#include <cstdlib>

#include "simulator.h"

namespace splash::sim {
namespace {

std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(Simulator, EveryAnswerEqualsTheAnswerAlone) {
  constexpr std::uint64_t usual = 4000;
  std::uint64_t first = 0;
  std::uint64_t count = number_from("SPLASH_SIM_SEEDS", usual);
  if (std::getenv("SPLASH_SIM_SEED") != nullptr) {
    first = number_from("SPLASH_SIM_SEED", 0);
    count = 1;
  }
  Tally sum;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    sum += simulate(seed);
    if (HasFailure()) GTEST_FAIL() << "SPLASH_SIM_SEED=" << seed;
  }
  fmt::print(
      "{} schedules: {} ticks, {} requests ({} twins, {} overtaken), {} finished with {} tokens, {} cancelled, {} timed out, {} failed, {} told that memory is full, "
      "{} refused, {} suspensions, {} evictions, {} restores of {} tokens, {} compared with a run alone\n",
      count, sum.ticks, sum.requests, sum.twins, sum.overtaken, sum.finished, sum.tokens, sum.cancelled, sum.timed_out, sum.failed, sum.full, sum.refused,
      sum.suspended, sum.evicted, sum.restored, sum.cached_tokens, sum.compared_alone);
  if (count < usual) return;
  // The schedules must keep meeting what they are for.
  EXPECT_GT(sum.suspended, 100);
  EXPECT_GT(sum.evicted, 1000);
  EXPECT_GT(sum.restored, 1000);
  EXPECT_GT(sum.cancelled, 1000);
  EXPECT_GT(sum.timed_out, 500);
  EXPECT_GT(sum.failed, 100);
  EXPECT_GT(sum.full, 50);
  EXPECT_GT(sum.compared_alone, 100);
  EXPECT_GT(sum.overtaken, 100);
}

}  // namespace
}  // namespace splash::sim
