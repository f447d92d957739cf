// One launch of a 4-bit linear: up to four matrices that share their input, as one sequence of groups of strips.
#pragma once

#include "backend/cuda/panel.h"
#include "ops/linear/q4_split.h"
#include "ops/linear/q4_tile.h"

namespace splash::ops {

struct Q4Matrix {
  const std::uint8_t* tiles = nullptr;
  float* out = nullptr;
  std::int64_t out_stride = 0;  // elements between token rows
  int rows = 0;                 // N, unpadded
  int first_group = 0;          // in the launch's sequence
  int accumulate = 0;           // out += instead of out =
};

struct alignas(16) Q4Work {
  static constexpr int max_matrices = 4;
  Q4Matrix matrices[max_matrices];
  Q4Split split;  // few tokens
  int matrix_count = 0;
  int groups = 0;   // of eight strips, of all matrices; the last one of a matrix may have fewer
  int tiles_k = 0;  // K / 64
  int tokens = 0;
  int parts = 1;            // of K, in the wide kernel: one matrix, sums per part to `partials` as [part][token][row]
  int tail_from = 1 << 30;  // wide, gated: from this tile on, a quarter of the tile's tokens at a time
  int gated = 0;    // silu(gate) * up, below
  const std::uint8_t* panel = nullptr;  // of the input
  std::int64_t panel_tile_bytes = 0;
  // Gated: matrices 0 (gate) and 1 (up) go side by side; out = silu(gate) * up goes to matrix 0's out (may be null) and
  // to this panel.
  cuda::Panel gated_panel;
  // RMSNorm folded into the linears on both sides of it (few tokens): the one that finishes the residual writes
  // bf16(gain * x) and, per group of strips, sums of squares; the one that reads them multiplies its results by 1 / rms.
  const float* gain = nullptr;        // of the norm behind this launch
  cuda::Panel normed_panel;           // its panel, without the factor 1 / rms
  float* squares_out = nullptr;       // [part][32 tokens]
  const float* squares_in = nullptr;  // of the norm before this launch; null: the panel is complete
  int square_parts = 0;
  float norm_eps = 0;
  float* partials = nullptr;  // sums of parts of K (wide kernel)
  uint4* exchange = nullptr;  // parts of row blocks on their way, all zero between launches (wide kernel)
  uint4* sums = nullptr;      // the same, all words q4_absent between launches (few tokens)

  static constexpr int squares_stride = 32;
};

constexpr std::uint32_t q4_absent = 0xffffffffu;  // a NaN that arithmetic does not make

__device__ __forceinline__ Q4Order order_of(const Q4Work& work, const Q4Matrix& matrix) {
  return {(matrix.rows + 15) >> 4, work.tiles_k};
}

// The matrix that has a group of the sequence (the last one past the end).
__device__ __forceinline__ int matrix_of(const Q4Work& work, int group) {
  int matrix = 0;
#pragma unroll
  for (int i = 1; i < Q4Work::max_matrices; ++i) {
    if (i < work.matrix_count && group >= work.matrices[i].first_group) matrix = i;
  }
  return matrix;
}

// Half a row block, or all of a small one (`HALVES`): eight strips of one matrix, of which the sequence may have fewer
// or none.
struct Q4Half {
  int matrix = 0, group = 0;  // of the matrix
  int strips = 0;
  bool whole = false;
};
template <class Shape>
__device__ __forceinline__ Q4Half half_of(const Q4Work& work, int row_block, int half) {
  Q4Half at;
  at.group = row_block;
  at.matrix = half;
  if (!Shape::GATED) {
    const int group = row_block * Shape::HALVES + half;
    at.matrix = matrix_of(work, group);
    at.group = group - work.matrices[at.matrix].first_group;
  }
  // Not strips == 8: from min and max together, ptxas 13.0 takes a predicate that says something else.
  const int left = order_of(work, work.matrices[at.matrix]).left(at.group);
  at.whole = left >= Q4Order::group;
  at.strips = at.whole ? Q4Order::group : left < 0 ? 0 : left;
  return at;
}

// A strip of the sequence where strips go one by one: gate and up by turns, else groups in order. Past the rows of its
// matrix, `index` is too.
struct Q4Strip {
  int matrix = 0;
  int index = 0;  // inside the matrix
};
template <bool gated>
__device__ __forceinline__ Q4Strip locate_strip(const Q4Work& work, int strip) {
  if constexpr (gated) return {strip & 1, strip >> 1};
  const int matrix = matrix_of(work, strip / Q4Order::group);
  return {matrix, strip - work.matrices[matrix].first_group * Q4Order::group};
}

// Stream-K: the launch is row_blocks * k_steps units in a row; block c of `blocks` takes units [begin, end). A row
// block cut by a boundary is added up from its parts in ascending order of blocks, whoever arrives last: the split and
// the order depend on the matrices alone, so a value's bits never depend on timing.
struct UnitSplit {
  int k_steps = 0;
  unsigned units = 0;  // units * blocks fits 32 bits (checked at launch)
  unsigned blocks = 0;

  __device__ __forceinline__ int begin(unsigned block) const { return static_cast<int>(units * block / blocks); }
  // The block whose range contains the unit (every range is non-empty: blocks <= units).
  __device__ __forceinline__ int block_of(int unit) const {
    return static_cast<int>(((static_cast<unsigned>(unit) + 1) * blocks - 1) / units);
  }
  __device__ __forceinline__ int first_block(int row_block) const { return block_of(row_block * k_steps); }
  __device__ __forceinline__ int last_block(int row_block) const { return block_of((row_block + 1) * k_steps - 1); }
};

}  // namespace splash::ops
