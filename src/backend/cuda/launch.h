// Starting kernels: on Hopper with programmatic dependent launch (ptx.cuh says what a kernel owes for it).
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>
#include <utility>

#include "backend/cuda/stream.h"
#include "base/check.h"

namespace splash::cuda {

struct Grid {
  dim3 blocks;
  dim3 threads;
  std::size_t shared_bytes = 0;
  unsigned cluster = 1;  // blocks of the x axis that form one cluster (Hopper)
};

template <class... Parameters, class... Arguments>
void launch(Stream& stream, const char* name, const Grid& grid, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = stream.native();
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  config.numAttrs = stream.portable() ? 0 : 1;
  SPLASH_CHECK(grid.cluster == 1 || !stream.portable(), "{}: no clusters on the portable path", name);
  if (grid.cluster > 1) {
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = grid.cluster;
    attributes[1].val.clusterDim.y = 1;
    attributes[1].val.clusterDim.z = 1;
    config.numAttrs = 2;
  }
  config.attrs = attributes;
  stream.note(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), name);
  stream.after_launch(name);
}

// More than 48 KB of shared memory must be allowed once per kernel (and device; one device per process here).
template <class Kernel>
void allow_shared(Stream& stream, Kernel* kernel, std::size_t bytes) {
  if (bytes <= 48 * 1024) return;
  stream.note(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
              "shared memory limit");
}

// Whether `per_multiprocessor` blocks fit at once: what a kernel whose blocks wait for each other needs.
template <class Kernel>
bool all_resident(Stream& stream, Kernel* kernel, int threads, std::size_t shared_bytes, int per_multiprocessor) {
  int blocks = 0;
  stream.note(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes), "occupancy");
  return blocks >= per_multiprocessor;
}

}  // namespace splash::cuda
