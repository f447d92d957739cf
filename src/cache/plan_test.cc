#include "cache/plan.h"

#include <gtest/gtest.h>

namespace splash::cache {
namespace {

constexpr std::int64_t kib = 1024;
constexpr std::int64_t mib = 1024 * kib;
constexpr std::int64_t gib = 1024 * mib;

// The built-in model: a few MiB of everything.
const model::Footprint tiny{.weights_bytes = 24 * mib,
                            .page_bytes = 64 * kib,
                            .lane_bytes = 3 * mib,
                            .snapshot_bytes = 2 * mib,
                            .scratch_bytes = 40 * mib};
// Qwen3.8-27B at 4 bits with its draft (../shared/spec/splash-engine.md: page, state and draft ring bytes).
const model::Footprint large{.weights_bytes = 16'200 * mib,
                             .page_bytes = 1'064'960,
                             .lane_bytes = 200 * mib,
                             .snapshot_bytes = 187 * mib,
                             .scratch_bytes = 790 * mib};
constexpr int window = 262'144;

void expect_sound(const MemoryPlan& plan) {
  EXPECT_LE(plan.used_bytes(), plan.budget_bytes);
  EXPECT_GE(plan.lanes, 1);
  EXPECT_LE(plan.lanes, link::max_lanes);
  EXPECT_GE(plan.snapshots, minimum_snapshots);
  EXPECT_GE(plan.pages * link::page_tokens, plan.context) << "one request must be able to fill the context";
}

TEST(Plan, TinyModelOnASmallLaptopGetsEverything) {
  const auto made = plan({8 * gib, 5 * gib}, tiny, 32'768, {});
  ASSERT_TRUE(made) << made.error().message;
  expect_sound(*made);
  EXPECT_EQ(made->lanes, link::max_lanes);
  EXPECT_EQ(made->context, 32'768);
  EXPECT_EQ(made->pages, 1024 * 12) << "the lanes and four idle contexts, not the whole machine";
  EXPECT_EQ(made->snapshots, 64);
  EXPECT_LT(made->used_bytes(), 1 * gib);
}

TEST(Plan, LargeModelOnTwentyFourGibibytesTradesContextForFit) {
  const auto made = plan({24 * gib, 23 * gib}, large, window, {});
  ASSERT_TRUE(made) << made.error().message;
  expect_sound(*made);
  EXPECT_GE(made->lanes, 3);
  EXPECT_LT(made->lanes, link::max_lanes);
  EXPECT_GT(made->context, 65'536);
  EXPECT_LT(made->context, window);
  EXPECT_GE(made->snapshots, 4);
}

TEST(Plan, LargeModelOnAServerIsBoundByUsefulness) {
  const auto made = plan({512 * gib, 500 * gib}, large, window, {});
  ASSERT_TRUE(made) << made.error().message;
  expect_sound(*made);
  EXPECT_EQ(made->lanes, 8);
  EXPECT_EQ(made->context, window);
  EXPECT_EQ(made->pages, 8192 * 12);
  EXPECT_EQ(made->snapshots, 64);
}

TEST(Plan, ModelThatDoesNotFitSaysWhatIsMissing) {
  const auto made = plan({8 * gib, 7 * gib}, large, window, {});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().parameter, "memory");
  EXPECT_NE(made.error().message.find("weights 15.8 GiB"), std::string::npos) << made.error().message;
  EXPECT_NE(made.error().message.find("are missing"), std::string::npos) << made.error().message;
}

TEST(Plan, ContextThatDoesNotFitNamesTheLargestOneThatDoes) {
  const auto refused = plan({24 * gib, 23 * gib}, large, window, {.context = window});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().parameter, "context");
  const auto at = refused.error().message.rfind(' ');
  const int largest = std::stoi(refused.error().message.substr(at + 1));
  const auto made = plan({24 * gib, 23 * gib}, large, window, {.context = largest});
  ASSERT_TRUE(made) << made.error().message;
  expect_sound(*made);
  EXPECT_EQ(made->context, largest);
  EXPECT_FALSE(plan({24 * gib, 23 * gib}, large, window, {.context = largest + 1}));
}

TEST(Plan, WishesAreKeptOrRefusedByName) {
  const auto made = plan({24 * gib, 23 * gib}, large, window, {.lanes = 2, .context = 40'000});
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->lanes, 2);
  EXPECT_EQ(made->context, 40'000);
  EXPECT_EQ(plan({24 * gib, 23 * gib}, tiny, 1024, {.lanes = 9}).error().parameter, "lanes");
  EXPECT_EQ(plan({24 * gib, 23 * gib}, tiny, 1024, {.context = 1025}).error().parameter, "context");
  const auto limited = plan({512 * gib, 500 * gib}, large, window, {.max_bytes = 20 * gib});
  ASSERT_TRUE(limited) << limited.error().message;
  EXPECT_LE(limited->used_bytes(), 20 * gib);
}

TEST(Plan, EveryMachineSizeGivesASoundPlanOrAnError) {
  for (std::int64_t total = 1 * gib; total < 256 * gib; total += 377 * mib) {
    for (const auto& footprint : {tiny, large}) {
      const auto made = plan({total, total - total / 10}, footprint, window, {});
      if (made) expect_sound(*made);
    }
  }
}

TEST(Plan, ADeviceWithRoomHoldsEverything) {
  const auto made = plan_on_device({140 * gib, 139 * gib}, {64 * gib, 60 * gib}, large, window, {});
  ASSERT_TRUE(made) << made.error().message;
  expect_sound(*made);
  EXPECT_EQ(made->lanes, link::max_lanes);
  EXPECT_EQ(made->context, window);
  EXPECT_EQ(made->pages, 8192 * 12) << "snapshots take nothing that is missed";
  EXPECT_EQ(made->snapshots, 64);
  EXPECT_EQ(made->host_snapshots, 0);
  EXPECT_EQ(describe(*made).find("host memory"), std::string::npos) << describe(*made);
  EXPECT_TRUE(plan_on_device({140 * gib, 139 * gib}, {gib, gib / 2}, large, window, {}));
  EXPECT_EQ(plan_on_device({8 * gib, 8 * gib}, {64 * gib, 60 * gib}, large, window, {}).error().parameter, "memory");
}

TEST(Plan, SnapshotsThatADeviceHasNoRoomForLieInTheHost) {
  const MachineMemory host{64 * gib, 60 * gib};
  model::Footprint without = large;
  without.snapshot_bytes = 0;
  const auto small = plan_on_device({24 * gib, 23 * gib}, host, large, window, {});
  ASSERT_TRUE(small) << small.error().message;
  expect_sound(*small);
  EXPECT_EQ(small->snapshots, 64);
  EXPECT_EQ(small->host_snapshots, 64);
  EXPECT_EQ(small->snapshots_bytes, 0);
  EXPECT_EQ(small->context, plan_on_device({24 * gib, 23 * gib}, host, without, window, {})->context)
      << "a context that does not fit whole gives nothing up";
  EXPECT_NE(describe(*small).find("64 of them in 11.7 GiB of host memory"), std::string::npos) << describe(*small);
  EXPECT_EQ(plan_on_device({24 * gib, 23 * gib}, {gib, gib / 2}, large, window, {}).error().parameter, "memory");

  const auto middle = plan_on_device({48 * gib, 47 * gib}, host, large, window, {});
  ASSERT_TRUE(middle) << middle.error().message;
  expect_sound(*middle);
  EXPECT_EQ(middle->snapshots, 64);
  EXPECT_GT(middle->host_snapshots, 0);
  EXPECT_LT(middle->host_snapshots, 64);
  EXPECT_EQ(middle->snapshots_bytes, (64 - middle->host_snapshots) * large.snapshot_bytes);
  EXPECT_EQ(middle->context, window);

  // The host has little too: as many as there is room for, two at least.
  for (std::int64_t total = 17 * gib; total < 80 * gib; total += 377 * mib) {
    for (const std::int64_t spare : {1, 3, 20}) {
      const auto made = plan_on_device({total, total - gib / 2}, {(spare + 1) * gib, spare * gib}, large, window, {});
      if (!made) continue;
      expect_sound(*made);
      EXPECT_LE(made->host_snapshots_bytes, std::max(spare * gib / 4, 2 * large.snapshot_bytes));
      EXPECT_LE(made->snapshots, 64);
    }
  }
}

TEST(Plan, PrintsForTheStartUpLines) {
  const auto made = plan({8 * gib, 5 * gib}, tiny, 32'768, {});
  ASSERT_TRUE(made);
  EXPECT_NE(describe(*made).find("8 requests at once"), std::string::npos) << describe(*made);
  EXPECT_EQ(format_bytes(1'610'612'736), "1.50 GiB");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_GT(machine_memory().total_bytes, 0);
  EXPECT_GT(machine_memory().available_bytes, 0);
}

}  // namespace
}  // namespace splash::cache
