#include "backend/cpu/simd_avx512vnni.h"
#include "ops/linear/linear_lanes.h"

namespace splash::ops {
namespace {

inline constexpr int q4_tile_rows = 8, wide_tile_rows = 12;

// Four activations to all lanes: folds into vpdpbusd as its broadcast memory operand.
inline __m512i broadcast_quad(const std::int8_t* p) {
  std::int32_t quad;
  __builtin_memcpy(&quad, p, sizeof quad);
  return _mm512_set1_epi32(quad);
}

// One 64-byte line holds two operands of vpdpbusd (low and high nibbles: 16 outputs x 4 inputs each); the activation is a
// broadcast memory operand. 16 instructions per row and tile, no horizontal sums.
template <int R>
inline void dot_tile(const unsigned char* tile, const std::int8_t* codes, LanesInt (&dots)[R]) {
  const __m512i nibble = _mm512_set1_epi8(15);
  __m512i sums[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sums[r] = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int line = 0; line < 8; ++line) {
    const __m512i bytes = _mm512_load_si512(tile + line * 64);
    const __m512i low = _mm512_and_si512(bytes, nibble);
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      sums[r] = _mm512_dpbusd_epi32(sums[r], low, broadcast_quad(codes + 64 * r + 8 * line));
      sums[r] = _mm512_dpbusd_epi32(sums[r], high, broadcast_quad(codes + 64 * r + 8 * line + 4));
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) dots[r].part[0] = (simd::VecInt)sums[r];
}

}  // namespace
}  // namespace splash::ops

#include "ops/linear/linear_generic.h"

namespace splash::ops {
constinit const LinearKernels linear_avx512vnni = linear_kernels;
}  // namespace splash::ops
