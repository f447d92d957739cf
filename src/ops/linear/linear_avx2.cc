#include "backend/cpu/simd_avx2.h"
#include "ops/linear/linear_lanes.h"

namespace splash::ops {
namespace {

inline constexpr int q4_tile_rows = 4, wide_tile_rows = 6;

// Four activations to all lanes: a load that needs no other port (set1_epi32 goes through a general register).
inline __m256i broadcast_quad(const std::int8_t* p) {
  return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(p)));
}

// The empty statement fixes the order of the additions: left to itself the compiler adds the products of a line first, which
// takes more registers than there are, and keeps half of the sums in memory (a fifth of the time).
inline void add_products(__m256i& sum, __m256i codes, __m256i x) {
  sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, x));
  asm("" : "+x"(sum));
}

// vpmaddubsw adds two products of a code (<= 15) and an activation (|x| <= 127, or 128 from NaN input): 3,840 at most.
// Eight of those fit 16 bits (30,720), so half a tile accumulates in 16 bits before vpmaddwd widens: 24 products a cycle
// against 16 with a widening at every step.
template <int R>
inline void dot_tile(const unsigned char* tile, const std::int8_t* codes, LanesInt (&dots)[R]) {
  const __m256i nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  // Not unrolled: eight sums, four operands and the activation fill the sixteen registers, and a longer body makes the
  // compiler move loads up and spill.
#pragma GCC unroll 1
  for (int half = 0; half < 2; ++half) {
    __m256i sums[R][2] = {};
#pragma GCC unroll 1
    for (int line = half * 4; line < half * 4 + 4; ++line) {
      const auto* bytes = reinterpret_cast<const __m256i*>(tile + line * 64);
      const __m256i low[2] = {_mm256_and_si256(bytes[0], nibble), _mm256_and_si256(bytes[1], nibble)};
      const __m256i high[2] = {_mm256_and_si256(_mm256_srli_epi16(bytes[0], 4), nibble),
                               _mm256_and_si256(_mm256_srli_epi16(bytes[1], 4), nibble)};
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m256i x_low = broadcast_quad(codes + 64 * r + 8 * line);
        add_products(sums[r][0], low[0], x_low);
        add_products(sums[r][1], low[1], x_low);
        const __m256i x_high = broadcast_quad(codes + 64 * r + 8 * line + 4);
        add_products(sums[r][0], high[0], x_high);
        add_products(sums[r][1], high[1], x_high);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int part = 0; part < 2; ++part) {
        const auto wide = (simd::VecInt)_mm256_madd_epi16(sums[r][part], ones);
        dots[r].part[part] = half == 0 ? wide : dots[r].part[part] + wide;
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
