#include "backend/cpu/simd_scalar.h"
#include "ops/linear/linear_lanes.h"

namespace splash::ops {
namespace {

inline constexpr int q4_tile_rows = 4, wide_tile_rows = 2;

using Shorts = std::int16_t __attribute__((vector_size(16)));

// Products of a code and an activation are at most 15 * 127 = 1,905: sixteen of them fit 16 bits (30,480), which is what
// baseline SSE2 multiplies well.
template <int R>
inline void dot_tile(const unsigned char* tile, const std::int8_t* codes, LanesInt (&dots)[R]) {
  std::int16_t weights[64][16];  // [input][output]
  for (int line = 0; line < 8; ++line) {
    for (int j = 0; j < 4; ++j) {
      for (int n = 0; n < 16; ++n) {
        const unsigned byte = tile[line * 64 + n * 4 + j];
        weights[line * 8 + j][n] = static_cast<std::int16_t>(byte & 15u);
        weights[line * 8 + 4 + j][n] = static_cast<std::int16_t>(byte >> 4);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    std::int32_t sums[16] = {};
    for (int quarter = 0; quarter < 4; ++quarter) {
      Shorts low = {}, high = {};
      for (int k = quarter * 16; k < quarter * 16 + 16; ++k) {
        Shorts w[2];
        __builtin_memcpy(w, weights[k], sizeof w);
        low += w[0] * static_cast<std::int16_t>(codes[64 * r + k]);
        high += w[1] * static_cast<std::int16_t>(codes[64 * r + k]);
      }
      for (int n = 0; n < 8; ++n) {
        sums[n] += low[n];
        sums[8 + n] += high[n];
      }
    }
    __builtin_memcpy(&dots[r], sums, sizeof sums);
  }
}

}  // namespace
}  // namespace splash::ops

#include "ops/linear/linear_generic.h"

namespace splash::ops {
constinit const LinearKernels linear_scalar = linear_kernels;
}  // namespace splash::ops
