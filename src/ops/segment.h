// Consecutive rows of one lane inside a step.
#pragma once

#include <cstdint>
#include <span>

namespace splash::ops {

using PageId = std::int32_t;

struct Segment {
  int lane = 0;
  int first_row = 0;  // in the step's row axis
  int rows = 0;
  int position = 0;   // absolute position of the first row = committed length before it
  // Pages of the lane in order: position p lies in pages[p / 32], row p % 32. Covers position + rows.
  std::span<const PageId> pages;
};

}  // namespace splash::ops
