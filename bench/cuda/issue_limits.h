// What binds a kernel that unpacks, multiplies and fetches at once (docs/decisions/0018): microbenchmarks of one kernel each.
#pragma once

#include <string>
#include <vector>

#include "backend/cuda/stream.h"

namespace splash::bench {

struct Limit {
  std::string name;
  double cycles = 0;  // at the device's highest clock
};

// Cycles of a scheduler for one product of m16n8 and what stands beside it, 16 warps on every multiprocessor, all operands
// independent.
std::vector<Limit> products_and_issue(cuda::Stream& stream);

// Hopper: cycles of a multiprocessor for 576 bytes (a 4-bit tile) that one warp fetches from the L2 into shared memory by bulk
// copies, alone and beside 16 warps that compute.
std::vector<Limit> fetching_beside_others(cuda::Stream& stream);

}  // namespace splash::bench
