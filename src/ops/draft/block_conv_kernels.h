#pragma once

namespace splash::ops {

struct BlockConvRow {
  const float *base_self = nullptr, *base_before = nullptr;  // [channels]
  const float *p_self = nullptr, *p_before = nullptr;        // [channels / group]
  const float *y = nullptr, *before = nullptr;               // [channels]; before: null at a block's first row
  int group = 16;
  int channels = 0;
  bool accumulate = false;
  float* out = nullptr;
};
struct BlockConvKernels {
  void (*row)(const BlockConvRow& row);
};
extern const BlockConvKernels block_conv_scalar, block_conv_avx2, block_conv_avx512vnni;

}  // namespace splash::ops
