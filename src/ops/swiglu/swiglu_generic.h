#include "ops/swiglu/swiglu_kernels.h"

namespace splash::ops {
namespace {

void swiglu(const float* gate, const float* up, int count, float* out) {
  using namespace simd;
  int at = 0;
  for (; at + width <= count; at += width) store(out + at, silu(load(gate + at)) * load(up + at));
  const int rest = count - at;
  if (rest > 0) store_part(out + at, silu(load_part(gate + at, rest)) * load_part(up + at, rest), rest);
}

constexpr SwigluKernels swiglu_kernels = {swiglu};

}  // namespace
}  // namespace splash::ops
