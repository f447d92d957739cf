#include "backend/cuda/facts.h"

namespace splash::cuda {

std::string version_name(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

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
