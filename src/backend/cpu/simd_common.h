// What all instruction sets share, written on the compiler's vector type. Included by simd_<isa>.h, once per kernel file.
#pragma once

namespace splash::simd {
namespace {

inline Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }
inline Vec zero() { return Vec{}; }
inline Vec abs(Vec v) { return floats_of(bits_of(v) & 0x7fffffff); }
inline Vec select(VecInt mask, Vec yes, Vec no) { return mask ? yes : no; }
inline VecInt lane_ids() {  // 0, 1, ..
  VecInt ids;
  for (int lane = 0; lane < width; ++lane) ids[lane] = lane;
  return ids;
}

// The first `count` < width floats, the rest zero; and back.
inline Vec load_part(const float* p, int count) {
  float lanes[width] = {};
  for (int i = 0; i < count; ++i) lanes[i] = p[i];
  return load(lanes);
}
inline void store_part(float* p, Vec v, int count) {
  float lanes[width];
  store(lanes, v);
  for (int i = 0; i < count; ++i) p[i] = lanes[i];
}

// Adding 1.5 * 2^23 leaves round-to-nearest-even of a value below 2^22 in the low bits of the sum.
inline constexpr float round_magic = 12582912.0f;
inline constexpr std::int32_t round_magic_bits = 0x4b400000;
// Nearest integer, ties to even, clamped to +-limit. NaN gives +-limit, never undefined behaviour.
inline VecInt round_to_int(Vec v, int limit) {
  // Bits of positive sums ascend with the sum, those of negative ones would not: they are kept out before, NaN after.
  const VecInt n = bits_of(max(set(-static_cast<float>(limit)), v) + round_magic) - round_magic_bits;
  return max(-limit + VecInt{}, min(limit + VecInt{}, n));
}

// e^x. Range reduction x = n ln2 + r, |r| <= ln2 / 2, degree-6 polynomial for e^r, scaled by 2^n: relative error below
// 2e-7 for x in [-87.3, 88.3] (ops_conformance_test checks 5e-7, scalar included). Below -87.3 the result is 0, above
// 88.3 it stays at e^88.3 = 2.2e38, NaN stays NaN.
inline Vec exp(Vec x) {
  const Vec original = x;
  x = max(set(-87.3f), min(set(88.3f), x));
  const Vec shifted = fma(x, set(1.44269504088896341f), set(round_magic));
  const Vec n = shifted - round_magic;
  Vec r = fma(n, set(-0.693359375f), x);
  r = fma(n, set(2.12194440e-4f), r);
  Vec p = set(1.9875691500e-4f);
  p = fma(p, r, set(1.3981999507e-3f));
  p = fma(p, r, set(8.3334519073e-3f));
  p = fma(p, r, set(4.1665795894e-2f));
  p = fma(p, r, set(1.6666665459e-1f));
  p = fma(p, r, set(5.0000001201e-1f));
  p = fma(p, r * r, r) + 1.0f;
  // The sum's bits are the magic constant's plus n; shifting left by 23 drops the constant and leaves (n + 127) << 23.
  const Vec power = floats_of((bits_of(shifted) + 127) << 23);
  return select(original < -87.3f, zero(), p * power);
}
inline Vec sigmoid(Vec x) { return 1.0f / (1.0f + exp(-x)); }
inline Vec silu(Vec x) { return x / (1.0f + exp(-x)); }

}  // namespace
}  // namespace splash::simd
