// Fills strips of 16 rows (weight.h) from the rows of a source matrix.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bf16.h"
#include "pack/weight.h"

namespace splash::pack {

// Rounds one group of 64 values by the MLX rule (spec/qwen-models.md 4.2, mlx/backend/cpu/quantized.cpp), in float32.
// Codes come from the unrounded scale and bias; what is stored is their bf16 rounding. False when a value or the
// result is not finite.
struct Q4Group {
  std::array<std::uint8_t, tile_cols> codes;
  bf16 scale;
  bf16 bias;
};
bool quantise_group(std::span<const float, tile_cols> values, Q4Group& group);

// The eight codes of a line and row: MLX keeps input 8w + j in bits 4j of word w; a tile's byte j holds inputs j and
// 4 + j. Both are the same 32 bits in another order.
inline std::uint32_t tile_line_of_mlx_word(std::uint32_t word) {
  const auto spread = [](std::uint32_t nibbles) {  // four nibbles to the low halves of four bytes
    nibbles = (nibbles | nibbles << 8) & 0x00ff00ffu;
    return (nibbles | nibbles << 4) & 0x0f0f0f0fu;
  };
  return spread(word & 0xffffu) | spread(word >> 16) << 4;
}

// Values of bf16 numbers at any address.
void read_bf16(const std::byte* from, std::span<float> out);

// Writes row `row` (0..15) of a tile.
void put_group(std::byte* tile, int row, const Q4Group& group);

// Writes the values of row `row` for the inputs from `first` on into a strip of any format (q4: whole groups). False
// when a value is not finite.
bool put_values(std::byte* strip, Format format, int row, int first, std::span<const float> values);

}  // namespace splash::pack
