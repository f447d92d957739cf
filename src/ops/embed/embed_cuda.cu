#include "backend/cuda/launch.h"
#include "backend/cuda/lines.cuh"
#include "ops/embed/embed_cuda.h"
#include "ops/linear/q4_tile.h"

namespace splash::ops {
namespace {

// Eight inputs of one output row of a device tile (ops/linear/q4_tile.h): one word. Multiplied and added apart, as weight_at does, so that the bits
// are those of every other stream.
__device__ __forceinline__ void q4_line(const std::uint8_t* tile, int row, int line, float (&values)[8]) {
  const int g = row & 7, half = row >> 3;
  const std::uint32_t word =
      *reinterpret_cast<const std::uint32_t*>(tile + (g * 4 + line % 4) * 16 + line / 4 * 8 + half * 4);
  const std::uint8_t* numbers = tile + 512 + g * 8 + half * 2;
  const float scale = cuda::bf16_at(numbers), bias = cuda::bf16_at(numbers + 4);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const unsigned byte = word >> 8 * j & 0xff;
    values[j] = __fadd_rn(__fmul_rn(static_cast<float>(byte & 15), scale), bias);
    values[4 + j] = __fadd_rn(__fmul_rn(static_cast<float>(byte >> 4), scale), bias);
  }
}

__global__ void embed_kernel(pack::Format format, const std::uint8_t* table, std::int64_t strip_bytes, Q4Order order,
                             int rows, const Token* tokens, MatrixView<float> out, cuda::Panel panel) {
  cuda::begin_kernel();
  const int token = tokens[blockIdx.x];
  if (token < 0 || token >= rows) return;
  const std::uint8_t* strip = table + token / 16 * strip_bytes;
  const int row = token % 16;
  for (int column = threadIdx.x * 8; column < out.cols; column += blockDim.x * 8) {
    float values[8];
    if (format == pack::Format::q4) {
      q4_line(table + order.at(token / 16, column / 64) * Q4Tile::bytes, row, column % 64 / 8, values);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const std::int64_t at = static_cast<std::int64_t>(min(column + i, out.cols - 1)) * 16 + row;
        values[i] =
            format == pack::Format::bf16 ? cuda::bf16_at(strip + at * 2) : reinterpret_cast<const float*>(strip)[at];
      }
    }
    cuda::store_columns(out, blockIdx.x, column, values);
    cuda::store_line(panel, blockIdx.x, column, values);
  }
}

}  // namespace

void embed(cuda::Stream& stream, const pack::Weight& table, std::span<const Token> tokens, MatrixView<float> out) {
  SPLASH_CHECK(out.rows == static_cast<int>(tokens.size()) && out.cols == table.cols);
  const cuda::Panel panel = stream.panel_to_fill(out);
  cuda::launch(stream, "embed", {dim3(out.rows), dim3(128)}, embed_kernel, table.format,
               reinterpret_cast<const std::uint8_t*>(table.data), table.strip_bytes(),
               Q4Order{table.strips(), table.cols / pack::tile_cols}, table.rows,
               stream.table(tokens.data(), tokens.size()), out, panel);
}

}  // namespace splash::ops
