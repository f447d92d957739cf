#include "engine/width.h"

#include <gtest/gtest.h>

namespace splash::engine {
namespace {

StepCost line(int max_rows, double base, double per_row) {
  StepCost cost(max_rows);
  for (int rows = 1; rows <= max_rows; ++rows) cost.record(rows, base + per_row * rows);
  return cost;
}

WidthView lane(double probability, int max_width) {
  WidthView view{.max_width = max_width};
  view.probability.fill(probability);
  return view;
}

TEST(StepCost, FillsTheGapsWithStraightLines) {
  StepCost cost(16);
  EXPECT_FALSE(cost.known());
  cost.record(2, 0.10);
  EXPECT_DOUBLE_EQ(cost.seconds(1), 0.10);
  EXPECT_DOUBLE_EQ(cost.seconds(16), 0.10);
  cost.record(8, 0.16);
  EXPECT_DOUBLE_EQ(cost.seconds(5), 0.13);
  EXPECT_NEAR(cost.seconds(16), 0.24, 1e-12) << "the slope goes on";
  cost.record(4, 0.05);
  EXPECT_DOUBLE_EQ(cost.seconds(2), 0.05) << "more rows never cost less: four bound two";
}

TEST(StepCost, FollowsAMachineThatChanges) {
  StepCost cost(4);
  for (int i = 0; i < 40; ++i) cost.record(4, 1.0);
  for (int i = 0; i < 100; ++i) cost.record(4, 2.0);
  EXPECT_NEAR(cost.seconds(4), 2.0, 1e-3);
  cost.record(4, 0.0);
  EXPECT_NEAR(cost.seconds(4), 2.0, 1e-3) << "a clock too coarse says nothing";
  for (int i = 0; i < 6; ++i) cost.record(4, 1.0);
  EXPECT_NEAR(cost.seconds(4), 1.0, 1e-3);
}

TEST(StepCost, OneSlowStepIsForgiven) {
  StepCost cost(8);
  for (int i = 0; i < 10; ++i) cost.record(8, 1.0);
  cost.record(8, 30.0);
  EXPECT_LE(cost.seconds(8), 1.05 + 1e-9);
  cost.record(4, 30.0);  // the first of its width, and never again
  EXPECT_LE(cost.seconds(4), 1.05 + 1e-9);
}

TEST(Acceptance, LearnsByPosition) {
  Acceptance acceptance;
  EXPECT_DOUBLE_EQ(acceptance.probability(0, 0.7), 0.7);
  for (int i = 0; i < 300; ++i) acceptance.record(7, 1, false);
  EXPECT_GT(acceptance.probability(0, 0.5), 0.95);
  EXPECT_LT(acceptance.probability(1, 0.5), 0.05);
  EXPECT_DOUBLE_EQ(acceptance.probability(2, 0.5), 0.5) << "never reached";
}

TEST(Acceptance, ABlockCutByStopOrBudgetIsNoRejection) {
  Acceptance acceptance;
  for (int i = 0; i < 300; ++i) acceptance.record(7, 1, true);
  EXPECT_GT(acceptance.probability(0, 0.5), 0.95);
  EXPECT_DOUBLE_EQ(acceptance.probability(1, 0.5), 0.5);
}

TEST(ChooseWidths, FreeRowsMeanFullBlocks) {
  const WidthView lanes[] = {lane(0.3, 8), lane(0.9, 5)};
  EXPECT_EQ(choose_widths(lanes, line(32, 0.1, 0.0)), (std::vector<int>{8, 5}));
  EXPECT_EQ(choose_widths(lanes, StepCost(32)), (std::vector<int>{8, 5})) << "unmeasured";
}

TEST(ChooseWidths, DearRowsMeanOne) {
  const WidthView lanes[] = {lane(0.9, 8), lane(0.9, 8)};
  EXPECT_EQ(choose_widths(lanes, line(16, 0.0, 0.1)), (std::vector<int>{1, 1}));
}

TEST(ChooseWidths, RowsGoWhereTheyAreLikelyKept) {
  const WidthView lanes[] = {lane(0.2, 8), lane(0.95, 8)};
  const std::vector<int> widths = choose_widths(lanes, line(16, 0.1, 0.01));
  EXPECT_LT(widths[0], widths[1]);
  EXPECT_EQ(widths[1], 8);
}

// No other split of rows does better: tried one by one for three lanes.
TEST(ChooseWidths, IsTheBestOfAll) {
  for (const double base : {0.0, 0.01, 0.05, 0.3}) {
    for (const double first : {0.1, 0.5, 0.9}) {
      StepCost cost(20);
      for (int rows = 1; rows <= 20; ++rows) cost.record(rows, base + 0.01 * rows + (rows > 8 ? 0.04 : 0.0));
      const WidthView lanes[] = {lane(first, 6), lane(0.6, 4), lane(0.8, 5)};
      const Company company{2, 1.5};
      const auto rate = [&](int a, int b, int c) {
        const double tokens =
            company.tokens + expected_tokens(lanes[0], a) + expected_tokens(lanes[1], b) + expected_tokens(lanes[2], c);
        return tokens / cost.seconds(company.rows + a + b + c);
      };
      double best = 0.0;
      for (int a = 1; a <= 6; ++a) {
        for (int b = 1; b <= 4; ++b) {
          for (int c = 1; c <= 5; ++c) best = std::max(best, rate(a, b, c));
        }
      }
      const std::vector<int> widths = choose_widths(lanes, cost, company);
      EXPECT_NEAR(rate(widths[0], widths[1], widths[2]), best, 1e-9 * best);
    }
  }
}

}  // namespace
}  // namespace splash::engine
