// Reading tiles in the device's order (q4_tile.h) in kernels.
#pragma once

#include "backend/cuda/ptx.cuh"
#include "ops/linear/q4_tile.h"

namespace splash::ops {

// Codes, scales and biases of a tile as a lane needs them (q4_tile.h).
struct Q4Lines {
  uint4 codes;
  uint2 numbers;

  Q4Lines() = default;
  __device__ __forceinline__ Q4Lines(const uint4& tile_codes, const uint2& tile_numbers)
      : codes(tile_codes), numbers(tile_numbers) {}
  __device__ __forceinline__ Q4Lines(const std::uint8_t* tile, int lane)
      : codes(*reinterpret_cast<const uint4*>(tile + lane * 16)),
        numbers(*reinterpret_cast<const uint2*>(tile + Q4Tile::scales_offset + (lane >> 2) * 8)) {}
  // Operand A of the four products of 16 inputs.
  __device__ __forceinline__ void unpack(std::uint32_t (&a)[16]) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const std::uint32_t w0 = j ? codes.z : codes.x, w1 = j ? codes.w : codes.y;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[(j * 2 + i / 2) * 4 + i % 2 * 2] = cuda::codes_plus_128(w0 >> 4 * i);
        a[(j * 2 + i / 2) * 4 + i % 2 * 2 + 1] = cuda::codes_plus_128(w1 >> 4 * i);
      }
    }
  }
  // acc += scale * part + (bias - 128 * scale) * sum, all NT * 4 of each; rows of `sums` are alike.
  template <int N>
  __device__ __forceinline__ void add(const float (&part)[N], const float (&sums)[N], float (&acc)[N]) const {
    const float scale0 = __uint_as_float(numbers.x << 16), scale1 = __uint_as_float(numbers.x & 0xffff0000u);
    const float offset0 = fmaf(-128.0f, scale0, __uint_as_float(numbers.y << 16));
    const float offset1 = fmaf(-128.0f, scale1, __uint_as_float(numbers.y & 0xffff0000u));
#pragma unroll
    for (int n = 0; n < N; n += 4) {
      acc[n] = fmaf(scale0, part[n], fmaf(offset0, sums[n], acc[n]));
      acc[n + 1] = fmaf(scale0, part[n + 1], fmaf(offset0, sums[n + 1], acc[n + 1]));
      acc[n + 2] = fmaf(scale1, part[n + 2], fmaf(offset1, sums[n], acc[n + 2]));
      acc[n + 3] = fmaf(scale1, part[n + 3], fmaf(offset1, sums[n + 1], acc[n + 3]));
    }
  }
};

}  // namespace splash::ops
