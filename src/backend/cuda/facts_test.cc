// Drivers and machines that are not here.
#include "backend/cuda/facts.h"

#include <gtest/gtest.h>

#include <cstdlib>

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
  const std::vector<DeviceFacts> devices{gpu(0, "T4", 7, 5), gpu(1, "A100", 8, 0), gpu(2, "H200", 9, 0),
                                         gpu(3, "H100", 9, 0)};
  EXPECT_EQ(choose_from(devices, -1)->index, 2) << "Hopper's kernels first";
  EXPECT_EQ(choose_from(devices, 1)->index, 1);
  EXPECT_EQ(choose_from({gpu(0, "T4", 7, 5), gpu(1, "RTX 3090", 8, 6), gpu(2, "RTX 4090", 8, 9)}, -1)->index, 1);
}

TEST(CudaFacts, KernelsByComputeCapability) {
  EXPECT_EQ(kernels_for(gpu(0, "H100", 9, 0)), Kernels::hopper);
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 6}, {8, 9}, {10, 0}, {12, 0}}) {
    EXPECT_EQ(kernels_for(gpu(0, "another", major, minor)), Kernels::portable) << major << '.' << minor;
  }
  EXPECT_EQ(kernels_for(gpu(0, "T4", 7, 5)), Kernels::none);
  EXPECT_NE(describe(gpu(0, "RTX 4090", 8, 9)).find("the portable kernels"), std::string::npos);
}

// What both kinds of devices share is Hopper's code on a Hopper GPU, clusters and all: beside the portable kernels it would
// fault. Only a program without Hopper's code can be told to take them.
TEST(CudaFacts, OnlyTheProofOfThePortableKernelsTakesThemOnHopper) {
#ifdef SPLASH_CUDA_PROVE_PORTABLE
  constexpr Kernels told = Kernels::portable;
#else
  constexpr Kernels told = Kernels::hopper;
#endif
  ASSERT_EQ(setenv("SPLASH_CUDA_PATH", "portable", 1), 0);
  EXPECT_EQ(kernels_for(gpu(0, "H100", 9, 0)), told);
  unsetenv("SPLASH_CUDA_PATH");
  EXPECT_EQ(kernels_for(gpu(0, "H100", 9, 0)), Kernels::hopper);
}

TEST(CudaFacts, AnOldArchitectureIsToldWhatIsNeeded) {
  const std::vector<DeviceFacts> devices{gpu(0, "T4", 7, 5)};
  for (const int index : {-1, 0}) {
    EXPECT_EQ(complaint(choose_from(devices, index)),
              "T4 has compute capability 7.5; the kernels need 8.0 or later (Ampere: A100, A10, RTX 30 and what came "
              "after them)");
  }
}

TEST(CudaFacts, ADeviceOutOfRangeGetsTheRange) {
  EXPECT_EQ(complaint(choose_from({gpu(0, "H200", 9, 0)}, 1)),
            "there is no CUDA device 1: this machine has device 0 alone");
  EXPECT_EQ(complaint(choose_from({gpu(0, "H200", 9, 0), gpu(1, "H200", 9, 0)}, 7)),
            "there is no CUDA device 7: this machine has devices 0 to 1");
}

}  // namespace
}  // namespace splash::cuda
