#include "backend/cpu/dispatch.h"
#include "ops/draft/draft.h"
#include "ops/draft/top_k_kernels.h"

namespace splash::ops {

void top_k(cpu::Stream& stream, MatrixView<const float> logits, int limit, MatrixView<Token> tokens,
           MatrixView<float> values) {
  const int k = tokens.cols;
  SPLASH_CHECK(tokens.rows == logits.rows && values.rows == logits.rows && values.cols == k);
  SPLASH_CHECK(k >= 1 && k <= limit && limit <= logits.cols, "top {} of {} ids, {} logits", k, limit, logits.cols);
  const TopKKernels& kernels = cpu::kernels_for(stream.isa(), top_k_scalar, top_k_avx2, top_k_avx512vnni);
  stream.pool().split(logits.rows, 1, [&](int first, int last) {
    for (int row = first; row < last; ++row) {
      kernels.top_k(logits.row(row), limit, k, tokens.row(row), values.row(row));
    }
  });
}

}  // namespace splash::ops
