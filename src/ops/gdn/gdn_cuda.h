// gdn on the GPU: one kernel for verify passes and short prefills, three for long ones, row by row in the same
// arithmetic, so that a lane's state has the same bits however its rows were cut into passes.
//
// What a lane's earlier passes left (state, tape, history, kept) and the tables are read, and the kept rows folded in,
// while the kernels before this one still run. So between the kernel or copy that wrote them and this one lies a copy,
// a graph's beginning or end, or some kernels that wait for it; two passes of one lane's layer never follow each other
// directly. A lane's state, conv and tape begin at multiples of 16 bytes.
#pragma once

#include "ops/gdn/gdn.h"
#include "ops/segment_cuda.h"

namespace splash::ops {

// One segment of a commit pass cut in two: the first turn runs `until`, the pass's segments with that one ending at the
// cut; what its lane remembers in this layer is then copied, and `rest` runs on. Rows go one by one, so the cut does not
// show in any bit.
struct GdnMark {
  const SegmentEntry* until = nullptr;  // as many as the pass has segments; null: no mark
  const SegmentEntry* rest = nullptr;   // one
  const float* from = nullptr;          // the lane's state and conv
  float* to = nullptr;
  std::size_t bytes = 0;
};

// Device tables, for recordings: lanes[segments[i].lane] holds the lane's pointers in this layer; at least as many lanes
// as segments.
struct GdnTables {
  const SegmentEntry* segments = nullptr;
  int segment_count = 0;
  const GdnLane* lanes = nullptr;
  int longest_commit = 0;  // rows of the longest segment, if all are commit passes; else 0
  GdnMark mark;
};

void gdn(cuda::Stream& stream, const GdnGeometry& geometry, const GdnWeights& weights, const GdnRows& rows,
         const GdnTables& tables, MatrixView<float> out);
void gdn(cuda::Stream& stream, const GdnGeometry& geometry, const GdnWeights& weights, const GdnRows& rows,
         std::span<const GdnSegment> segments, MatrixView<float> out);
void gdn_fold(cuda::Stream& stream, const GdnGeometry& geometry, const GdnLane& lane);

}  // namespace splash::ops
