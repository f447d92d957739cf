#include "ops/draft/top_k_kernels.h"

namespace splash::ops {
namespace {

// Inserts behind equal values, so that the lower index stays ahead. `kept` entries are sorted.
inline int insert(float value, std::int32_t index, int kept, int k, std::int32_t* indices, float* largest) {
  int at = kept < k ? kept : k - 1;
  for (; at > 0 && largest[at - 1] < value; --at) {
    largest[at] = largest[at - 1];
    indices[at] = indices[at - 1];
  }
  largest[at] = value;
  indices[at] = index;
  return kept < k ? kept + 1 : k;
}

// The k-th value so far is a threshold that few of the remaining values pass: a comparison per vector is all they cost.
void top_k_row(const float* values, int count, int k, std::int32_t* indices, float* largest) {
  using namespace simd;
  int kept = 0, at = 0;
  for (; at < k; ++at) {
    const float value = values[at] == values[at] ? values[at] : -__builtin_inff();
    kept = insert(value, at, kept, k, indices, largest);
  }
  const auto consider = [&](int i) {
    if (values[i] > largest[k - 1]) insert(values[i], i, k, k, indices, largest);
  };
  for (; at < count && at % width != 0; ++at) consider(at);
  for (; at + 4 * width <= count; at += 4 * width) {
    const Vec threshold = set(largest[k - 1]);
    const VecInt above = (load(values + at) > threshold) | (load(values + at + width) > threshold) |
                         (load(values + at + 2 * width) > threshold) | (load(values + at + 3 * width) > threshold);
    if (!any(above)) continue;
    for (int i = at; i < at + 4 * width; ++i) consider(i);
  }
  for (; at < count; ++at) consider(at);
}

constexpr TopKKernels top_k_kernels = {top_k_row};

}  // namespace
}  // namespace splash::ops
