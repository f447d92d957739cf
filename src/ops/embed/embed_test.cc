#include "ops/embed/embed.h"

#include "ops/conformance.h"

namespace splash::ops::conformance {
namespace {

class Embed : public EveryIsa {};

TEST_P(Embed, SameBitsAsTheDefinition) {
  for (const pack::Format format : {pack::Format::q4, pack::Format::bf16, pack::Format::f32}) {
    const OwnWeight own = make_weight(format, 50, 192, 3);
    const std::vector<Token> tokens = {0, 49, 15, 16, 49, 7, 31, 32, 3};
    Matrix out(9, 192);
    cpu::Stream cpu = stream(3);
    embed(cpu, own.weight, tokens, out.view());
    for (int r = 0; r < 9; ++r) {
      for (int k = 0; k < 192; ++k) ASSERT_EQ(out.view().row(r)[k], pack::weight_at(own.weight, tokens[r], k));
    }
  }
}

SPLASH_EVERY_ISA(Embed);

}  // namespace
}  // namespace splash::ops::conformance
