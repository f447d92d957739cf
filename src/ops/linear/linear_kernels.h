// Kernels of linear on the CPU: raw pointers only, one table per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace splash::ops {

// Up to 64 rows of x quantised per group of 64 inputs. The order of the cells (a row's group) belongs to the kernels:
// by register tile, then group, then row of the tile.
struct QuantisedBlock {
  int rows = 0;
  int groups = 0;
  int planes = 1;                // 2: a second code per input for what the first one left, in units of a / 256
  std::int8_t* codes = nullptr;  // [groups][planes][rows][64]
  float* steps = nullptr;        // [groups][rows]  a = max|x| / 127; two planes: a / 256
  float* sums = nullptr;         // [groups][rows]  X = the step times the sum of the codes (256 first + second)
};

// Where 16 outputs of each row go: out[row * stride + column], column < columns.
struct StripOutput {
  float* out = nullptr;
  std::ptrdiff_t stride = 0;
  int columns = 16;
  bool accumulate = false;
};

struct LinearKernels {
  // Fills groups [first, last) of `block` from x [rows][stride].
  void (*quantise)(const float* x, std::ptrdiff_t stride, int first, int last, const QuantisedBlock& block);
  // One strip of 16 outputs times all rows of a block.
  void (*q4_strip)(const unsigned char* strip, const QuantisedBlock& x, const StripOutput& out);
  void (*bf16_strip)(const unsigned char* strip, const float* x, std::ptrdiff_t stride, int rows, int cols,
                     const StripOutput& out);
  void (*f32_strip)(const unsigned char* strip, const float* x, std::ptrdiff_t stride, int rows, int cols,
                    const StripOutput& out);
};
extern const LinearKernels linear_scalar, linear_avx2, linear_avx512vnni;

}  // namespace splash::ops
