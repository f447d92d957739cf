// Eight floats at a time: AVX2 with FMA. Unnamed namespace: see simd_scalar.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace splash::simd {
namespace {

inline constexpr int width = 8;
using Vec = float __attribute__((vector_size(32)));
using VecInt = std::int32_t __attribute__((vector_size(32)));

inline Vec set(float x) { return _mm256_set1_ps(x); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline float reduce_add(Vec v) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
inline float reduce_max(Vec v) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}
// Of two numbers; a NaN in b is passed on, a NaN in a is not.
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline VecInt max(VecInt a, VecInt b) { return (VecInt)_mm256_max_epi32((__m256i)a, (__m256i)b); }
inline VecInt min(VecInt a, VecInt b) { return (VecInt)_mm256_min_epi32((__m256i)a, (__m256i)b); }
inline VecInt bits_of(Vec v) { return (VecInt)v; }
inline Vec floats_of(VecInt v) { return (Vec)v; }
inline Vec to_float(VecInt v) { return _mm256_cvtepi32_ps((__m256i)v); }
inline Vec load_bf16(const std::uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline Vec load_int8(const std::int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
// Lanes with |n| <= 127 as bytes.
inline void store_int8(std::int8_t* p, VecInt n) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)n), _mm256_extracti128_si256((__m256i)n, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}
inline void store_int16(std::int16_t* p, VecInt n) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)n), _mm256_extracti128_si256((__m256i)n, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), words);
}
// Eight-bit pairs widened to 16 bits: lane i of dot_pairs adds a[i][0] * b[i][0] + a[i][1] * b[i][1], exactly.
using Pairs = __m256i;
inline Pairs load_pairs(const std::int8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Pairs set_pairs(std::int32_t both) { return _mm256_set1_epi32(both); }
inline VecInt dot_pairs(VecInt sum, Pairs a, Pairs b) { return sum + (VecInt)_mm256_madd_epi16(a, b); }
inline bool any(VecInt mask) { return _mm256_movemask_epi8((__m256i)mask) != 0; }

}  // namespace
}  // namespace splash::simd

#include "backend/cpu/simd_common.h"
