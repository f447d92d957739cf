#include "ops/swiglu/swiglu.h"

#include "ops/conformance.h"

namespace splash::ops::conformance {
namespace {

class Swiglu : public EveryIsa {};

// silu of a negative x is x e^x to first order, so that its relative error is that of the vectorised exponential.
TEST_P(Swiglu, ExponentialIsAccurateOverItsRange) {
  Matrix gate(1, 40'001), up(1, 40'001, 1.0f), out(1, 40'001), expected(1, 40'001);
  for (int i = 0; i < gate.cols; ++i) gate.values[i] = -87.0f + static_cast<float>(i) * (174.0f / 40'000);
  for (int i = 0; i < gate.cols; ++i) {
    expected.values[i] = static_cast<float>(double{gate.values[i]} / (1 + std::exp(-double{gate.values[i]})));
  }
  cpu::Stream cpu = stream();
  swiglu(cpu, gate.view(), up.view(), out.view());
  expect_near(out, expected, 0, 5e-7, "silu");
}

TEST_P(Swiglu, MatchesRefInPlaceOnAnyThreads) {
  for (const int cols : {1, 6, 48, 5000}) {
    const Matrix gate = random_matrix(7, cols, 1, 8.0f), up = random_matrix(7, cols, 2);
    Matrix expected(7, cols), first(7, cols);
    ref::Stream reference;
    swiglu(reference, gate.view(), up.view(), expected.view());
    for (int threads : {1, 2, 3}) {
      Matrix out = gate;
      cpu::Stream cpu = stream(threads);
      swiglu(cpu, std::as_const(out).view(), up.view(), out.view());
      expect_near(out, expected, 1e-12, 1e-6, "swiglu");
      if (threads == 1) first = out;
      EXPECT_TRUE(same_bits(out, first));
    }
  }
}

TEST_P(Swiglu, ExtremesAndNan) {
  Matrix gate(1, 6), up(1, 6, 1.0f), out(1, 6);
  gate.values = {-1e30f, 1e30f, std::nanf(""), 0.0f, -INFINITY, -100.0f};
  cpu::Stream cpu = stream();
  swiglu(cpu, gate.view(), up.view(), out.view());
  EXPECT_NEAR(out.values[0], 0.0f, 1e-6);
  EXPECT_EQ(out.values[1], 1e30f);
  EXPECT_TRUE(std::isnan(out.values[2]));
  EXPECT_EQ(out.values[3], 0.0f);
  EXPECT_NEAR(out.values[5], 0.0f, 1e-30);
}

SPLASH_EVERY_ISA(Swiglu);

}  // namespace
}  // namespace splash::ops::conformance
