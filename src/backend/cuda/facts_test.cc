// Drivers and machines that are not here.
#include "backend/cuda/facts.h"

#include <gtest/gtest.h>

namespace splash::cuda {
namespace {

DeviceFacts gpu(int index, const char* name, int major, int minor) {
  return {.index = index, .name = name, .compute_major = major, .compute_minor = minor, .driver_version = 13000};
}

std::string complaint(const auto& result) { return result ? "" : result.error().message; }

TEST(CudaFacts, NoDriver) {
  const auto found = devices_of({.runtime_version = 13000});
  EXPECT_EQ(complaint(found), "no NVIDIA driver on this machine (libcuda.so.1 was not found)");
}

TEST(CudaFacts, ADriverTooOldIsNamedWithWhatIsNeeded) {
  const auto found = devices_of({.driver_version = 12040, .runtime_version = 13010, .devices = {gpu(0, "H100", 9, 0)}});
  EXPECT_EQ(complaint(found),
            "the NVIDIA driver is too old: it speaks CUDA 12.4, this build needs 13.0 or later; update the driver");
  EXPECT_TRUE(devices_of({.driver_version = 13000, .runtime_version = 13010, .devices = {gpu(0, "H100", 9, 0)}}))
      << "minor versions of one major version go together";
}

TEST(CudaFacts, ADriverWithoutDevicesSaysWhy) {
  EXPECT_EQ(complaint(devices_of({.driver_version = 13000, .runtime_version = 13000, .complaint = "system not yet initialized"})),
            "the NVIDIA driver shows no device: system not yet initialized");
  EXPECT_EQ(complaint(devices_of({.driver_version = 13000, .runtime_version = 13000})),
            "the NVIDIA driver shows no device: the list is empty");
}

TEST(CudaFacts, TheFirstDeviceThatCanIsTaken) {
  const std::vector<DeviceFacts> devices{gpu(0, "A100", 8, 0), gpu(1, "H200", 9, 0), gpu(2, "H100", 9, 0)};
  EXPECT_EQ(choose_from(devices, -1)->index, 1);
  EXPECT_EQ(choose_from(devices, 2)->index, 2);
}

TEST(CudaFacts, AnotherArchitectureIsNamedWithOurs) {
  const std::vector<DeviceFacts> devices{gpu(0, "A100", 8, 0)};
  for (const int index : {-1, 0}) {
    EXPECT_EQ(complaint(choose_from(devices, index)),
              "A100 has compute capability 8.0; this build has kernels for 9.0 (Hopper) only");
  }
  EXPECT_FALSE(choose_from({gpu(0, "B200", 10, 0)}, -1)) << "code for sm_90a does not run on later architectures";
}

TEST(CudaFacts, ADeviceOutOfRangeGetsTheRange) {
  EXPECT_EQ(complaint(choose_from({gpu(0, "H200", 9, 0)}, 1)),
            "there is no CUDA device 1: this machine has device 0 alone");
  EXPECT_EQ(complaint(choose_from({gpu(0, "H200", 9, 0), gpu(1, "H200", 9, 0)}, 7)),
            "there is no CUDA device 7: this machine has devices 0 to 1");
}

}  // namespace
}  // namespace splash::cuda
