#include "backend/cuda/facts.h"

namespace splash::cuda {

std::string version_name(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

Status supported(const DeviceFacts& device) {
  if (device.compute_major == 9 && device.compute_minor == 0) return {};
  return fail(ErrorKind::unsupported, "{} has compute capability {}.{}; this build has kernels for 9.0 (Hopper) only",
              device.name, device.compute_major, device.compute_minor);
}

Result<std::vector<DeviceFacts>> devices_of(DriverAnswer answer) {
  if (answer.driver_version == 0) {
    return fail(ErrorKind::not_found, "no NVIDIA driver on this machine (libcuda.so.1 was not found)");
  }
  if (answer.driver_version / 1000 < answer.runtime_version / 1000) {
    return fail(ErrorKind::unsupported,
                "the NVIDIA driver is too old: it speaks CUDA {}, this build needs {} or later; update the driver",
                version_name(answer.driver_version), version_name(answer.runtime_version / 1000 * 1000));
  }
  if (answer.devices.empty()) {
    return fail(ErrorKind::not_found, "the NVIDIA driver shows no device: {}",
                answer.complaint.empty() ? "the list is empty" : answer.complaint);
  }
  return std::move(answer.devices);
}

Result<DeviceFacts> choose_from(const std::vector<DeviceFacts>& devices, int index) {
  const int count = static_cast<int>(devices.size());
  if (index >= count) {
    return fail(ErrorKind::not_found, "there is no CUDA device {}: this machine has {}", index,
                count == 1 ? "device 0 alone" : fmt::format("devices 0 to {}", count - 1));
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
