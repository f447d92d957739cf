#include "ops/draft/block_conv_kernels.h"

namespace splash::ops {
namespace {

// out (+)= (base_0 + p_0) y_t + (base_1 + p_1) y_{t-1}, a group of channels at a time.
void block_conv_row(const BlockConvRow& row) {
  using namespace simd;
  for (int first = 0, g = 0; first < row.channels; first += row.group, ++g) {
    const int last = first + row.group < row.channels ? first + row.group : row.channels;
    for (int at = first; at < last; at += width) {
      const int count = last - at;
      const bool whole = count >= width;
      const auto read = [&](const float* p) { return whole ? load(p + at) : load_part(p + at, count); };
      Vec sum = (read(row.base_self) + row.p_self[g]) * read(row.y);
      if (row.before != nullptr) sum = fma(read(row.base_before) + row.p_before[g], read(row.before), sum);
      if (row.accumulate) sum = read(row.out) + sum;
      if (whole) store(row.out + at, sum);
      else store_part(row.out + at, sum, count);
    }
  }
}

constexpr BlockConvKernels block_conv_kernels = {block_conv_row};

}  // namespace
}  // namespace splash::ops
