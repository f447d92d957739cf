// Panel: a bf16 copy of a matrix in the order in which matrix units read it. It is the only form in which linears take
// their activations; whoever produces a row of 64-column groups writes it on the side (panel.cuh).
//
// Rows lie in tiles of `row_tile` (8 .. 256), tile by tile; a tile holds, for each group of 64 columns, row_tile / 8
// blocks of 1024 bytes. Rows past the end are never written: matrix units keep rows apart, so their garbage stays
// theirs. A block is 8 rows x 64 columns as eight 128-byte core matrices (8 rows x 16 bytes: what ldmatrix and wgmma
// read). The order of the 64 columns follows the weight tile, so that a thread's nibbles need no shuffle: column c of
// the group is element e = c % 8 of line l = c / 8; it lies in core matrix (l / 4) * 4 + (e & 1) * 2 + (e >> 2), 16-bit
// lane (l % 4) * 2 + ((e >> 1) & 1).
//
// Panels of up to 32 rows have sums, except on portable devices: behind the blocks of a group lies, for each row of the
// tile, the float32 sum of the group's 64 values as they stand in the panel. Linears of few rows would otherwise have
// the matrix unit add them up again in every block (decision 0018).
#pragma once

#include <cstddef>
#include <cstdint>

namespace splash::cuda {

struct Panel {
  std::byte* data = nullptr;
  int rows = 0;
  int cols = 0;      // a multiple of 64
  int row_tile = 0;  // 8, 16, 32, 64, 128 or 256
  bool sums = false;
  // A panel of gain * x whose rows still lack the factor 1 / rms(x): sums of squares [parts][32 rows] that whoever
  // multiplies the panel adds up (null: the panel is complete).
  const float* squares = nullptr;
  int square_parts = 0;
  float norm_eps = 0;

  static constexpr int group = 64;
  static constexpr int block_bytes = 1024;
  static constexpr int most_rows_with_sums = 32;

  constexpr int group_bytes() const { return row_tile / 8 * block_bytes + (sums ? row_tile * 4 : 0); }
  constexpr std::int64_t tile_bytes() const { return std::int64_t{cols} / group * group_bytes(); }
  constexpr int tiles() const { return (rows + row_tile - 1) / row_tile; }
  constexpr std::int64_t bytes() const { return tiles() * tile_bytes(); }
};

// Passes of this many rows and more are of one kind: a row's bits do not depend on how many there are (decision 0008).
inline constexpr int wide_pass_rows = 65;

// Decode widths get a tile of their own so that a narrow step moves few bytes. Prefill takes 256 rows (weights are
// unpacked half as often, and the L2 delivers fewer bytes per product) unless half a tile or more would be padding.
constexpr int panel_row_tile(int rows) {
  for (int tile : {8, 16, 32, 64, 128}) {
    if (rows <= tile) return tile;
  }
  return (rows - 1) % 256 < 128 ? 128 : 256;
}

}  // namespace splash::cuda
