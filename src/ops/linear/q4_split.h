// How the tiles of a 4-bit linear of few rows are dealt to its blocks (stream-K): pure, the same on host and device.
#pragma once

namespace splash::ops {

// A launch is row_blocks * tiles_k tiles in a row; block b of `blocks` takes those from units * b / blocks on, up to where
// the next begins. Divisions by what is the same for the whole launch are multiplications: in a kernel a division is some
// twenty instructions that wait for each other, in code that a block runs once (decision 0022).
struct Q4Split {
  unsigned units = 0;                      // tiles, of all row blocks
  unsigned blocks = 0;                     // each has at least one tile
  unsigned share = 0, rest = 0;            // units = share * blocks + rest
  unsigned by_blocks = 0, by_tiles_k = 0;  // 2^32 / divisor, rounded up; 0: the divisor is one

  Q4Split() = default;
  constexpr Q4Split(int row_blocks, int tiles_k, int most_blocks)
      : units(static_cast<unsigned>(row_blocks) * static_cast<unsigned>(tiles_k)),
        blocks(units < static_cast<unsigned>(most_blocks) ? units : static_cast<unsigned>(most_blocks)),
        share(units / blocks),
        rest(units % blocks),
        by_blocks(inverse(blocks)),
        by_tiles_k(inverse(static_cast<unsigned>(tiles_k))) {}

  // Whether the multiplications are exact: dividend * divisor < 2^32 for whatever is divided.
  static constexpr bool fits(long long row_blocks, long long tiles_k, long long most_blocks) {
    return row_blocks * tiles_k * tiles_k < (1LL << 32) && most_blocks * most_blocks * most_blocks < (1LL << 32);
  }

  // The first tile of a block; `units` for the block past the last.
  constexpr int begin(unsigned block) const {
    return static_cast<int>(block * share + divide(block * rest, by_blocks));
  }
  // The row block that has a tile.
  constexpr int row_block(int tile) const {
    return static_cast<int>(divide(static_cast<unsigned>(tile), by_tiles_k));
  }

 private:
  static constexpr unsigned inverse(unsigned divisor) {
    return static_cast<unsigned>(((1ULL << 32) + divisor - 1) / divisor);
  }
  static constexpr unsigned divide(unsigned dividend, unsigned by) {
    return by == 0 ? dividend : static_cast<unsigned>((static_cast<unsigned long long>(dividend) * by) >> 32);
  }
};

}  // namespace splash::ops
