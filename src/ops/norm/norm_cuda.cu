#include <type_traits>

#include "backend/cuda/launch.h"
#include "backend/cuda/lines.cuh"
#include "ops/norm/norm_cuda.h"

namespace splash::ops {
namespace {

// values += the parts of a line, in order.
__device__ __forceinline__ void add_line(const PartialSums& parts, std::int64_t part_floats, std::int64_t at,
                                         float (&values)[8]) {
  float sum[8] = {};
  for (int part = 0; part < parts.count; ++part) {
    const float4* from = reinterpret_cast<const float4*>(parts.data + part * part_floats + at);
    const float4 low = __ldcg(from), high = __ldcg(from + 1);
    sum[0] += low.x, sum[1] += low.y, sum[2] += low.z, sum[3] += low.w;
    sum[4] += high.x, sum[5] += high.y, sum[6] += high.z, sum[7] += high.w;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] += sum[i];
}

__global__ void __launch_bounds__(128) add_parts_kernel(PartialSums parts, MatrixView<float> out, bool accumulate) {
  cuda::begin_kernel();
  const int lines = out.cols / 8;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int row = static_cast<int>(index / lines), column = static_cast<int>(index % lines) * 8;
  if (row >= out.rows) return;
  float values[8] = {};
  if (accumulate) cuda::load_columns(out, row, column, values);
  add_line(parts, static_cast<std::int64_t>(out.rows) * out.cols, static_cast<std::int64_t>(row) * out.cols + column,
           values);
  cuda::store_columns(out, row, column, values);
}

// A block per row. with_parts: x += the parts first, and floats says whether anyone reads the normed row's.
template <bool with_parts>
__global__ void __launch_bounds__(1024)
    norm_kernel(PartialSums parts, MatrixView<std::conditional_t<with_parts, float, const float>> x, const float* gain,
                float eps, MatrixView<float> out, bool floats, cuda::Panel panel) {
  __shared__ float scratch[32];
  cuda::begin_kernel();
  const int row = blockIdx.x;
  float values[8];
  float squares = 0;
  for (int column = threadIdx.x * 8; column < x.cols; column += blockDim.x * 8) {
    cuda::load_columns(x, row, column, values);
    if constexpr (with_parts) {
      add_line(parts, static_cast<std::int64_t>(x.rows) * x.cols, static_cast<std::int64_t>(row) * x.cols + column,
               values);
      cuda::store_columns(x, row, column, values);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) squares = fmaf(values[i], values[i], squares);
  }
  const float scale = 1.0f / sqrtf(cuda::block_sum(squares, scratch) / static_cast<float>(x.cols) + eps);
  const bool held = blockDim.x * 8 >= x.cols;  // one line per thread: still in registers
  for (int column = threadIdx.x * 8; column < x.cols; column += blockDim.x * 8) {
    if (!held) cuda::load_columns(x, row, column, values);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (column + i < x.cols) values[i] = values[i] * scale * gain[column + i];
    }
    if (floats) cuda::store_columns(out, row, column, values);
    cuda::store_line(panel, row, column, values);
  }
}

int threads_for(int cols) { return std::min(1024, ((cols + 7) / 8 + 31) / 32 * 32); }

}  // namespace

void add_parts(cuda::Stream& stream, PartialSums parts, MatrixView<float> out, bool accumulate) {
  SPLASH_CHECK(out.cols % 8 == 0);
  const auto lines = static_cast<unsigned>(static_cast<std::int64_t>(out.rows) * (out.cols / 8));
  cuda::launch(stream, "add parts", {dim3((lines + 127) / 128), dim3(128)}, add_parts_kernel, parts, out, accumulate);
}

void add_parts_norm(cuda::Stream& stream, PartialSums parts, MatrixView<float> residual, std::span<const float> gain,
                    float eps, MatrixView<float> normed) {
  SPLASH_CHECK(static_cast<int>(gain.size()) == residual.cols && residual.cols % 8 == 0);
  SPLASH_CHECK(normed.rows == residual.rows && normed.cols == residual.cols);
  const cuda::Panel panel = stream.panel_to_fill(normed);
  cuda::launch(stream, "add parts, norm", {dim3(residual.rows), dim3(threads_for(residual.cols))},
               norm_kernel<true>, parts, residual, gain.data(), eps, normed,
               stream.writes_floats(panel), panel);
}

void rms_norm(cuda::Stream& stream, MatrixView<const float> x, std::span<const float> gain, float eps,
              MatrixView<float> out) {
  SPLASH_CHECK(static_cast<int>(gain.size()) == x.cols && out.rows == x.rows && out.cols == x.cols);
  const cuda::Panel panel = stream.panel_to_fill(out);
  cuda::launch(stream, "rms_norm", {dim3(x.rows), dim3(threads_for(x.cols))}, norm_kernel<false>, PartialSums{}, x,
               gain.data(), eps, out, true, panel);
}

}  // namespace splash::ops
