#include "backend/cuda/facts.h"

#include <cstdlib>
#include <string_view>

namespace splash::cuda {

std::string version_name(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

Kernels kernels_for(const DeviceFacts& device) {
  if (device.compute_major < 8) return Kernels::none;
  if (device.compute_major != 9 || device.compute_minor != 0) return Kernels::portable;
#ifdef SPLASH_CUDA_PROVE_PORTABLE
  const char* forced = std::getenv("SPLASH_CUDA_PATH");
  if (forced && std::string_view(forced) == "portable") return Kernels::portable;
#endif
  return Kernels::hopper;
}

Status supported(const DeviceFacts& device) {
  if (kernels_for(device) != Kernels::none) return {};
  return fail(ErrorKind::unsupported,
              "{} has compute capability {}.{}; the kernels need 8.0 or later (Ampere: A100, A10, RTX 30 and what came "
              "after them)",
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
  for (const Kernels wanted : {Kernels::hopper, Kernels::portable}) {
    for (const DeviceFacts& device : devices) {
      if (kernels_for(device) == wanted) return device;
    }
  }
  return tl::unexpected(supported(devices.front()).error());
}

std::string describe(const DeviceFacts& device) {
  const Kernels kernels = kernels_for(device);
  return fmt::format("{} (device {}, compute {}.{}, {} multiprocessors, {:.0f} GiB, driver CUDA {}, {} kernels)",
                     device.name, device.index, device.compute_major, device.compute_minor, device.multiprocessors,
                     static_cast<double>(device.memory_bytes) / (1 << 30), version_name(device.driver_version),
                     kernels == Kernels::hopper     ? "Hopper's"
                     : kernels == Kernels::portable ? "the portable"
                                                    : "no");
}

}  // namespace splash::cuda
