// linear for any instruction set. The including file has included its simd header and then defines, before this header,
//   q4_tile_rows, wide_tile_rows      rows of codes of the largest register tile of the q4 and of the bf16 / f32 kernel
//   dot_tile<R>(tile, codes, dots)    dots[r] = sum_k code_w[n][k] * codes[64 r + k] for the tile's 16 outputs n, exact
//
// A row's bits do not depend on the register tile it falls into: each row performs, per group in ascending order,
//   acc = fma(scale, float(I) * a, acc);  acc = fma(bias, X, acc)
// (two planes: I = 256 of the first + of the second, exact in int32: at most 64 * 15 * 128 * 257)
// and, for bf16 and f32, one fma per input in ascending order.
#pragma once

#include "ops/linear/linear_lanes.h"
#include "ops/linear/linear_kernels.h"

namespace splash::ops {
namespace {

using namespace simd;

inline constexpr int tile_bytes = 576, scales_offset = 512, biases_offset = 544;
// Fetching ahead is worth half the speed at 8 rows: a long burst of multiplications starves the hardware prefetcher.
inline constexpr int prefetch_tiles = 4;

// Rows of one register tile lie together, [groups][planes][rows of the tile][64] (with 64 rows in one piece, each step along K
// would move by 4 KiB and all of them would fall into the same few sets of the first-level cache).
struct Cell {
  std::ptrdiff_t row;         // of steps and sums
  std::ptrdiff_t first_code;  // of the first plane; the second's lies tile_rows * 64 behind
  int tile_rows;
};
inline Cell cell_of(const QuantisedBlock& block, int row, int group) {
  const int largest = q4_tile_rows / block.planes, first = row / largest * largest, left = block.rows - first;
  const int tile_rows = left < largest ? left : largest;
  const std::ptrdiff_t tile = std::ptrdiff_t{first} * block.groups + std::ptrdiff_t{group} * tile_rows;
  return {tile + (row - first), (tile * block.planes + (row - first)) * 64, tile_rows};
}

template <int PLANES>
void quantise_planes(const float* x, std::ptrdiff_t stride, int first, int last, const QuantisedBlock& block) {
  constexpr int parts = 64 / width;
  for (int row = 0; row < block.rows; ++row) {
    for (int group = first; group < last; ++group) {
      const float* values = x + row * stride + std::ptrdiff_t{64} * group;
      Vec v[parts], largest = zero(), poison = zero();
#pragma GCC unroll 16
      for (int part = 0; part < parts; ++part) {
        v[part] = load(values + part * width);
        largest = max(largest, abs(v[part]));
        poison = poison + v[part] * zero();  // NaN where x is not finite, else 0
      }
      const Cell cell = cell_of(block, row, group);
      const float step = reduce_max(largest) / 127.0f;
      std::int8_t* codes = block.codes + cell.first_code;
      VecInt total = {};
      const Vec divisor = set(step);
#pragma GCC unroll 16
      for (int part = 0; part < parts; ++part) {
        if (step > 0) v[part] = v[part] / divisor;
        else v[part] = zero();
        const VecInt n = round_to_int(v[part], 127);
        store_int8(codes + part * width, n);
        total += n;
        if constexpr (PLANES == 2) v[part] = v[part] - to_float(n);
      }
      float unit = step;
      if constexpr (PLANES == 2) {
        std::int8_t* second = codes + std::ptrdiff_t{cell.tile_rows} * 64;
        total = total << 8;
        for (int part = 0; part < parts; ++part) {
          const VecInt n = round_to_int(v[part] * set(256.0f), 127);
          store_int8(second + part * width, n);
          total += n;
        }
        unit = step / 256.0f;
      }
      int sum = 0;
      for (int lane = 0; lane < width; ++lane) sum += total[lane];
      block.steps[cell.row] = unit;
      block.sums[cell.row] = unit * static_cast<float>(sum) + reduce_add(poison);
    }
  }
}
void quantise(const float* x, std::ptrdiff_t stride, int first, int last, const QuantisedBlock& block) {
  if (block.planes == 2) quantise_planes<2>(x, stride, first, last, block);
  else quantise_planes<1>(x, stride, first, last, block);
}

inline void write_strip_row(const Lanes& acc, float* out, int columns, bool accumulate) {
  if (columns == 16) {
    for (int part = 0; part < lane_parts; ++part) {
      float* p = out + part * width;
      store(p, accumulate ? load(p) + acc.part[part] : acc.part[part]);
    }
    return;
  }
  float lanes[16];
  for (int part = 0; part < lane_parts; ++part) store(lanes + part * width, acc.part[part]);
  for (int n = 0; n < columns; ++n) out[n] = accumulate ? out[n] + lanes[n] : lanes[n];
}

inline Lanes bf16_lanes(const unsigned char* p) {
  Lanes lanes;
#pragma GCC unroll 4
  for (int part = 0; part < lane_parts; ++part) {
    lanes.part[part] = load_bf16(reinterpret_cast<const std::uint16_t*>(p) + part * width);
  }
  return lanes;
}
inline Lanes f32_lanes(const unsigned char* p) {
  Lanes lanes;
#pragma GCC unroll 4
  for (int part = 0; part < lane_parts; ++part) lanes.part[part] = load(reinterpret_cast<const float*>(p) + part * width);
  return lanes;
}

// R rows of PLANES planes from `first_row` on times one strip.
template <int R, int PLANES>
void q4_rows(const unsigned char* strip, const QuantisedBlock& x, int first_row, const StripOutput& out) {
  Lanes acc[R] = {};
  const unsigned char* tile = strip;
  const std::ptrdiff_t cell = std::ptrdiff_t{first_row} * x.groups;
  const std::int8_t* codes = x.codes + cell * PLANES * 64;
  const float* steps = x.steps + cell;
  const float* sums = x.sums + cell;
  for (int group = 0; group < x.groups; ++group) {
    if (first_row == 0) {
#pragma GCC unroll 9
      for (int line = 0; line < 9; ++line) __builtin_prefetch(tile + prefetch_tiles * tile_bytes + 64 * line);
    }
    LanesInt dots[R * PLANES];
    dot_tile<R * PLANES>(tile, codes, dots);
    const Lanes scale = bf16_lanes(tile + scales_offset), bias = bf16_lanes(tile + biases_offset);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec step = set(steps[r]), sum = set(sums[r]);
#pragma GCC unroll 4
      for (int part = 0; part < lane_parts; ++part) {
        VecInt dot = dots[r].part[part];
        if constexpr (PLANES == 2) dot = (dot << 8) + dots[R + r].part[part];
        const Vec product = to_float(dot) * step;
        acc[r].part[part] = fma(bias.part[part], sum, fma(scale.part[part], product, acc[r].part[part]));
      }
    }
    tile += tile_bytes;
    codes += 64 * R * PLANES;
    steps += R;
    sums += R;
  }
  for (int r = 0; r < R; ++r) write_strip_row(acc[r], out.out + (first_row + r) * out.stride, out.columns, out.accumulate);
}

// Calls body.operator()<R>(first) for tiles of `Largest` rows and one tile of what is left.
template <int Largest, class Body>
inline void for_row_tiles(int rows, Body&& body) {
  int first = 0;
  for (; rows - first >= Largest; first += Largest) body.template operator()<Largest>(first);
  if constexpr (Largest > 1) {
    if (first < rows) {
      auto shifted = [&]<int R>(int at) { body.template operator()<R>(first + at); };
      for_row_tiles<Largest - 1>(rows - first, shifted);
    }
  }
}

void q4_strip(const unsigned char* strip, const QuantisedBlock& x, const StripOutput& out) {
  if (x.planes == 2) {
    for_row_tiles<q4_tile_rows / 2>(x.rows, [&]<int R>(int first) { q4_rows<R, 2>(strip, x, first, out); });
  } else {
    for_row_tiles<q4_tile_rows>(x.rows, [&]<int R>(int first) { q4_rows<R, 1>(strip, x, first, out); });
  }
}

template <int R, auto load_lanes, int weight_bytes>
void wide_rows(const unsigned char* strip, const float* x, std::ptrdiff_t stride, int cols, const StripOutput& out,
               int first_row) {
  Lanes acc[R] = {};
  const float* rows[R];
  for (int r = 0; r < R; ++r) rows[r] = x + (first_row + r) * stride;
  for (int k = 0; k < cols; ++k) {
    const Lanes w = load_lanes(strip + std::ptrdiff_t{16 * weight_bytes} * k);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec value = set(rows[r][k]);
#pragma GCC unroll 4
      for (int part = 0; part < lane_parts; ++part) acc[r].part[part] = fma(w.part[part], value, acc[r].part[part]);
    }
  }
  for (int r = 0; r < R; ++r) write_strip_row(acc[r], out.out + (first_row + r) * out.stride, out.columns, out.accumulate);
}

void bf16_strip(const unsigned char* strip, const float* x, std::ptrdiff_t stride, int rows, int cols,
                const StripOutput& out) {
  for_row_tiles<wide_tile_rows>(
      rows, [&]<int R>(int first) { wide_rows<R, bf16_lanes, 2>(strip, x, stride, cols, out, first); });
}
void f32_strip(const unsigned char* strip, const float* x, std::ptrdiff_t stride, int rows, int cols,
               const StripOutput& out) {
  for_row_tiles<wide_tile_rows>(
      rows, [&]<int R>(int first) { wide_rows<R, f32_lanes, 4>(strip, x, stride, cols, out, first); });
}

constexpr LinearKernels linear_kernels = {quantise, q4_strip, bf16_strip, f32_strip};

}  // namespace
}  // namespace splash::ops
