// gdn on the GPU: one kernel for verify passes and prefill alike, row by row in the same arithmetic, so that a lane's
// state has the same bits however its rows were cut into passes.
#pragma once

#include "ops/gdn/gdn.h"
#include "ops/segment_cuda.h"

namespace splash::ops {

// Device tables, for recordings: lanes[segments[i].lane] holds the lane's pointers in this layer.
struct GdnTables {
  const SegmentEntry* segments = nullptr;
  int segment_count = 0;
  const GdnLane* lanes = nullptr;
};

void gdn(cuda::Stream& stream, const GdnGeometry& geometry, const GdnWeights& weights, const GdnRows& rows,
         const GdnTables& tables, MatrixView<float> out);
void gdn(cuda::Stream& stream, const GdnGeometry& geometry, const GdnWeights& weights, const GdnRows& rows,
         std::span<const GdnSegment> segments, MatrixView<float> out);
void gdn_fold(cuda::Stream& stream, const GdnGeometry& geometry, const GdnLane& lane);

}  // namespace splash::ops
