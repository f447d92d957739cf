// The 16 outputs of a strip as vectors. Included after a simd header.
#pragma once

#include <cstdint>

namespace splash::ops {
namespace {

inline constexpr int lane_parts = 16 / simd::width;
struct Lanes {
  simd::Vec part[lane_parts];
};
struct LanesInt {
  simd::VecInt part[lane_parts];
};

}  // namespace
}  // namespace splash::ops
