// attention on the GPU: int8 pages, fp16 products with float32 sums, log-domain weights.
//
// Positions are cut into fixed chunks, each reduced on its own and merged in order; who computes a chunk, how many rows
// share a tile and how prefill was cut change no bit of a row. A step is two kernels: chunks, merge.
// A layer's part of a page is, per key-value head: keys [32][256], values transposed [256][32], 32 key scales, 32 value
// scales: 16,640 bytes in one piece. Codes are stored as code + 128 (fp16 1024 + byte is one permute); the halves of 64
// codes of odd key rows are swapped so that reads of eight rows hit different banks.
// Pages are read while the kernels before a step's attention still run, and what they lack of the step's own rows is
// filled in: between whoever wrote the rest and this lies a copy, a graph's beginning or end, or some kernels that wait
// for it.
#pragma once

#include "ops/attention/attention.h"
#include "ops/segment_cuda.h"

namespace splash::ops {

void attention(cuda::Stream& stream, const AttentionGeometry& geometry, const AttentionWeights& weights,
               const AttentionRows& rows, std::span<const Segment> segments, const KvPool& pool, int layer,
               MatrixView<float> out);

}  // namespace splash::ops
