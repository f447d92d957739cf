// Floats as unsigned numbers in the same order, for kernels that look for the largest.
#pragma once

#include <cmath>
#include <cstdint>

namespace splash::ops {

// NaN ranks as -infinity, -0 as 0. No float has the key 0: it may mean taken or absent.
__device__ __forceinline__ std::uint32_t key_of(float value) {
  if (isnan(value)) value = -INFINITY;
  const std::uint32_t bits = __float_as_uint(value + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float value_of(std::uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

}  // namespace splash::ops
