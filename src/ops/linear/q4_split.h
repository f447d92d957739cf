// How the tiles of a 4-bit linear of few rows are dealt to its blocks: pure, the same on host and device.
#pragma once

namespace splash::ops {

// A launch is row_blocks * tiles_k tiles. The first `common` row blocks are added up by several blocks each: number b
// of `sharing` takes of their tiles, in a row, those from b / sharing of them on, up to where the next begins. Then
// each of `blocks` has `whole` row blocks for itself. Divisions by what is the same for the whole launch are
// multiplications: in a kernel a division is some twenty instructions that wait for each other, in code that a block
// runs once (decision 0022).
struct Q4Split {
  // Of a common row block. Half of them are read at once (Q4Finish).
  static constexpr unsigned most_sharers = 14;
  // A second row block cut by the block's range costs as much as so many tiles more: its sums have to meet in the
  // middle of the block's work, and at the end two parts are waited for (decision 0023).
  static constexpr unsigned second_part = 7;

  unsigned blocks = 0;  // each has at least one tile
  unsigned whole = 0;
  unsigned common = 0, sharing = 0;
  unsigned sharers = 0;                     // of each common row block, where all have as many; else 0
  unsigned finishers = 0;                   // of each: blocks without common tiles that finish it; 0: its sharers do
  unsigned share = 0, rest = 0;             // share * sharing + rest common tiles
  unsigned by_sharing = 0, by_tiles_k = 0;  // 2^32 / divisor, rounded up; 0: the divisor is one

  Q4Split() = default;
  // Every block has the same number of row blocks for itself; those left over are cut into equal parts, so that a block
  // has one of them at most. Where that were too uneven a deal, they and one row block more of each are cut anywhere
  // (stream-K).
  constexpr Q4Split(int row_blocks, int tiles_k, int most_blocks) {
    const auto all = static_cast<unsigned>(row_blocks), k = static_cast<unsigned>(tiles_k),
               most = static_cast<unsigned>(most_blocks);
    const unsigned own = all / most, left = all % most;
    const unsigned parts = left == 0 ? 0 : least(least(most / left, most_sharers), k);  // of each that is left over
    const unsigned largest = own * k + (parts == 0 ? 0 : (k + parts - 1) / parts);
    if (largest <= (all * k + most - 1) / most + second_part) {
      deal(own, own > 0 ? most : left * parts, left, left * parts, k);
      sharers = parts;
      finishers = own > 0 && parts > 1 ? (blocks - sharing) / left : 0;
    } else {
      const unsigned fewer = own > 0 ? own - 1 : 0, dealt = all - fewer * most, dealing = least(dealt * k, most);
      deal(fewer, dealing, dealt, dealing, k);
    }
  }

  // Whether the multiplications are exact: dividend * divisor < 2^32 for whatever is divided.
  static constexpr bool fits(long long row_blocks, long long tiles_k, long long most_blocks) {
    return row_blocks * tiles_k * tiles_k < (1LL << 32) && most_blocks * most_blocks * most_blocks < (1LL << 32);
  }

  // The first of a block's common tiles; their number for a block that has none and for the one past the last.
  constexpr int begin(unsigned block) const {
    const unsigned at = least(block, sharing);
    return static_cast<int>(at * share + divide(at * rest, by_sharing));
  }
  // The row block that has a common tile.
  constexpr int row_block(int tile) const {
    return static_cast<int>(divide(static_cast<unsigned>(tile), by_tiles_k));
  }
  // The first row block that a block has for itself; the next one is `blocks` further.
  constexpr int own_row_block(unsigned block) const { return static_cast<int>(common + block); }

 private:
  constexpr void deal(unsigned own, unsigned of_blocks, unsigned of_common, unsigned of_sharing, unsigned tiles_k) {
    whole = own, blocks = of_blocks, common = of_common, sharing = of_sharing;
    by_tiles_k = inverse(tiles_k);
    if (sharing == 0) return;
    const unsigned tiles = common * tiles_k;
    share = tiles / sharing, rest = tiles % sharing, by_sharing = inverse(sharing);
  }
  static constexpr unsigned least(unsigned a, unsigned b) { return a < b ? a : b; }
  static constexpr unsigned inverse(unsigned divisor) {
    return static_cast<unsigned>(((1ULL << 32) + divisor - 1) / divisor);
  }
  static constexpr unsigned divide(unsigned dividend, unsigned by) {
    return by == 0 ? dividend : static_cast<unsigned>((static_cast<unsigned long long>(dividend) * by) >> 32);
  }
};

}  // namespace splash::ops
