// What the conformance tests of all ops share: every test runs once per instruction set; one that this machine lacks is
// reported as skipped. Not part of the program.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "base/rng.h"
#include "ops/streams.h"
#include "pack/weight.h"

namespace splash::ops::conformance {

class EveryIsa : public testing::TestWithParam<cpu::Isa> {
 protected:
  void SetUp() override {
    if (!cpu::supported(GetParam())) GTEST_SKIP() << "this machine has no " << cpu::name_of(GetParam());
  }
  cpu::Stream stream(int threads = 1) { return cpu::Stream(threads, GetParam()); }
};
inline std::string isa_name(const testing::TestParamInfo<cpu::Isa>& info) { return std::string(cpu::name_of(info.param)); }
#define SPLASH_EVERY_ISA(suite)                                                                               \
  INSTANTIATE_TEST_SUITE_P(Cpu, suite,                                                                        \
                           testing::Values(cpu::Isa::scalar, cpu::Isa::avx2, cpu::Isa::avx512vnni), isa_name)

// Owns a matrix; every test that compares bits compares these.
struct Matrix {
  int rows = 0, cols = 0;
  std::vector<float> values;
  Matrix(int rows_, int cols_, float fill = 0) : rows(rows_), cols(cols_), values(std::size_t(rows_) * cols_, fill) {}
  MatrixView<float> view() { return {values.data(), rows, cols}; }
  MatrixView<const float> view() const { return {values.data(), rows, cols}; }
  MatrixView<const float> slice(int first, int count) const { return view().slice_rows(first, count); }
};

inline float normal(std::uint64_t seed, std::uint64_t index) {
  const double u = 1.0 - uniform(seed, 2 * index, Purpose::test), v = uniform(seed, 2 * index + 1, Purpose::test);
  return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v));
}
inline Matrix random_matrix(int rows, int cols, std::uint64_t seed, float scale = 1) {
  Matrix m(rows, cols);
  for (std::size_t i = 0; i < m.values.size(); ++i) m.values[i] = scale * normal(seed, i);
  return m;
}

// A weight with its own memory, aligned as in a pack.
struct OwnWeight {
  std::vector<std::byte> memory;
  pack::Weight weight;
};
inline OwnWeight make_weight(pack::Format format, int rows, int cols, std::uint64_t seed) {
  OwnWeight own;
  own.weight = {format, rows, cols, nullptr};
  own.memory.resize(static_cast<std::size_t>(own.weight.bytes()) + 64);
  auto* data = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(own.memory.data()) + 63) & ~std::uintptr_t{63});
  own.weight.data = data;
  for (int n = 0; n < rows; ++n) {
    std::byte* strip = data + n / 16 * own.weight.strip_bytes();
    for (int k = 0; k < cols; ++k) {
      const float value = normal(seed, std::uint64_t(n) * cols + k);
      if (format == pack::Format::bf16) reinterpret_cast<bf16*>(strip)[std::int64_t{k} * 16 + n % 16] = to_bf16(value);
      if (format == pack::Format::f32) reinterpret_cast<float*>(strip)[std::int64_t{k} * 16 + n % 16] = value;
      if (format != pack::Format::q4) continue;
      std::byte* tile = strip + k / 64 * pack::tile_bytes;
      // Codes of every kind: all 0, all 15, and random, by output row.
      const double u = uniform(seed + 1, std::uint64_t(n) * cols + k, Purpose::test);
      const unsigned code = n % 7 == 3 ? 0u : n % 7 == 5 ? 15u : static_cast<unsigned>(u * 16);
      std::byte& byte = tile[k % 64 / 8 * 64 + n % 16 * 4 + k % 4];
      byte |= k % 8 < 4 ? std::byte(code) : std::byte(code << 4);
      // Scales of both signs; biases near -8 scale, as the quantiser leaves them.
      const float scale = 0.02f * normal(seed + 2, std::uint64_t(n) * cols + k / 64);
      reinterpret_cast<bf16*>(tile + pack::tile_scales_offset)[n % 16] = to_bf16(scale);
      reinterpret_cast<bf16*>(tile + pack::tile_biases_offset)[n % 16] = to_bf16(-8.2f * scale);
    }
  }
  return own;
}

inline bool same_bits(const float* a, const float* b, std::size_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}
inline bool same_bits(const Matrix& a, const Matrix& b) {
  return a.values.size() == b.values.size() && same_bits(a.values.data(), b.values.data(), a.values.size());
}

inline void expect_near(const Matrix& actual, const Matrix& expected, double absolute, double relative, const char* what) {
  ASSERT_EQ(actual.values.size(), expected.values.size());
  double worst = -1, sum = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < actual.values.size(); ++i) {
    const double error = std::abs(double{actual.values[i]} - expected.values[i]);
    const double excess = error / (absolute + relative * std::abs(expected.values[i]));
    sum += error * error;
    if (!(excess <= worst)) worst = excess, at = i;
  }
  EXPECT_LE(worst, 1.0) << what << " [" << at / actual.cols << ", " << at % actual.cols << "] " << actual.values[at]
                        << " instead of " << expected.values[at];
  testing::Test::RecordProperty(what, std::to_string(std::sqrt(sum / static_cast<double>(actual.values.size()))));
}

}  // namespace splash::ops::conformance
