// Host blocks into device memory: through two pinned buffers, so that reading the file, copying it and the transfer
// overlap and host memory stays small.
#pragma once

#include "backend/cuda/memory.h"
#include "backend/cuda/stream.h"
#include "backend/placement.h"

namespace splash::cuda {

// One allocation with every block of the plan at its offset, complete when this returns. Peak host memory: 128 MiB.
Result<DeviceBuffer> upload(Stream& stream, const PlacementPlan& plan);

}  // namespace splash::cuda
