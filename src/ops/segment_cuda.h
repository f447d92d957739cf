// Segments as kernels read them. Which segments there are and how many rows each has is part of a recording; lane,
// position, pages and mode are read from device memory, so that a replay sees the step's own.
#pragma once

#include <vector>

#include "backend/cuda/stream.h"
#include "ops/segment.h"

namespace splash::ops {

struct SegmentEntry {
  int lane = 0;
  int first_row = 0;
  int rows = 0;
  int position = 0;
  int mode = 0;  // GdnMode
  int padding = 0;
  const PageId* pages = nullptr;  // device memory
};

// The bound table of `segments`, or a fresh copy (outside recordings).
inline const SegmentEntry* segment_table(cuda::Stream& stream, std::span<const Segment> segments) {
  if (const void* device = stream.bound(segments.data())) return static_cast<const SegmentEntry*>(device);
  std::vector<SegmentEntry> entries;
  for (const Segment& segment : segments) {
    entries.push_back({segment.lane, segment.first_row, segment.rows, segment.position, 0, 0,
                       segment.pages.empty() ? nullptr : stream.upload(segment.pages.data(), segment.pages.size())});
  }
  return stream.upload(entries.data(), entries.size());
}

}  // namespace splash::ops
