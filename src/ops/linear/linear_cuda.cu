#include <algorithm>
#include <vector>

#include "backend/cuda/launch.h"
#include "backend/cuda/panel.cuh"
#include "ops/linear/linear_cuda.h"
#include "ops/linear/q4_launch.h"
#include "ops/linear/q4_tile.h"
#include "ops/linear/q4_work.cuh"
#include "ops/norm/norm_cuda.h"
#include "ops/swiglu/swiglu_cuda.h"

namespace splash::ops {
namespace {

// One thread per 8 columns of a row.
__global__ void pack_panel_kernel(const float* x, std::int64_t stride, cuda::Panel panel) {
  cuda::begin_kernel();
  const int lines = panel.cols / 8;
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = index / lines, column = index % lines * 8;
  if (row >= panel.rows) return;
  float values[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = x[row * stride + column + i];
  cuda::store_line(panel, row, column, values);
}

// Tiles of whole groups, from the pack's order to the device's: a warp per tile, through shared memory. `order`: of these
// groups alone.
__global__ void arrange_kernel(const std::byte* from, std::byte* to, Q4Order order) {
  cuda::begin_kernel();
  constexpr int warps = 4;
  __shared__ std::uint32_t held[warps][Q4Tile::bytes / 4];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, count = order.strips * order.tiles_k;
  for (int i = blockIdx.x * warps + warp; i < count; i += gridDim.x * warps) {
    const auto* source = reinterpret_cast<const std::uint32_t*>(from + std::int64_t{i} * Q4Tile::bytes);
    auto* tile = reinterpret_cast<std::uint32_t*>(to + order.at(i / order.tiles_k, i % order.tiles_k) * Q4Tile::bytes);
    for (int word = lane; word < Q4Tile::bytes / 4; word += 32) held[warp][word] = source[word];
    __syncwarp();
    const auto* halves = reinterpret_cast<const std::uint16_t*>(held[warp]);
    for (int word = lane; word < Q4Tile::bytes / 4; word += 32) {
      tile[word] = halves[Q4Tile::source(2 * word)] |
                   static_cast<std::uint32_t>(halves[Q4Tile::source(2 * word + 1)]) << 16;
    }
    __syncwarp();
  }
}

// bf16 or f32 weights in strips: 16 output rows x 16 interleaved parts of k per block, eight tokens at a time.
template <class T>
__global__ void strips_kernel(const T* weight, int rows, int cols, const float* x, std::int64_t x_stride, int tokens,
                              float* out, std::int64_t out_stride, int accumulate) {
  cuda::begin_kernel();
  constexpr int parts = 16, batch = 8;
  __shared__ float sums[parts][batch][16];
  const int n = threadIdx.x % 16, part = threadIdx.x / 16, strip = blockIdx.x;
  const T* base = weight + static_cast<std::int64_t>(strip) * cols * 16 + n;
  for (int first = blockIdx.y * batch; first < tokens; first += batch * gridDim.y) {
    float acc[batch] = {};
    const int count = min(batch, tokens - first);
    for (int k = part; k < cols; k += parts) {
      const float w = static_cast<float>(base[static_cast<std::int64_t>(k) * 16]);
      for (int r = 0; r < batch; ++r) {
        if (r < count) acc[r] = fmaf(w, x[(first + r) * x_stride + k], acc[r]);
      }
    }
    __syncthreads();
    for (int r = 0; r < batch; ++r) sums[part][r][n] = acc[r];
    __syncthreads();
    const int row = strip * 16 + n;
    if (part < count && row < rows) {  // part p finishes token p
      float sum = 0;
      for (int p = 0; p < parts; ++p) sum += sums[p][part][n];
      float* to = out + (first + part) * out_stride + row;
      *to = accumulate ? *to + sum : sum;
    }
  }
}

void linear_strips(cuda::Stream& stream, MatrixView<const float> x, const LinearTarget& target) {
  const pack::Weight& weight = target.weight;
  const cuda::Grid grid{dim3(weight.strips(), min((x.rows + 7) / 8, 64)), dim3(256)};
  if (weight.format == pack::Format::bf16) {
    cuda::launch(stream, "linear strips bf16", grid, strips_kernel<__nv_bfloat16>,
                 reinterpret_cast<const __nv_bfloat16*>(weight.data), weight.rows, weight.cols, x.data, x.stride,
                 x.rows, target.out.data, target.out.stride, int{target.accumulate});
  } else {
    cuda::launch(stream, "linear strips f32", grid, strips_kernel<float>, reinterpret_cast<const float*>(weight.data),
                 weight.rows, weight.cols, x.data, x.stride, x.rows, target.out.data, target.out.stride,
                 int{target.accumulate});
  }
}

cuda::Panel panel_for(cuda::Stream& stream, MatrixView<const float> x) {
  if (const cuda::Panel* panel = stream.panel_of(x)) return *panel;
  const cuda::Panel panel = stream.panel_to_fill(x);
  const int lines = x.rows * (x.cols / 8);
  cuda::launch(stream, "pack panel", {dim3((lines + 127) / 128), dim3(128)}, pack_panel_kernel, x.data,
               std::int64_t{x.stride}, panel);
  return panel;
}

Q4Work work_for(cuda::Stream& stream, MatrixView<const float> x) {
  const cuda::Panel panel = panel_for(stream, x);
  Q4Work work;
  work.tiles_k = x.cols / pack::tile_cols;
  work.tokens = x.rows;
  work.panel = reinterpret_cast<const std::uint8_t*>(panel.data);
  work.panel_tile_bytes = panel.tile_bytes();
  work.squares_in = panel.squares;
  work.square_parts = panel.square_parts;
  work.norm_eps = panel.norm_eps;
  work.partials = stream.partials();
  work.exchange = stream.exchange();
  work.sums = stream.parts();
  return work;
}

void add_matrix(Q4Work& work, const LinearTarget& target) {
  work.matrices[work.matrix_count++] = {reinterpret_cast<const std::uint8_t*>(target.weight.data),
                                        target.out.data,
                                        target.out.stride,
                                        target.weight.rows,
                                        work.groups,
                                        int{target.accumulate}};
  work.groups += (target.weight.strips() + Q4Order::group - 1) / Q4Order::group;
}

// The kernel for few rows reads the sums of a group in the panel.
constexpr int wide_from = cuda::Panel::most_rows_with_sums + 1;

void run(cuda::Stream& stream, const Q4Work& work) {
  if (stream.portable()) {
    launch_q4_portable(stream, work);
  } else if (work.tokens < wide_from) {
    launch_q4_few(stream, work);
  } else if (work.gated) {
    launch_q4_wide_gated(stream, work);
  } else {
    launch_q4_wide(stream, work);
  }
}

// From 33 tokens on, a launch of one matrix with few rows leaves its sums in parts of K; whether it does is a matter of
// the matrix alone. True: the reader of `partials` adds them to the output.
bool cut_in_parts(cuda::Stream& stream, Q4Work& work) {
  if (work.tokens < wide_from || stream.portable()) return false;
  work.parts = q4_wide_parts(work);
  SPLASH_CHECK(
      work.parts == 1 || sizeof(float) * work.parts * work.tokens * static_cast<std::size_t>(work.matrices[0].rows) <=
                             stream.partials_bytes(),
      "{} rows are too many for one pass", work.tokens);
  return work.parts > 1;
}

void run_single(cuda::Stream& stream, Q4Work& work) {
  const bool in_parts = cut_in_parts(stream, work);
  run(stream, work);
  if (!in_parts) return;
  const Q4Matrix& matrix = work.matrices[0];
  add_parts(stream, {work.partials, work.parts},
            {matrix.out, work.tokens, matrix.rows, static_cast<std::ptrdiff_t>(matrix.out_stride)}, matrix.accumulate);
}

// Whether the norm behind a linear is made inside of it.
bool norm_folds(cuda::Stream& stream, MatrixView<const float> x, const pack::Weight& weight) {
  return weight.format == pack::Format::q4 && x.rows < wide_from && weight.rows % cuda::Panel::group == 0 &&
         stream.folds_norms();
}

void run_with_norm(cuda::Stream& stream, MatrixView<const float> x, const LinearTarget& target,
                   std::span<const float> gain, float eps, MatrixView<float> normed) {
  Q4Work work = work_for(stream, x);
  add_matrix(work, target);
  stream.forget_panels(target.out);
  cuda::Panel panel = stream.panel_to_fill(normed);
  panel.square_parts = q4_square_parts(stream, work);
  float* squares = stream.allocate<float>(static_cast<std::size_t>(panel.square_parts) * Q4Work::squares_stride);
  panel.squares = squares;
  panel.norm_eps = eps;
  stream.set_panel(normed, panel);
  work.gain = gain.data();
  work.normed_panel = panel;
  work.squares_out = squares;
  run(stream, work);
}

}  // namespace

void arrange_q4(cuda::Stream& stream, Q4Order order, std::byte* tiles, std::span<std::byte> scratch) {
  const std::int64_t groups = static_cast<std::int64_t>(scratch.size()) / order.group_bytes();
  SPLASH_CHECK(groups > 0, "no room for {} inputs of eight strips", order.tiles_k * pack::tile_cols);
  const int most = static_cast<int>(std::min<std::int64_t>(groups * Q4Order::group, order.strips));
  for (int strip = 0; strip < order.strips; strip += most) {
    const Q4Order some{std::min(most, order.strips - strip), order.tiles_k};
    std::byte* at = tiles + std::int64_t{strip} * order.tiles_k * Q4Tile::bytes;
    const std::size_t bytes = static_cast<std::size_t>(some.strips) * some.tiles_k * Q4Tile::bytes;
    stream.note(cudaMemcpyAsync(scratch.data(), at, bytes, cudaMemcpyDeviceToDevice, stream.native()), "arrange q4");
    cuda::launch(stream, "arrange q4", {dim3(1056), dim3(128)}, arrange_kernel, scratch.data(), at, some);
  }
}

void linear(cuda::Stream& stream, MatrixView<const float> x, std::span<const LinearTarget> targets) {
  Q4Work work;
  for (const LinearTarget& target : targets) {
    SPLASH_CHECK(target.weight.cols == x.cols && target.out.rows == x.rows && target.out.cols == target.weight.rows);
    if (target.weight.format != pack::Format::q4) {
      linear_strips(stream, x, target);
      continue;
    }
    if (work.matrix_count == 0) work = work_for(stream, x);
    add_matrix(work, target);
    if (work.matrix_count == Q4Work::max_matrices) {
      run(stream, work);
      work = Q4Work{};
    }
  }
  if (work.matrix_count > 0) run_single(stream, work);
  for (const LinearTarget& target : targets) stream.forget_panels(target.out);
}

void linear_swiglu(cuda::Stream& stream, MatrixView<const float> x, const pack::Weight& gate, const pack::Weight& up,
                   MatrixView<float> upped, MatrixView<float> out) {
  const bool without_panel = !stream.portable() && x.rows >= wide_from && out.cols % cuda::Panel::group != 0;
  if (gate.format != pack::Format::q4 || without_panel) {
    const LinearTarget targets[] = {{gate, out}, {up, upped}};
    linear(stream, x, targets);
    swiglu(stream, out, upped, out);
    return;
  }
  Q4Work work = work_for(stream, x);
  add_matrix(work, {gate, out, false});
  add_matrix(work, {up, out, false});
  work.gated_panel = stream.panel_to_fill(out);
  work.gated = 1;
  if (!stream.writes_floats(work.gated_panel)) work.matrices[0].out = nullptr;
  run(stream, work);
}

void linear_add_norm(cuda::Stream& stream, MatrixView<const float> x, const pack::Weight& weight,
                     MatrixView<float> residual, std::span<const float> gain, float eps, MatrixView<float> normed) {
  if (weight.format == pack::Format::q4 && x.rows >= wide_from) {
    Q4Work work = work_for(stream, x);
    add_matrix(work, {weight, residual, true});
    if (cut_in_parts(stream, work)) {
      run(stream, work);
      stream.forget_panels(residual);
      add_parts_norm(stream, {work.partials, work.parts}, residual, gain, eps, normed);
      return;
    }
  }
  if (!norm_folds(stream, x, weight)) {
    linear_add(stream, x, weight, residual);
    rms_norm(stream, residual, gain, eps, normed);
    return;
  }
  run_with_norm(stream, x, {weight, residual, true}, gain, eps, normed);
}

void linear_norm(cuda::Stream& stream, MatrixView<const float> x, const pack::Weight& weight, MatrixView<float> out,
                 std::span<const float> gain, float eps, MatrixView<float> normed) {
  if (!norm_folds(stream, x, weight)) {
    linear(stream, x, weight, out);
    rms_norm(stream, out, gain, eps, normed);
    return;
  }
  run_with_norm(stream, x, {weight, out, false}, gain, eps, normed);
}

}  // namespace splash::ops
