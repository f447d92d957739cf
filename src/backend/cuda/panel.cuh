// Writing panels (panel.h) from kernels.
#pragma once

#include "backend/cuda/panel.h"
#include "backend/cuda/ptx.cuh"

namespace splash::cuda {

// The 1024-byte block of a row and a column, and the row's place in it.
__device__ __forceinline__ std::byte* panel_row(const Panel& panel, int row, int column) {
  const int tile = hopper_code && panel.sums ? 0 : row / panel.row_tile, in_tile = row - tile * panel.row_tile;
  return panel.data + tile * panel.tile_bytes() +
         static_cast<std::int64_t>(column / Panel::group) * panel.group_bytes() + in_tile / 8 * Panel::block_bytes +
         in_tile % 8 * 16;
}

// The sum of a row of a group, in panels that have them (one tile of rows).
__device__ __forceinline__ float* panel_sum(const Panel& panel, int row, int column) {
  return reinterpret_cast<float*>(panel.data + static_cast<std::int64_t>(column / Panel::group) * panel.group_bytes() +
                                  panel.row_tile / 8 * Panel::block_bytes) + row;
}
__device__ __forceinline__ float sum_of_pair(std::uint32_t pair) {
  return __uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000u);
}
// What `lanes` neighbouring lanes (the first of which is a multiple of that) added up of a group, where it belongs.
template <int lanes>
__device__ __forceinline__ void store_sum(const Panel& panel, int row, int column, float sum) {
  const unsigned lane = threadIdx.x & 31, mask = (lanes == 8 ? 0xffu : 0xffffu) << (lane & (32 - lanes));
#pragma unroll
  for (int distance = 1; distance < lanes; distance <<= 1) sum += __shfl_xor_sync(mask, sum, distance);
  if (lane % lanes == 0) *panel_sum(panel, row, column) = sum;
}

// Eight consecutive columns of one row, starting at `column` (a multiple of 8). Returns their sum as they stand in the
// panel. A null panel is not written.
__device__ __forceinline__ float store_line_alone(const Panel& panel, int row, int column, const float (&values)[8]) {
  if (!panel.data || row >= panel.rows) return 0;
  std::uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Core matrices 4j + i hold the element pairs (0,2) (4,6) (1,3) (5,7).
    const int first = (i & 1) * 4 + (i >> 1);
    pairs[i] = pack_bf16(values[first], values[first + 2]);
  }
  const int line = column % Panel::group / 8;
  std::byte* at = panel_row(panel, row, column) + line / 4 * 512 + line % 4 * 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) *reinterpret_cast<std::uint32_t*>(at + i * 128) = pairs[i];
  return (sum_of_pair(pairs[0]) + sum_of_pair(pairs[1])) + (sum_of_pair(pairs[2]) + sum_of_pair(pairs[3]));
}
// The same with the group's sum, where the panel has them: the 64 columns of a group come from eight neighbouring lanes
// at once, the first of which is a multiple of eight. Kernels of wide passes alone say that their panels have none.
template <bool with_sums = hopper_code>
__device__ __forceinline__ void store_line(const Panel& panel, int row, int column, const float (&values)[8]) {
  const float sum = store_line_alone(panel, row, column, values);
  if (with_sums && panel.sums && row < panel.rows) store_sum<8>(panel, row, column, sum);
}

// The same of four columns (a multiple of 4).
__device__ __forceinline__ float store_half_line_alone(const Panel& panel, int row, int column,
                                                       const float (&values)[4]) {
  if (!panel.data || row >= panel.rows) return 0;
  const int line = column % Panel::group / 8;
  std::byte* at = panel_row(panel, row, column) + line / 4 * 512 + line % 4 * 4 + column / 4 % 2 * 128;
  const std::uint32_t even = pack_bf16(values[0], values[2]), odd = pack_bf16(values[1], values[3]);
  *reinterpret_cast<std::uint32_t*>(at) = even;
  *reinterpret_cast<std::uint32_t*>(at + 256) = odd;
  return sum_of_pair(even) + sum_of_pair(odd);
}

// With the group's sum: sixteen neighbouring lanes have a group.
__device__ __forceinline__ void store_half_line(const Panel& panel, int row, int column, const float (&values)[4]) {
  const float sum = store_half_line_alone(panel, row, column, values);
  if (panel.data && panel.sums && row < panel.rows) store_sum<16>(panel, row, column, sum);
}

// Two columns a lane of a group that a whole warp has, in a panel with sums.
__device__ __forceinline__ void store_pair(const Panel& panel, int row, int group_column, int lane,
                                           const float (&values)[2]) {
  if (!panel.data || row >= panel.rows) return;
  // Lanes 2i and 2i + 1 have columns 4i to 4i + 3: the pairs are (0, 2) and (1, 3) of them.
  const bool odd = lane & 1;
  const float other = __shfl_xor_sync(0xffffffffu, odd ? values[0] : values[1], 1);
  const std::uint32_t pair = odd ? pack_bf16(other, values[1]) : pack_bf16(values[0], other);
  const int line = lane / 4;
  *reinterpret_cast<std::uint32_t*>(panel_row(panel, row, group_column) + line / 4 * 512 + line % 4 * 4 +
                                    (odd ? 256 : 0) + lane / 2 % 2 * 128) = pair;
  float sum = sum_of_pair(pair);
#pragma unroll
  for (int distance = 1; distance < 32; distance <<= 1) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (lane == 0) *panel_sum(panel, row, group_column) = sum;
}

// One value of a panel without sums, for epilogues whose threads hold columns of a matrix fragment.
__device__ __forceinline__ void store_element(const Panel& panel, int row, int column, float value) {
  if (!panel.data || row >= panel.rows) return;
  const int line = column % Panel::group / 8, e = column % 8;
  std::byte* at = panel_row(panel, row, column) + line / 4 * 512 + line % 4 * 4;
  *reinterpret_cast<__nv_bfloat16*>(at + ((e & 1) * 2 + (e >> 2)) * 128 + (e >> 1 & 1) * 2) =
      __float2bfloat16_rn(value);
}

}  // namespace splash::cuda
