// The order of a 4-bit matrix in device memory: as many bytes as in the pack, in another order.
//
// Tiles of a matrix: in groups of eight strips, tile by tile: [group][k][strip of the group], the last group with what
// strips there are. So whatever part of K a block takes of a group lies in one piece, which one copy brings.
//
// A tile (pack/weight.h): a thread of a warp finds all its codes in one 16-byte word and the scales and biases of its
// two rows in one 8-byte word.
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

// Where a matrix's tiles lie: K / 64 `tiles_k` of each of `strips` strips. Offsets are in tiles.
struct Q4Order {
  static constexpr int group = 8;  // strips
  int strips = 0, tiles_k = 0;

  constexpr int left(int index) const { return strips - index * group; }  // strips from a group on; negative past the end
  constexpr bool whole(int index) const { return left(index) >= group; }
  constexpr int group_strips(int index) const { return whole(index) ? group : left(index); }
  // Of a whole group.
  constexpr std::int64_t group_bytes() const { return std::int64_t{group} * tiles_k * Q4Tile::bytes; }
  // Of a group, and between neighbouring k of a strip there.
  constexpr std::int64_t group_begin(int index) const { return static_cast<std::int64_t>(index) * group * tiles_k; }
  constexpr int step(int strip) const { return group_strips(strip / group); }
  constexpr std::int64_t at(int strip, int k) const {
    return group_begin(strip / group) + static_cast<std::int64_t>(k) * step(strip) + strip % group;
  }
};

// One tile there and back. `from` and `to` must not overlap.
inline void to_device_tile(const std::byte* from, std::byte* to) {
  for (int half = 0; half < Q4Tile::halves; ++half) std::memcpy(to + 2 * half, from + 2 * Q4Tile::source(half), 2);
}
inline void from_device_tile(const std::byte* from, std::byte* to) {
  for (int half = 0; half < Q4Tile::halves; ++half) std::memcpy(to + 2 * Q4Tile::source(half), from + 2 * half, 2);
}

// A whole matrix.
inline void to_device_order(Q4Order order, const std::byte* from, std::byte* to) {
  for (int strip = 0; strip < order.strips; ++strip) {
    for (int k = 0; k < order.tiles_k; ++k, from += Q4Tile::bytes)
      to_device_tile(from, to + order.at(strip, k) * Q4Tile::bytes);
  }
}

}  // namespace splash::ops
