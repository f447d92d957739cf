// What NVIDIA hardware this machine offers, found at run time: the binary links no driver library, so it starts on
// machines without one and says why the backend is absent.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace splash::cuda {

// Which kernels a device runs. Everything that depends on the architecture asks for this, through Stream::portable().
enum class Kernels {
  none,      // below compute capability 8.0
  portable,  // 8.0 and later: mma.sync, cp.async. Code for sm_80, which 8.x runs; drivers translate it for what came later
  hopper,    // 9.0: wgmma, bulk copies, clusters, dependent launches. Code for sm_90a, which runs nowhere else
};
// By compute capability alone. In a build that proves the portable kernels (SPLASH_CUDA_PROVE_PORTABLE) a Hopper GPU takes
// them with SPLASH_CUDA_PATH=portable in the environment; elsewhere what both kinds of devices share is Hopper's code there.
struct DeviceFacts;
Kernels kernels_for(const DeviceFacts& device);

struct DeviceFacts {
  int index = 0;  // as the driver counts them
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t free_bytes = 0;  // after read_memory
  std::int64_t l2_bytes = 0;
  std::int64_t shared_bytes_per_block = 0;  // the opt-in limit
  int driver_version = 0;                   // 13000 = CUDA 13.0
};

// Whether this build has the CUDA backend at all.
bool in_this_build();

// All devices the driver shows. An error says what is missing: no driver, a driver older than the runtime this binary
// carries, no device.
Result<std::vector<DeviceFacts>> find_devices();

// Whether this build has code for the device; the error names both architectures.
Status supported(const DeviceFacts& device);

// The device of that index; for -1 the first that runs Hopper's kernels, or else the first supported one. An index that is not there gets the range.
Result<DeviceFacts> choose_device(int index);
Result<DeviceFacts> choose_from(const std::vector<DeviceFacts>& devices, int index);

// What a driver answers, and what find_devices() makes of it.
struct DriverAnswer {
  int driver_version = 0;   // 0: there is no driver
  int runtime_version = 0;  // of this binary
  std::string complaint;    // why it shows no device
  std::vector<DeviceFacts> devices;
};
Result<std::vector<DeviceFacts>> devices_of(DriverAnswer answer);

// What is free now. Opens the device, which costs a moment and some of its memory.
Status read_memory(DeviceFacts& device);

std::string describe(const DeviceFacts& device);
std::string version_name(int version);  // 13000: "13.0"

}  // namespace splash::cuda
