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
  DriverAnswer answer;
  cudaRuntimeGetVersion(&answer.runtime_version);
  if (cudaDriverGetVersion(&answer.driver_version) != cudaSuccess) answer.driver_version = 0;
  int count = 0;
  const cudaError_t error = answer.driver_version > 0 ? cudaGetDeviceCount(&count) : cudaSuccess;
  if (error != cudaSuccess) answer.complaint = cudaGetErrorString(error);
  for (int index = 0; error == cudaSuccess && index < count; ++index) {
    SPLASH_TRY(DeviceFacts facts, read_device(index, answer.driver_version));
    answer.devices.push_back(std::move(facts));
  }
  return devices_of(std::move(answer));
}

Result<DeviceFacts> choose_device(int index) {
  SPLASH_TRY(const std::vector<DeviceFacts> devices, find_devices());
  return choose_from(devices, index);
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
