#include "backend/cpu/simd_avx2.h"
#include "ops/linear/linear_lanes.h"

namespace splash::ops {
namespace {

inline constexpr int q4_tile_rows = 4, wide_tile_rows = 6;

// vpmaddubsw adds two products of a code (<= 15) and an activation (|x| <= 127, or 128 from NaN input): 3,840 at most.
// Eight of those fit 16 bits (30,720), so half a tile accumulates in 16 bits before vpmaddwd widens: 24 products a cycle
// against 16 with a widening at every step.
template <int R>
inline void dot_tile(const unsigned char* tile, const std::int8_t* codes, LanesInt (&dots)[R]) {
  const __m256i nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    __m256i sums[R][2];
#pragma GCC unroll 4
    for (int line = half * 4; line < half * 4 + 4; ++line) {
      __m256i low[2], high[2];
#pragma GCC unroll 2
      for (int part = 0; part < 2; ++part) {
        const __m256i bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(tile + line * 64 + part * 32));
        low[part] = _mm256_and_si256(bytes, nibble);
        high[part] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        std::int32_t quads[2];
        __builtin_memcpy(quads, codes + 64 * r + 8 * line, sizeof quads);
        const __m256i x_low = _mm256_set1_epi32(quads[0]), x_high = _mm256_set1_epi32(quads[1]);
#pragma GCC unroll 2
        for (int part = 0; part < 2; ++part) {
          const __m256i first = _mm256_maddubs_epi16(low[part], x_low);
          sums[r][part] = line == half * 4 ? first : _mm256_add_epi16(sums[r][part], first);
          sums[r][part] = _mm256_add_epi16(sums[r][part], _mm256_maddubs_epi16(high[part], x_high));
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int part = 0; part < 2; ++part) {
        const __m256i wide = _mm256_madd_epi16(sums[r][part], ones);
        dots[r].part[part] = half == 0 ? (simd::VecInt)wide : dots[r].part[part] + (simd::VecInt)wide;
      }
    }
  }
}

}  // namespace
}  // namespace splash::ops

#include "ops/linear/linear_generic.h"

namespace splash::ops {
constinit const LinearKernels linear_avx2 = linear_kernels;
}  // namespace splash::ops
