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
    for (int j = 0; j < 2; ++j) unpack_half(j, *reinterpret_cast<std::uint32_t(*)[8]>(&a[j * 8]));
  }
  // Of the first two (j = 0) or the last two.
  __device__ __forceinline__ void unpack_half(int j, std::uint32_t (&a)[8]) const {
    const std::uint32_t w0 = j ? codes.z : codes.x, w1 = j ? codes.w : codes.y;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i / 2 * 4 + i % 2 * 2] = cuda::codes_plus_128(w0 >> 4 * i);
      a[i / 2 * 4 + i % 2 * 2 + 1] = cuda::codes_plus_128(w1 >> 4 * i);
    }
  }
  // acc += scale * part + (bias - 128 * scale) * sum of 8 tokens: rows g, g + 8, tokens 2t, 2t + 1.
  __device__ __forceinline__ void add(const float (&part)[4], const float2& sums, float (&acc)[4]) const {
    const float scale0 = __uint_as_float(numbers.x << 16), scale1 = __uint_as_float(numbers.x & 0xffff0000u);
    const float offset0 = fmaf(-128.0f, scale0, __uint_as_float(numbers.y << 16));
    const float offset1 = fmaf(-128.0f, scale1, __uint_as_float(numbers.y & 0xffff0000u));
    acc[0] = fmaf(scale0, part[0], fmaf(offset0, sums.x, acc[0]));
    acc[1] = fmaf(scale0, part[1], fmaf(offset0, sums.y, acc[1]));
    acc[2] = fmaf(scale1, part[2], fmaf(offset1, sums.x, acc[2]));
    acc[3] = fmaf(scale1, part[3], fmaf(offset1, sums.y, acc[3]));
  }
};

}  // namespace splash::ops
