// A model's weights in device memory. The kernels read the pack's own strips, so the device layout is the file's:
// blocks are only moved (backend/placement.h).
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
