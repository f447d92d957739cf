#include "ops/norm/norm.h"

#include "ops/conformance.h"

namespace splash::ops::conformance {
namespace {

class Norm : public EveryIsa {};

TEST_P(Norm, MatchesRefAtEverySizeAndMagnitude) {
  for (const int cols : {1, 6, 64, 100, 256, 5120}) {
    for (const float scale : {1.0f, 1e-12f, 1e8f}) {
      Matrix x = random_matrix(9, cols, 1, scale);
      std::fill_n(x.values.begin(), cols, 0.0f);
      x.values.back() = 1e4f * scale;
      const Matrix gain = random_matrix(1, cols, 2);
      Matrix expected(9, cols), out(9, cols);
      ref::Stream reference;
      rms_norm(reference, x.view(), gain.values, 1e-6f, expected.view());
      cpu::Stream cpu = stream(2);
      rms_norm(cpu, x.view(), gain.values, 1e-6f, out.view());
      expect_near(out, expected, 1e-30, 2e-6, "rms_norm");
      cpu::Stream alone = stream(1);
      Matrix row(1, cols);
      rms_norm(alone, x.slice(5, 1), gain.values, 1e-6f, row.view());
      EXPECT_TRUE(same_bits(row.values.data(), &out.values[std::size_t{5} * cols], cols));
    }
  }
}

SPLASH_EVERY_ISA(Norm);

}  // namespace
}  // namespace splash::ops::conformance
