// Pairs of operations that a device may run in one launch. These are the plain sequences, for every stream that has
// nothing better; fused_cuda.h overloads them.
#pragma once

#include "ops/draft/draft.h"
#include "ops/linear/linear.h"
#include "ops/norm/norm.h"
#include "ops/swiglu/swiglu.h"

namespace splash::ops {

// The boundary between two sublayers: residual += W x, then normed = rms_norm(residual) * gain. What reads `normed`
// next must be a linear: a device may keep only its own form of it and leave the floats unwritten.
template <class S>
void linear_add_norm(S& stream, MatrixView<const float> x, const pack::Weight& weight, MatrixView<float> residual,
                     std::span<const float> gain, float eps, MatrixView<float> normed) {
  linear_add(stream, x, weight, residual);
  rms_norm(stream, residual, gain, eps, normed);
}

inline void linear_add_norm(cpu::Stream& stream, Fine x, const pack::Weight& weight, MatrixView<float> residual,
                            std::span<const float> gain, float eps, MatrixView<float> normed) {
  linear_add(stream, x, weight, residual);
  rms_norm(stream, residual, gain, eps, normed);
}

// out = silu(gate x) * (up x); `upped` [rows, I] is scratch. What reads `out` next must be a linear, as above.
template <class S>
void linear_swiglu(S& stream, MatrixView<const float> x, const pack::Weight& gate, const pack::Weight& up,
                   MatrixView<float> upped, MatrixView<float> out) {
  const LinearTarget targets[] = {{gate, out}, {up, upped}};
  linear(stream, x, targets);
  swiglu(stream, out, upped, out);
}

// out = W x, then normed = rms_norm(out) * gain, for a linear as above.
template <class S>
void linear_norm(S& stream, MatrixView<const float> x, const pack::Weight& weight, MatrixView<float> out,
                 std::span<const float> gain, float eps, MatrixView<float> normed) {
  linear(stream, x, weight, out);
  rms_norm(stream, out, gain, eps, normed);
}

// Between two sublayers of the draft (draft.h). Returns where x lies then: in `x`, or in `spare` of the same shape.
template <class S>
MatrixView<float> draft_boundary(S& stream, MatrixView<float> x, MatrixView<float>, const DraftBoundary& between) {
  const DraftBoundary& b = between;
  if (b.end.y.rows > 0) {
    block_conv(stream, BlockConv{b.end.base, b.group, 1, b.block}, b.end.coefficients, b.end.y, true, x);
  }
  rms_norm(stream, x, b.gain, b.eps, b.normed);
  linear(stream, b.normed, b.conv.projection, b.coefficients);
  block_conv(stream, BlockConv{b.conv.base, b.group, 0, b.block}, b.coefficients, b.normed, false, b.convolved);
  return x;
}

// Behind the last sublayer: normed = rms_norm(x + conv_1(y)) * gain, of each block the rows from `first` on, as many as
// normed has room for. x is spent.
template <class S>
void draft_finish(S& stream, MatrixView<float> x, const DraftBoundary::End& end, int group, int block,
                  std::span<const float> gain, float eps, int first, MatrixView<float> normed) {
  block_conv(stream, BlockConv{end.base, group, 1, block}, end.coefficients, end.y, true, x);
  const int blocks = x.rows / block, kept = normed.rows / blocks;
  if (kept == block) return rms_norm(stream, x, gain, eps, normed);
  for (int i = 0; i < blocks; ++i) {
    rms_norm(stream, x.slice_rows(i * block + first, kept), gain, eps, normed.slice_rows(i * kept, kept));
  }
}

// Keys and values of one context for several layers, into their rings.
template <class S>
void draft_contexts(S& stream, const DraftAttentionGeometry& geometry, MatrixView<const float> context,
                    std::span<const DraftContextLayer> layers) {
  const int width = geometry.kv_heads * geometry.head_dim;
  const MatrixView<float> k = stream.matrix(context.rows, width), v = stream.matrix(context.rows, width);
  for (const DraftContextLayer& layer : layers) {
    const LinearTarget targets[] = {{layer.k, k}, {layer.v, v}};
    linear(stream, context, targets);
    draft_context(stream, geometry, layer.k_norm, k, v, layer.segments);
  }
}

}  // namespace splash::ops
