#include "backend/cuda/launch.h"
#include "backend/cuda/lines.cuh"
#include "backend/cuda/twin.h"

namespace splash::cuda {
namespace {

constexpr int threads = 512;

// All loads of a block are under way at once: one round trip to the host. Readers of the last tables are done first. The
// only kernel that lets no dependents start before its end: those behind it read these tables before they wait.
__global__ void __launch_bounds__(threads) fetch_kernel(const uint4* from, uint4* to, int count) {
  wait_for_predecessors();
  const int i = blockIdx.x * threads + threadIdx.x;
  if (i < count) to[i] = load_volatile(from + i);
}

// A thread per four columns of a row.
__global__ void __launch_bounds__(threads) copy_kernel(MatrixView<const float> from, MatrixView<float> to) {
  begin_kernel();
  const int i = blockIdx.x * threads + threadIdx.x, quads = from.cols / 4, row = i / quads, column = i % quads * 4;
  if (row >= from.rows) return;
  *reinterpret_cast<float4*>(row_of(to, row) + column) = *reinterpret_cast<const float4*>(row_of(from, row) + column);
}

}  // namespace

void copy(Stream& stream, MatrixView<const float> from, MatrixView<float> to) {
  SPLASH_CHECK(from.rows == to.rows && from.cols == to.cols && from.cols % 4 == 0 && from.stride % 4 == 0 &&
               to.stride % 4 == 0);
  const int lines = from.rows * (from.cols / 4);
  launch(stream, "copy", {dim3((lines + threads - 1) / threads), dim3(threads)}, copy_kernel, from, to);
}

void fetch_bytes(Stream& stream, const void* host, void* device, std::size_t bytes) {
  const int count = static_cast<int>(bytes / sizeof(uint4));
  launch(stream, "fetch tables", {dim3((count + threads - 1) / threads), dim3(threads)}, fetch_kernel,
         static_cast<const uint4*>(host), static_cast<uint4*>(device), count);
}

}  // namespace splash::cuda
