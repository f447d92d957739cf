// The draft's operations on the GPU; rings hold float32 as on the other streams, rounded to tf32.
#pragma once

#include "backend/cuda/stream.h"
#include "ops/draft/draft.h"

namespace splash::ops {

void block_conv(cuda::Stream& stream, const BlockConv& conv, MatrixView<const float> coefficients,
                MatrixView<const float> y, bool accumulate, MatrixView<float> out);
void draft_context(cuda::Stream& stream, const DraftAttentionGeometry& geometry, std::span<const float> k_norm,
                   MatrixView<const float> k, MatrixView<const float> v, std::span<const DraftContextSegment> segments);
// One launch up to 64 rows (one for the linears, one for the rings); 4-bit k and v.
void draft_contexts(cuda::Stream& stream, const DraftAttentionGeometry& geometry, MatrixView<const float> context,
                    std::span<const DraftContextLayer> layers);
// x [rows, H] to columns [index H, (index + 1) H) of the features, which are taken in ascending order; fills their panel
// as well.
void draft_feature(cuda::Stream& stream, MatrixView<const float> x, MatrixView<float> features, int index);
// fused.h. One launch where H is a multiple of 256 and the projection has 4 bits: n is then rounded to bf16 before its
// factor 1 / rms, not behind it, a row's bits do not depend on the number of rows, and x moves to `spare` wherever a
// sublayer ends.
MatrixView<float> draft_boundary(cuda::Stream& stream, MatrixView<float> x, MatrixView<float> spare,
                                 const DraftBoundary& between);
void draft_finish(cuda::Stream& stream, MatrixView<float> x, const DraftBoundary::End& end, int group, int block,
                  std::span<const float> gain, float eps, int first, MatrixView<float> normed);
// The rings are read while the kernels before this one still run: between whoever wrote them and this lies a copy, a
// graph's beginning or end, or some kernels that wait for it. Products are of tf32 numbers. head_dim 64 or 128;
// at most 32 query rows (block * query heads per kv head) share a kv head's keys.
void draft_attention(cuda::Stream& stream, const DraftAttentionGeometry& geometry, std::span<const float> q_norm,
                     std::span<const float> k_norm, MatrixView<const float> q, MatrixView<const float> k,
                     MatrixView<const float> v, int block, std::span<const DraftBlockSegment> segments,
                     MatrixView<float> out);
// k <= 32, limit <= 262,144.
void top_k(cuda::Stream& stream, MatrixView<const float> logits, int limit, MatrixView<Token> tokens,
           MatrixView<float> values);

}  // namespace splash::ops
