#include "ops/embed/embed.h"

namespace splash::ops {

void embed(ref::Stream&, const pack::Weight& table, std::span<const Token> tokens, MatrixView<float> out) {
  SPLASH_CHECK(out.rows == static_cast<int>(tokens.size()) && out.cols == table.cols);
  for (int r = 0; r < out.rows; ++r) {
    SPLASH_CHECK(tokens[r] >= 0 && tokens[r] < table.rows, "token {} of {}", tokens[r], table.rows);
    for (int i = 0; i < table.cols; ++i) out.row(r)[i] = pack::weight_at(table, tokens[r], i);
  }
}

}  // namespace splash::ops
