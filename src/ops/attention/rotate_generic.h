// What the target's and the draft's attention share, for any instruction set: RMSNorm and rotary embedding of one head, and how
// many queries go together. After a simd header.
#pragma once

#include "ops/attention/attention_kernels.h"
#include "ops/norm/row_generic.h"

namespace splash::ops {
namespace {

// Queries that share one load of keys or values: as many as leave their sums (32 keys' or dims') in registers.
inline constexpr int query_tile = simd::width == 16 ? 8 : simd::width == 8 ? 2 : 1;

void rotate_head(const RotateHead& head, const float* x, float* out) {
  using namespace simd;
  const float scale = 1.0f / __builtin_sqrtf(sum_of_squares(x, head.dim) / static_cast<float>(head.dim) + head.eps);
  for (int at = 0; at < head.dim; at += width) store(out + at, load(x + at) * scale * load(head.gain + at));
  const int half = head.rotary_dim / 2;
  for (int at = 0; at < half; at += width) {
    const Vec a = load(out + at), b = load(out + half + at), c = load(head.cosines + at), s = load(head.sines + at);
    store(out + at, fma(a, c, -(b * s)));
    store(out + half + at, fma(b, c, a * s));
  }
}

}  // namespace
}  // namespace splash::ops
