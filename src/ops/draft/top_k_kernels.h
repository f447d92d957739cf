#pragma once

#include <cstdint>

namespace splash::ops {

struct TopKKernels {
  // The k largest of values[0..count), value descending, ties to the lower index. NaN counts as -infinity. k <= count.
  void (*top_k)(const float* values, int count, int k, std::int32_t* indices, float* largest);
};
extern const TopKKernels top_k_scalar, top_k_avx2, top_k_avx512vnni;

}  // namespace splash::ops
