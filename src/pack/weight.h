// Views of weights as they lie in a pack (docs/pack-format.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bf16.h"
#include "base/check.h"

namespace splash::pack {

// A matrix [rows, cols] stored as strips of 16 output rows; rows are zero padded to a multiple of 16.
//   q4    tiles of 16 rows x 64 inputs, 576 bytes: eight 64-byte lines, line i holds for each row r at 4r..4r+3 bytes
//         whose byte j has input 8i+j in the low and input 8i+4+j in the high nibble; then 16 bf16 scales, then 16 bf16
//         biases. w = code * scale + bias. cols % 64 == 0.
//   bf16  per strip, for each input k the 16 rows' values: element (n, k) at ((n / 16) * cols + k) * 16 + n % 16.
//   f32   the same with floats.
enum class Format : std::uint8_t { q4, bf16, f32 };

inline constexpr int strip_rows = 16;
inline constexpr int tile_cols = 64;
inline constexpr int tile_bytes = 576;
inline constexpr int tile_scales_offset = 512;
inline constexpr int tile_biases_offset = 544;

struct Weight {
  Format format = Format::q4;
  int rows = 0;  // N, unpadded
  int cols = 0;  // K
  const std::byte* data = nullptr;  // aligned to 64 bytes at least

  int strips() const { return (rows + strip_rows - 1) / strip_rows; }
  // Bytes of one strip of 16 rows, and of all of them.
  std::int64_t strip_bytes() const {
    if (format == Format::q4) return std::int64_t{cols} / tile_cols * tile_bytes;
    return std::int64_t{cols} * strip_rows * (format == Format::bf16 ? 2 : 4);
  }
  std::int64_t bytes() const { return strips() * strip_bytes(); }
};

// One weight by its definition: the scalar truth that every kernel is checked against.
inline float weight_at(const Weight& weight, int n, int k) {
  const std::byte* strip = weight.data + n / strip_rows * weight.strip_bytes();
  const int row = n % strip_rows;
  switch (weight.format) {
    case Format::q4: {
      const std::byte* tile = strip + k / tile_cols * tile_bytes;
      const int in_tile = k % tile_cols;
      const int line = in_tile / 8, j = in_tile % 4;
      const auto byte = static_cast<unsigned>(tile[line * 64 + row * 4 + j]);
      const unsigned code = in_tile % 8 < 4 ? byte & 15u : byte >> 4;
      const auto* scales = reinterpret_cast<const bf16*>(tile + tile_scales_offset);
      const auto* biases = reinterpret_cast<const bf16*>(tile + tile_biases_offset);
      return static_cast<float>(code) * to_float(scales[row]) + to_float(biases[row]);
    }
    case Format::bf16:
      return to_float(reinterpret_cast<const bf16*>(strip)[std::int64_t{k} * strip_rows + row]);
    case Format::f32:
      return reinterpret_cast<const float*>(strip)[std::int64_t{k} * strip_rows + row];
  }
  SPLASH_CHECK(false, "unknown weight format");
}

// A row-major table that is gathered, never multiplied: the selector's codebooks.
struct Table {
  Format format = Format::bf16;  // bf16 or f32
  int rows = 0;
  int cols = 0;
  const std::byte* data = nullptr;

  float at(int row, int col) const {
    const std::int64_t index = std::int64_t{row} * cols + col;
    return format == Format::bf16 ? to_float(reinterpret_cast<const bf16*>(data)[index])
                                  : reinterpret_cast<const float*>(data)[index];
  }
};

}  // namespace splash::pack
