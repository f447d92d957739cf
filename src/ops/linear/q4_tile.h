// The order of a 4-bit tile (pack/weight.h) in device memory: the same 576 bytes, such that a thread of a warp finds
// all its codes in one 16-byte word and the scales and biases of its two rows in one 8-byte word.
//
// Lane 4g + t (g < 8, t < 4) multiplies rows g and g + 8 with lines t and 4 + t of the tile. Bytes 16 * lane and on:
// row g line t, row g + 8 line t, row g line 4 + t, row g + 8 line 4 + t. Bytes 512 + 8g and on: scale g, scale g + 8,
// bias g, bias g + 8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace splash::ops {

struct Q4Tile {
  static constexpr int bytes = 576;
  static constexpr int halves = bytes / 2;  // 16-bit units
  static constexpr int scales_offset = 512;

  // Where 16-bit unit `half` of the device's tile lies in the pack's tile.
  static constexpr int source(int half) {
    if (half >= scales_offset / 2) {
      const int g = (half - scales_offset / 2) / 4, which = half % 4;
      return scales_offset / 2 + which * 8 + g;  // scales of 16 rows, then biases
    }
    const int lane = half / 8, word = half / 2 % 4, g = lane / 4, t = lane % 4;
    const int line = word / 2 * 4 + t, row = g + word % 2 * 8;
    return (line * 16 + row) * 2 + half % 2;
  }
};

// One tile there and back. `from` and `to` must not overlap.
inline void to_device_tile(const std::byte* from, std::byte* to) {
  for (int half = 0; half < Q4Tile::halves; ++half) std::memcpy(to + 2 * half, from + 2 * Q4Tile::source(half), 2);
}
inline void from_device_tile(const std::byte* from, std::byte* to) {
  for (int half = 0; half < Q4Tile::halves; ++half) std::memcpy(to + 2 * Q4Tile::source(half), from + 2 * half, 2);
}

}  // namespace splash::ops
