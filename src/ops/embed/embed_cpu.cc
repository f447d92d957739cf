#include "ops/embed/embed.h"

namespace splash::ops {

namespace {

// One row of a q4 matrix of strips: 36 bytes out of each 576-byte tile. w = code * scale + bias in two roundings, as in
// pack::weight_at, so that every stream gathers the same bits.
void gather_q4(const std::byte* strip, int row, int cols, float* out) {
  for (int first = 0; first < cols; first += pack::tile_cols, strip += pack::tile_bytes) {
    const float scale = to_float(reinterpret_cast<const bf16*>(strip + pack::tile_scales_offset)[row]);
    const float bias = to_float(reinterpret_cast<const bf16*>(strip + pack::tile_biases_offset)[row]);
    for (int line = 0; line < 8; ++line) {
      for (int j = 0; j < 4; ++j) {
        const auto byte = static_cast<unsigned>(strip[line * 64 + row * 4 + j]);
        out[first + line * 8 + j] = static_cast<float>(byte & 15u) * scale + bias;
        out[first + line * 8 + 4 + j] = static_cast<float>(byte >> 4) * scale + bias;
      }
    }
  }
}

template <class T>
void gather_wide(const std::byte* strip, int row, int cols, float* out) {
  const T* values = reinterpret_cast<const T*>(strip) + row;
  for (int k = 0; k < cols; ++k) out[k] = to_float(values[std::int64_t{k} * pack::strip_rows]);
}

}  // namespace

void embed(cpu::Stream& stream, const pack::Weight& table, std::span<const Token> tokens, MatrixView<float> out) {
  SPLASH_CHECK(out.rows == static_cast<int>(tokens.size()) && out.cols == table.cols);
  stream.pool().split(out.rows, 4, [&](int first, int last) {
    for (int r = first; r < last; ++r) {
      const Token token = tokens[static_cast<std::size_t>(r)];
      SPLASH_CHECK(token >= 0 && token < table.rows, "token {} of {}", token, table.rows);
      const std::byte* strip = table.data + token / pack::strip_rows * table.strip_bytes();
      const int row = token % pack::strip_rows;
      switch (table.format) {
        case pack::Format::q4: gather_q4(strip, row, table.cols, out.row(r)); break;
        case pack::Format::bf16: gather_wide<bf16>(strip, row, table.cols, out.row(r)); break;
        case pack::Format::f32: gather_wide<float>(strip, row, table.cols, out.row(r)); break;
      }
    }
  });
}

}  // namespace splash::ops
