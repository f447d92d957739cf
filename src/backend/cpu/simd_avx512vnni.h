// Sixteen floats at a time: AVX-512 F/BW/DQ/VL with VNNI. Unnamed namespace: see simd_scalar.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace splash::simd {
namespace {

inline constexpr int width = 16;
using Vec = float __attribute__((vector_size(64)));
using VecInt = std::int32_t __attribute__((vector_size(64)));

inline Vec set(float x) { return _mm512_set1_ps(x); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline float reduce_add(Vec v) {
  const __m256 sum = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
inline float reduce_max(Vec v) {
  const __m256 top = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}
// Of two numbers; a NaN in b is passed on, a NaN in a is not.
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline VecInt max(VecInt a, VecInt b) { return (VecInt)_mm512_max_epi32((__m512i)a, (__m512i)b); }
inline VecInt min(VecInt a, VecInt b) { return (VecInt)_mm512_min_epi32((__m512i)a, (__m512i)b); }
inline VecInt bits_of(Vec v) { return (VecInt)v; }
inline Vec floats_of(VecInt v) { return (Vec)v; }
inline Vec to_float(VecInt v) { return _mm512_cvtepi32_ps((__m512i)v); }
inline Vec load_bf16(const std::uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline Vec load_int8(const std::int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// Lanes with |n| <= 127 as bytes.
inline void store_int8(std::int8_t* p, VecInt n) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8((__m512i)n));
}
inline void store_int16(std::int16_t* p, VecInt n) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16((__m512i)n));
}
// Eight-bit pairs widened to 16 bits: lane i of dot_pairs adds a[i][0] * b[i][0] + a[i][1] * b[i][1], exactly.
using Pairs = __m512i;
inline Pairs load_pairs(const std::int8_t* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Pairs set_pairs(std::int32_t both) { return _mm512_set1_epi32(both); }
inline VecInt dot_pairs(VecInt sum, Pairs a, Pairs b) { return (VecInt)_mm512_dpwssd_epi32((__m512i)sum, a, b); }
inline bool any(VecInt mask) { return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0; }

}  // namespace
}  // namespace splash::simd

#include "backend/cpu/simd_common.h"
