#include "backend/cpu/dispatch.h"
#include "ops/draft/block_conv_kernels.h"
#include "ops/draft/draft.h"

namespace splash::ops {

void block_conv(cpu::Stream& stream, const BlockConv& conv, MatrixView<const float> coefficients,
                MatrixView<const float> y, bool accumulate, MatrixView<float> out) {
  const int channels = y.cols, groups = channels / conv.group;
  SPLASH_CHECK(channels % conv.group == 0 && y.rows % conv.block == 0 && out.rows == y.rows && out.cols == channels &&
               coefficients.rows == y.rows && coefficients.cols == 4 * groups &&
               conv.base.size() == std::size_t{4} * channels && (conv.stage == 0 || conv.stage == 1));
  const BlockConvKernels& kernels =
      cpu::kernels_for(stream.isa(), block_conv_scalar, block_conv_avx2, block_conv_avx512vnni);
  stream.pool().split(y.rows, 4, [&](int first, int last) {
    for (int r = first; r < last; ++r) {
      BlockConvRow row;
      row.base_self = conv.base.data() + std::int64_t{2} * conv.stage * channels;
      row.base_before = row.base_self + channels;
      row.p_self = coefficients.row(r) + 2 * conv.stage * groups;
      row.p_before = row.p_self + groups;
      row.y = y.row(r);
      row.before = r % conv.block == 0 ? nullptr : y.row(r - 1);
      row.group = conv.group;
      row.channels = channels;
      row.accumulate = accumulate;
      row.out = out.row(r);
      kernels.row(row);
    }
  });
}

}  // namespace splash::ops
