#include "backend/cuda/launch.h"
#include "backend/cuda/lines.cuh"
#include "ops/norm/norm_cuda.h"

namespace splash::ops {
namespace {

__global__ void __launch_bounds__(1024)
    rms_norm_kernel(MatrixView<const float> x, const float* gain, float eps, MatrixView<float> out, cuda::Panel panel) {
  __shared__ float scratch[32];
  cuda::begin_kernel();
  const int row = blockIdx.x;
  float values[8];
  float squares = 0;
  for (int column = threadIdx.x * 8; column < x.cols; column += blockDim.x * 8) {
    cuda::load_columns(x, row, column, values);
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
    cuda::store_columns(out, row, column, values);
    cuda::store_line(panel, row, column, values);
  }
}

}  // namespace

void rms_norm(cuda::Stream& stream, MatrixView<const float> x, std::span<const float> gain, float eps,
              MatrixView<float> out) {
  SPLASH_CHECK(static_cast<int>(gain.size()) == x.cols && out.rows == x.rows && out.cols == x.cols);
  const cuda::Panel panel = stream.panel_to_fill(out);
  const int threads = std::min(1024, ((x.cols + 7) / 8 + 31) / 32 * 32);
  cuda::launch(stream, "rms_norm", {dim3(x.rows), dim3(threads)}, rms_norm_kernel, x, gain.data(), eps, out, panel);
}

}  // namespace splash::ops
