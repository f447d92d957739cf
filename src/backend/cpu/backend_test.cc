#include <gtest/gtest.h>

#include <cmath>

#include "backend/cpu/roof.h"
#include "backend/cpu/stream.h"

namespace splash::cpu {
namespace {

TEST(Isa, ForcedByNameOrBest) {
  EXPECT_EQ(*choose_isa("scalar"), Isa::scalar);
  const Isa best = *choose_isa("");
  EXPECT_TRUE(supported(best));
  EXPECT_EQ(*choose_isa(name_of(best)), best);
}

TEST(Isa, UnknownNameListsWhatThereIs) {
  const auto chosen = choose_isa("mmx");
  ASSERT_FALSE(chosen);
  EXPECT_NE(chosen.error().message.find("scalar"), std::string::npos) << chosen.error().message;
}

TEST(RopeTable, AnglesAreExactAtEveryMagnitude) {
  const RopeTable table(1e7, 64);
  float cosines[32], sines[32];
  for (int position : {0, 1, 31, 511, 512, 513, 32'767, 100'003, 262'143}) {
    table.angles(position, cosines, sines);
    for (int pair = 0; pair < 32; ++pair) {
      const double angle = position * std::pow(1e7, -2.0 * pair / 64);
      EXPECT_NEAR(cosines[pair], std::cos(angle), 6.1e-8) << position << " " << pair;
      EXPECT_NEAR(sines[pair], std::sin(angle), 6.1e-8) << position << " " << pair;
    }
  }
}

TEST(Roof, IsPlausible) {
  ThreadPool pool(1);
  const Roof roof = measure_roof(pool, *choose_isa(""));
  EXPECT_GT(roof.read_gb_s, 0.2);
  EXPECT_LT(roof.read_gb_s, 2000);
  EXPECT_GT(roof.int8_gmac_s, 0.5);
  EXPECT_LT(roof.int8_gmac_s, 5000);
}

}  // namespace
}  // namespace splash::cpu
