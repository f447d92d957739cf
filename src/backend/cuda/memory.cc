#include "backend/cuda/memory.h"

#include <cuda_runtime_api.h>

namespace splash::cuda {

template <MemoryKind kind>
Result<Buffer<kind>> Buffer<kind>::allocate(std::size_t bytes) {
  Buffer buffer;
  if (bytes == 0) return buffer;
  void* data = nullptr;
  const cudaError_t error =
      kind == MemoryKind::device ? cudaMalloc(&data, bytes) : cudaHostAlloc(&data, bytes, cudaHostAllocDefault);
  if (error != cudaSuccess) {
    cudaGetLastError();  // an allocation that failed leaves the device usable: forget the error
    std::size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    return fail(ErrorKind::overloaded, "could not take {:.2f} GiB of {} memory ({}); {:.2f} of {:.2f} GiB are free",
                static_cast<double>(bytes) / (1 << 30), kind == MemoryKind::device ? "device" : "pinned host",
                cudaGetErrorString(error), static_cast<double>(free_bytes) / (1 << 30),
                static_cast<double>(total_bytes) / (1 << 30));
  }
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

template <MemoryKind kind>
Buffer<kind>::~Buffer() {
  if (!data_) return;
  if constexpr (kind == MemoryKind::device) {
    cudaFree(data_);
  } else {
    cudaFreeHost(data_);
  }
}

template class Buffer<MemoryKind::device>;
template class Buffer<MemoryKind::pinned>;

}  // namespace splash::cuda
