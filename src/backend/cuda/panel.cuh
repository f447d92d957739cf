// Writing panels (panel.h) from kernels.
#pragma once

#include "backend/cuda/panel.h"
#include "backend/cuda/ptx.cuh"

namespace splash::cuda {

// The 1024-byte block of a row and a column, and the row's place in it.
__device__ __forceinline__ std::byte* panel_row(const Panel& panel, int row, int column) {
  const int tile = row / panel.row_tile, in_tile = row % panel.row_tile;
  return panel.data + tile * panel.tile_bytes() +
         static_cast<std::int64_t>(column / Panel::group) * panel.group_bytes() + in_tile / 8 * Panel::block_bytes +
         in_tile % 8 * 16;
}

// Eight consecutive columns of one row, starting at `column` (a multiple of 8). A null panel is not written.
__device__ __forceinline__ void store_line(const Panel& panel, int row, int column, const float (&values)[8]) {
  if (!panel.data || row >= panel.rows) return;
  const int line = column % Panel::group / 8;
  std::byte* at = panel_row(panel, row, column) + line / 4 * 512 + line % 4 * 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Core matrices 4j + i hold the element pairs (0,2) (4,6) (1,3) (5,7).
    const int first = (i & 1) * 4 + (i >> 1);
    *reinterpret_cast<std::uint32_t*>(at + i * 128) = pack_bf16(values[first], values[first + 2]);
  }
}

// One value, for epilogues whose threads hold columns of a matrix fragment.
__device__ __forceinline__ void store_element(const Panel& panel, int row, int column, float value) {
  if (!panel.data || row >= panel.rows) return;
  const int line = column % Panel::group / 8, e = column % 8;
  std::byte* at = panel_row(panel, row, column) + line / 4 * 512 + line % 4 * 4;
  *reinterpret_cast<__nv_bfloat16*>(at + ((e & 1) * 2 + (e >> 2)) * 128 + (e >> 1 & 1) * 2) =
      __float2bfloat16_rn(value);
}

}  // namespace splash::cuda
