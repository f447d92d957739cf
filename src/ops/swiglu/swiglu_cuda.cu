#include "backend/cuda/launch.h"
#include "backend/cuda/lines.cuh"
#include "ops/swiglu/swiglu_cuda.h"

namespace splash::ops {
namespace {

__global__ void swiglu_kernel(MatrixView<const float> gate, MatrixView<const float> up, MatrixView<float> out,
                              cuda::Panel panel) {
  cuda::begin_kernel();
  const int lines = (out.cols + 7) / 8;
  const long long index = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int row = static_cast<int>(index / lines), column = static_cast<int>(index % lines) * 8;
  if (row >= out.rows) return;
  float g[8], u[8];
  cuda::load_columns(gate, row, column, g);
  cuda::load_columns(up, row, column, u);
#pragma unroll
  for (int i = 0; i < 8; ++i) g[i] = g[i] / (1.0f + __expf(-g[i])) * u[i];
  cuda::store_columns(out, row, column, g);
  cuda::store_line(panel, row, column, g);
}

}  // namespace

void swiglu(cuda::Stream& stream, MatrixView<const float> gate, MatrixView<const float> up, MatrixView<float> out) {
  const cuda::Panel panel = stream.panel_to_fill(out);
  const long long lines = static_cast<long long>(out.rows) * ((out.cols + 7) / 8);
  cuda::launch(stream, "swiglu", {dim3(static_cast<unsigned>((lines + 127) / 128)), dim3(128)}, swiglu_kernel, gate, up,
               out, panel);
}

}  // namespace splash::ops
