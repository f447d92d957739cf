#include <cuda_runtime_api.h>

#include "backend/cuda/facts.h"

namespace splash::cuda {
namespace {

Result<DeviceFacts> read_device(int index, int driver_version) {
  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess) {
    return fail(ErrorKind::io, "CUDA device {} does not answer: {}", index, cudaGetErrorString(error));
  }
  DeviceFacts facts;
  facts.index = index;
  facts.name = properties.name;
  facts.compute_major = properties.major;
  facts.compute_minor = properties.minor;
  facts.multiprocessors = properties.multiProcessorCount;
  facts.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  facts.l2_bytes = properties.l2CacheSize;
  facts.shared_bytes_per_block = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin);
  facts.driver_version = driver_version;
  return facts;
}

}  // namespace

bool in_this_build() { return true; }

Result<std::vector<DeviceFacts>> find_devices() {
  int driver_version = 0, runtime_version = 0, count = 0;
  cudaRuntimeGetVersion(&runtime_version);
  if (cudaDriverGetVersion(&driver_version) != cudaSuccess || driver_version == 0) {
    return fail(ErrorKind::not_found, "no NVIDIA driver on this machine (libcuda.so.1 was not found)");
  }
  if (driver_version / 1000 < runtime_version / 1000) {
    return fail(ErrorKind::unsupported, "the NVIDIA driver is too old: it speaks CUDA {}, this build needs {} or later",
                version_name(driver_version), version_name(runtime_version / 1000 * 1000));
  }
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    return fail(ErrorKind::not_found, "the NVIDIA driver shows no device: {}",
                error == cudaSuccess ? "the list is empty" : cudaGetErrorString(error));
  }
  std::vector<DeviceFacts> devices;
  for (int index = 0; index < count; ++index) {
    SPLASH_TRY(DeviceFacts facts, read_device(index, driver_version));
    devices.push_back(std::move(facts));
  }
  return devices;
}

Status read_memory(DeviceFacts& device) {
  std::size_t free_bytes = 0, total_bytes = 0;
  cudaError_t error = cudaSetDevice(device.index);
  if (error == cudaSuccess) error = cudaMemGetInfo(&free_bytes, &total_bytes);
  if (error != cudaSuccess) {
    return fail(ErrorKind::io, "{} does not answer: {}", describe(device), cudaGetErrorString(error));
  }
  device.free_bytes = static_cast<std::int64_t>(free_bytes);
  device.memory_bytes = static_cast<std::int64_t>(total_bytes);
  return {};
}

}  // namespace splash::cuda
