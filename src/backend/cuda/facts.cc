#include "backend/cuda/facts.h"

#include <cuda_runtime_api.h>

namespace splash::cuda {
namespace {

std::string version_name(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

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

Status supported(const DeviceFacts& device) {
  if (device.compute_major == 9 && device.compute_minor == 0) return {};
  return fail(ErrorKind::unsupported, "{} has compute capability {}.{}; this build has kernels for 9.0 (Hopper) only",
              device.name, device.compute_major, device.compute_minor);
}

Result<DeviceFacts> choose_device(int index) {
  SPLASH_TRY(const std::vector<DeviceFacts> devices, find_devices());
  if (index >= static_cast<int>(devices.size())) {
    return fail(ErrorKind::not_found, "there is no CUDA device {}; this machine has {}", index, devices.size());
  }
  if (index >= 0) {
    SPLASH_TRY_STATUS(supported(devices[static_cast<std::size_t>(index)]));
    return devices[static_cast<std::size_t>(index)];
  }
  for (const DeviceFacts& device : devices) {
    if (supported(device)) return device;
  }
  return tl::unexpected(supported(devices.front()).error());
}

std::string describe(const DeviceFacts& device) {
  return fmt::format("{} (device {}, compute {}.{}, {} multiprocessors, {:.0f} GiB, driver CUDA {})", device.name,
                     device.index, device.compute_major, device.compute_minor, device.multiprocessors,
                     static_cast<double>(device.memory_bytes) / (1 << 30), version_name(device.driver_version));
}

}  // namespace splash::cuda
