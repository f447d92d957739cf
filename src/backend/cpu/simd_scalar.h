// Four floats at a time in the compiler's portable vector form: SSE2 on any x86-64, NEON on Arm, no flags needed.
// Everything is in an unnamed namespace: no function compiled for one instruction set can be linked into another.
#pragma once

#include <cstdint>

namespace splash::simd {
namespace {

inline constexpr int width = 4;
using Vec = float __attribute__((vector_size(16)));
using VecInt = std::int32_t __attribute__((vector_size(16)));

inline Vec set(float x) { return Vec{x, x, x, x}; }
// Without a fused instruction this is two roundings; scalar results therefore differ from the other sets' in last bits.
inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
inline float reduce_add(Vec v) { return (v[0] + v[2]) + (v[1] + v[3]); }
inline float reduce_max(Vec v) {
  const float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
  return a > b ? a : b;
}
// Of two numbers; a NaN in b is passed on, a NaN in a is not.
inline Vec max(Vec a, Vec b) { return a > b ? a : b; }
inline Vec min(Vec a, Vec b) { return a < b ? a : b; }
inline VecInt max(VecInt a, VecInt b) { return a > b ? a : b; }
inline VecInt min(VecInt a, VecInt b) { return a < b ? a : b; }
inline VecInt bits_of(Vec v) { return (VecInt)v; }
inline Vec floats_of(VecInt v) { return (Vec)v; }
inline Vec to_float(VecInt v) { return __builtin_convertvector(v, Vec); }
inline Vec load_bf16(const std::uint16_t* p) {
  const VecInt bits = {p[0], p[1], p[2], p[3]};
  return (Vec)(bits << 16);
}
inline Vec load_int8(const std::int8_t* p) {
  const VecInt values = {p[0], p[1], p[2], p[3]};
  return to_float(values);
}
// Lanes with |n| <= 127 as bytes.
inline void store_int8(std::int8_t* p, VecInt n) {
  for (int i = 0; i < width; ++i) p[i] = static_cast<std::int8_t>(n[i]);
}
inline void store_int16(std::int16_t* p, VecInt n) {
  for (int i = 0; i < width; ++i) p[i] = static_cast<std::int16_t>(n[i]);
}
// Eight-bit pairs widened to 16 bits: lane i of dot_pairs adds a[i][0] * b[i][0] + a[i][1] * b[i][1], exactly.
struct Pairs {
  VecInt low, high;
};
inline Pairs load_pairs(const std::int8_t* p) {
  return {VecInt{p[0], p[2], p[4], p[6]}, VecInt{p[1], p[3], p[5], p[7]}};
}
inline Pairs set_pairs(std::int32_t both) {
  return {VecInt{} + static_cast<std::int16_t>(both & 0xffff), VecInt{} + (both >> 16)};
}
inline VecInt dot_pairs(VecInt sum, Pairs a, Pairs b) { return sum + (a.low * b.low + a.high * b.high); }
inline bool any(VecInt mask) { return (mask[0] | mask[1] | mask[2] | mask[3]) != 0; }

}  // namespace
}  // namespace splash::simd

#include "backend/cpu/simd_common.h"
