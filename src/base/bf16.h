// bfloat16 as the upper half of a float32.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace splash {

struct bf16 {
  std::uint16_t bits = 0;
};

inline float to_float(bf16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }
inline float to_float(float value) { return value; }

// Round to nearest, ties to even; NaN stays NaN.
inline bf16 to_bf16(float value) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return {static_cast<std::uint16_t>(bits >> 16)};
}

// IEEE half precision to float32 (exact).
inline float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half} >> 15 << 31;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  const std::uint32_t fraction = half & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

}  // namespace splash
