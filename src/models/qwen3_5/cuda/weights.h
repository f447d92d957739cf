// A model's weights in device memory: blocks of the file, moved (backend/placement.h), in which the tiles of 4-bit
// matrices have the device's order (ops/linear/q4_tile.h). That is made on the device, behind the upload.
#pragma once

#include <optional>

#include "backend/cuda/memory.h"
#include "backend/cuda/stream.h"
#include "models/dflash2/weights.h"
#include "models/qwen3_5/weights.h"

namespace splash::models::qwen3_5 {

// Whether the CUDA kernels can run a package's geometry; the error names what they cannot.
Status cuda_supports(const pack::Package& package, int max_context);

struct CudaWeights {
  Weights target;  // views of device memory
  std::optional<dflash2::Weights> draft;
  cuda::DeviceBuffer memory;
};
Result<CudaWeights> upload_weights(cuda::Stream& stream, const pack::Package& package);

}  // namespace splash::models::qwen3_5
