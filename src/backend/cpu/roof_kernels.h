// The two loops a roof is measured with.
#pragma once

#include <cstdint>

namespace splash::cpu {

struct RoofKernels {
  std::uint64_t (*read)(const unsigned char* data, std::int64_t bytes);  // a multiple of 1024
  // Runs `rounds` of the widest 8-bit multiply-accumulate; returns the number of products.
  std::int64_t (*multiply)(std::int64_t rounds, std::uint64_t* result);
};
extern const RoofKernels roof_scalar, roof_avx2, roof_avx512vnni;

}  // namespace splash::cpu
