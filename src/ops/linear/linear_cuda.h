// linear on the GPU. q4 weights: activations are rounded to bf16 (panel.h), products and sums are exact to float32:
//   up to 32 rows  weights exact: scale * (sum of codes * x) + bias * (sum of x) per group of 64
//   above          weights rounded once to bf16(q * scale + bias); matrices of few rows in three fixed
//                  parts of K
// so a lane's bits do not depend on company up to 32 rows; the switch is measured in docs/decisions.
// bf16 and f32 weights: float32 throughout (small matrices of test models).
#pragma once

#include "backend/cuda/stream.h"
#include "ops/linear/linear.h"
#include "ops/linear/q4_tile.h"

namespace splash::ops {

void linear(cuda::Stream& stream, MatrixView<const float> x, std::span<const LinearTarget> targets);

// out = silu(gate x) * (up x), in one launch where weights are q4 (from 33 rows on and not in whole groups, in two, with
// `upped` [rows, I] as scratch); what reads it next must be a linear (a stream that folds norms leaves its floats unwritten
// where there is a panel).
void linear_swiglu(cuda::Stream& stream, MatrixView<const float> x, const pack::Weight& gate, const pack::Weight& up,
                   MatrixView<float> upped, MatrixView<float> out);

// residual += W x and normed = rms_norm(residual) * gain for the linears that read `normed` next (linear,
// linear_swiglu): up to 32 rows without a kernel of its own, and then only the panel of `normed` exists, its floats are
// not written.
void linear_add_norm(cuda::Stream& stream, MatrixView<const float> x, const pack::Weight& weight,
                     MatrixView<float> residual, std::span<const float> gain, float eps, MatrixView<float> normed);

// The same of out = W x.
void linear_norm(cuda::Stream& stream, MatrixView<const float> x, const pack::Weight& weight, MatrixView<float> out,
                 std::span<const float> gain, float eps, MatrixView<float> normed);

// Puts the tiles of a 4-bit weight, uploaded as the pack has them, into the order that the kernels read (q4_tile.h), in
// place. Every kernel that reads 4-bit weights takes this order. `scratch`: device memory for one group at least (eight
// rows of tiles), free again when the stream has come so far; the more, the fewer launches.
void arrange_q4(cuda::Stream& stream, Q4Order order, std::byte* tiles, std::span<std::byte> scratch);

}  // namespace splash::ops
