// Rows of float matrices in lines of eight columns, the unit in which panels are written.
#pragma once

#include "backend/cuda/panel.cuh"
#include "base/matrix.h"

namespace splash::cuda {

template <class T>
__device__ __forceinline__ T* row_of(const MatrixView<T>& matrix, int row) {
  return matrix.data + row * static_cast<std::int64_t>(matrix.stride);
}

// Whole, 16-byte aligned lines move as two vectors; the rest column by column (zero past the end).
template <class T>
__device__ __forceinline__ void load_columns(const MatrixView<T>& matrix, int row, int column, float (&values)[8]) {
  const float* from = row_of(matrix, row) + column;
  if (column + 8 <= matrix.cols && (reinterpret_cast<std::uintptr_t>(from) & 15) == 0) {
    const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
    values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
    values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = column + i < matrix.cols ? from[i] : 0.0f;
}

__device__ __forceinline__ void store_columns(const MatrixView<float>& matrix, int row, int column,
                                              const float (&values)[8]) {
  float* to = row_of(matrix, row) + column;
  if (column + 8 <= matrix.cols && (reinterpret_cast<std::uintptr_t>(to) & 15) == 0) {
    reinterpret_cast<float4*>(to)[0] = make_float4(values[0], values[1], values[2], values[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(values[4], values[5], values[6], values[7]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (column + i < matrix.cols) to[i] = values[i];
  }
}

// Sum over a block of up to 1024 threads in a fixed order; every thread gets it. `scratch`: 32 floats of shared memory.
__device__ __forceinline__ float block_sum(float value, float* scratch) {
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1) value += __shfl_xor_sync(0xffffffffu, value, distance);
  const int warps = (blockDim.x + 31) / 32;
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < warps; ++warp) sum += scratch[warp];
  __syncthreads();
  return sum;
}

}  // namespace splash::cuda
