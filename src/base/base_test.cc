#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "base/bf16.h"
#include "base/matrix.h"
#include "base/result.h"
#include "base/rng.h"
#include "base/thread_pool.h"

namespace splash {
namespace {

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(to_float(to_bf16(1.0f)), 1.0f);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // tie, even below
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);  // tie, even above
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isinf(to_float(to_bf16(std::numeric_limits<float>::max()))));
}

TEST(Bf16, HalfIsExact) {
  EXPECT_EQ(half_to_float(0x3c00), 1.0f);
  EXPECT_EQ(half_to_float(0xc000), -2.0f);
  EXPECT_EQ(half_to_float(0x0001), 0x1p-24f);
  EXPECT_EQ(half_to_float(0x7bff), 65504.0f);
  EXPECT_TRUE(std::isinf(half_to_float(0x7c00)));
}

// Known answer of Philox 4x32-10 from the Random123 distribution (kat_vectors).
TEST(Rng, PhiloxKnownAnswer) {
  const auto zero = philox4x32({0, 0, 0, 0}, {0, 0});
  EXPECT_EQ(zero, (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const auto ones = philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u});
  EXPECT_EQ(ones, (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Rng, UniformIsInRangeAndSpread) {
  double sum = 0;
  for (int i = 0; i < 10000; ++i) {
    const double u = uniform(7, i, Purpose::accept);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.02);
  EXPECT_NE(uniform(7, 1, Purpose::draft), uniform(7, 1, Purpose::accept));
}

TEST(ThreadPool, EveryItemOnceForAnyThreadCount) {
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    for (int count : {0, 1, 7, 64, 1000}) {
      std::vector<std::atomic<int>> hits(count);
      pool.split(count, 16, [&](int begin, int end) {
        for (int i = begin; i < end; ++i) hits[i].fetch_add(1);
      });
      for (auto& hit : hits) EXPECT_EQ(hit.load(), 1);
    }
  }
}

TEST(ThreadPool, SleepsAndWakes) {
  ThreadPool pool(2);
  std::atomic<int> sum{0};
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pool.run([&](int thread) { sum += thread + 1; });
  }
  EXPECT_EQ(sum.load(), 9);
}

Result<int> half_of(int value) {
  if (value % 2) return fail_parameter(ErrorKind::invalid, "value", "{} is odd", value);
  return value / 2;
}
Result<int> quarter_of(int value) {
  SPLASH_TRY(const int half, half_of(value));
  return half_of(half);
}

TEST(Result, TryPassesTheErrorOn) {
  EXPECT_EQ(*quarter_of(8), 2);
  EXPECT_EQ(quarter_of(6).error().message, "3 is odd");
  EXPECT_EQ(quarter_of(6).error().parameter, "value");
}

}  // namespace
}  // namespace splash
