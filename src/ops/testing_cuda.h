// What conformance tests and benchmarks on the device share: one stream, device copies of host data, comparison.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <list>
#include <vector>

#include "backend/cuda/stream.h"
#include "base/matrix.h"
#include "base/rng.h"
#include "ops/linear/q4_tile.h"
#include "pack/weight.h"

namespace splash::cuda::testing {

inline Stream& stream() {
  static std::unique_ptr<Stream> opened = [] {
    auto device = choose_device(-1);
    if (!device) {
      std::fprintf(stderr, "no CUDA device: %s\n", device.error().message.c_str());
      std::exit(77);
    }
    std::printf("%s\n", describe(*device).c_str());
    auto result = Stream::open(*device, std::size_t{1} << 30);
    if (!result) {
      std::fprintf(stderr, "%s\n", result.error().message.c_str());
      std::exit(1);
    }
    // Tests look at floats and panels; those of what a model folds say so.
    (*result)->set_folds_norms(false);
    return std::move(*result);
  }();
  return *opened;
}

// While it lives, the stream folds norms and leaves floats unwritten that only linears would read, as a model's does.
struct FoldsNorms {
  FoldsNorms() { stream().set_folds_norms(true); }
  ~FoldsNorms() { stream().set_folds_norms(false); }
  FoldsNorms(const FoldsNorms&) = delete;
  FoldsNorms& operator=(const FoldsNorms&) = delete;
};

// Device memory that lives until the test ends.
class Memory {
 public:
  template <class T>
  T* copy(const T* values, std::size_t count) {
    T* data = empty<T>(count);
    check(cudaMemcpy(data, values, count * sizeof(T), cudaMemcpyHostToDevice));
    settle();
    return data;
  }
  template <class T>
  T* copy(const std::vector<T>& values) {
    return copy(values.data(), values.size());
  }
  // Filled with NaN patterns, so that an output nobody wrote shows.
  template <class T>
  T* empty(std::size_t count) {
    auto buffer = DeviceBuffer::allocate(count * sizeof(T) + 256);
    if (!buffer) ADD_FAILURE() << buffer.error().message;
    buffers_.push_back(std::move(*buffer));
    check(cudaMemset(buffers_.back().data(), 0xff, count * sizeof(T) + 256));
    settle();
    return buffers_.back().as<T>();
  }
  MatrixView<float> matrix(const std::vector<float>& values, int rows, int cols) { return {copy(values), rows, cols}; }
  MatrixView<float> matrix(int rows, int cols) { return {empty<float>(std::size_t(rows) * cols), rows, cols}; }
  // In the device's order of tiles (ops/linear/q4_tile.h), as the upload of a model leaves them.
  pack::Weight weight(pack::Weight host) {
    std::vector<std::byte> bytes(host.data, host.data + host.bytes());
    if (host.format == pack::Format::q4) {
      ops::to_device_order({host.strips(), host.cols / pack::tile_cols}, host.data, bytes.data());
    }
    host.data = copy(bytes);
    return host;
  }
  std::span<const float> vector(const std::vector<float>& values) { return {copy(values), values.size()}; }

  // Copies out of plain memory and fills return before they are done, and the tests' stream waits for no other: on a GPU that others
  // use too, kernels would overtake them.
  static void settle() { check(cudaStreamSynchronize(nullptr)); }
  static void check(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

 private:
  std::list<DeviceBuffer> buffers_;
};

template <class T>
std::vector<T> download(const T* device, std::size_t count) {
  std::vector<T> values(count);
  const Status status = stream().synchronise();
  EXPECT_TRUE(status) << (status ? "" : status.error().message);
  Memory::check(cudaMemcpy(values.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
  return values;
}
inline std::vector<float> download(MatrixView<float> matrix) {
  return download(matrix.data, static_cast<std::size_t>(matrix.rows) * matrix.stride);
}

// Deterministic test numbers.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : seed_(seed) {}
  double uniform() { return splash::uniform(seed_, next_++, Purpose::test); }
  float normal() {
    return static_cast<float>(std::sqrt(-2 * std::log(1 - uniform())) * std::cos(6.283185307179586 * uniform()));
  }
  int below(int limit) { return static_cast<int>(uniform() * limit); }
  std::vector<float> normals(std::size_t count, float scale = 1) {
    std::vector<float> values(count);
    for (float& value : values) value = scale * normal();
    return values;
  }

 private:
  std::uint64_t seed_, next_ = 0;
};

// Random q4 tiles: any code, scales of both signs, biases that do not centre the codes.
struct HostWeight {
  std::vector<std::byte> bytes;
  pack::Weight view;
};
inline HostWeight random_q4(Numbers& numbers, int rows, int cols) {
  HostWeight weight;
  weight.view = {pack::Format::q4, rows, cols, nullptr};
  weight.bytes.resize(static_cast<std::size_t>(weight.view.bytes()));
  for (std::size_t tile = 0; tile < weight.bytes.size(); tile += pack::tile_bytes) {
    for (int i = 0; i < 512; i += 4) {
      const auto word = static_cast<std::uint32_t>(numbers.uniform() * 4294967296.0);
      std::memcpy(weight.bytes.data() + tile + i, &word, 4);
    }
    for (int row = 0; row < 16; ++row) {
      const bf16 scale = to_bf16(0.01f * numbers.normal()), bias = to_bf16(0.05f * numbers.normal());
      std::memcpy(weight.bytes.data() + tile + 512 + row * 2, &scale, 2);
      std::memcpy(weight.bytes.data() + tile + 544 + row * 2, &bias, 2);
    }
  }
  weight.view.data = weight.bytes.data();
  return weight;
}

// ||got - want|| / ||want|| and the largest single error, printed; NaN never passes.
inline void expect_close(const char* what, std::span<const float> got, std::span<const float> want, double bound) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double error = 0, norm = 0, worst = 0;
  std::size_t at = 0, unwritten = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i])) ++unwritten;
    const double difference = std::fabs(double{got[i]} - want[i]);
    error += difference * difference;
    norm += double{want[i]} * want[i];
    if (!(difference <= worst)) worst = difference, at = i;
  }
  const double relative = std::sqrt(error / (norm > 0 ? norm : 1));
  std::printf("  %-44s relative %.2e (bound %.0e), worst %.2e at %zu: %g, wanted %g; %zu NaN of %zu\n", what, relative,
              bound, worst, at, double{got[at]}, double{want[at]}, unwritten, got.size());
  EXPECT_TRUE(relative <= bound) << what;
}
template <class T>
void expect_same(const char* what, const std::vector<T>& a, const std::vector<T>& b) {
  ASSERT_EQ(a.size(), b.size()) << what;
  std::size_t differing = 0;
  for (std::size_t i = 0; i < a.size(); ++i) differing += std::memcmp(&a[i], &b[i], sizeof(T)) != 0;
  std::printf("  %-44s %zu of %zu differ\n", what, differing, a.size());
  EXPECT_EQ(differing, 0u) << what;
}

// That a producer left the panel of its matrix: the matrix rounded to bf16, and where the panel has sums, those of the
// values as they stand there.
inline void expect_panel(const char* what, MatrixView<float> matrix) {
  const Panel* panel = stream().panel_of(matrix);
  ASSERT_TRUE(panel && panel->data) << what;
  EXPECT_EQ(panel->sums, !stream().portable() && matrix.rows <= Panel::most_rows_with_sums) << what;
  const std::vector<float> floats = download(matrix);
  const std::vector<std::byte> bytes = download(panel->data, static_cast<std::size_t>(panel->bytes()));
  std::size_t differing = 0;
  double worst = 0;
  for (int row = 0; row < matrix.rows; ++row) {
    const int in_tile = row % panel->row_tile;
    const std::byte* tile = bytes.data() + row / panel->row_tile * panel->tile_bytes();
    for (int group = 0; group < matrix.cols / Panel::group; ++group) {
      const std::byte* blocks = tile + std::int64_t{group} * panel->group_bytes();
      double sum = 0, size = 0;
      for (int c = 0; c < Panel::group; ++c) {
        const int line = c / 8, e = c % 8;
        bf16 value;
        std::memcpy(&value,
                    blocks + in_tile / 8 * Panel::block_bytes + (line / 4 * 4 + (e & 1) * 2 + (e >> 2)) * 128 +
                        in_tile % 8 * 16 + ((line % 4) * 2 + ((e >> 1) & 1)) * 2,
                    sizeof value);
        const float want = to_float(to_bf16(floats[std::size_t(row) * matrix.stride + group * Panel::group + c]));
        differing += to_float(value) != want;
        sum += want, size += std::fabs(want);
      }
      if (!panel->sums) continue;
      float got;
      std::memcpy(&got, blocks + panel->row_tile / 8 * Panel::block_bytes + in_tile * 4, sizeof got);
      worst = std::max(worst, std::fabs(got - sum) / (size > 0 ? size : 1));
    }
  }
  std::printf("  %-44s panel: %zu of %zu differ, sums off by %.1e of what they add up\n", what, differing, floats.size(),
              worst);
  EXPECT_EQ(differing, 0u) << what;
  EXPECT_LE(worst, 1e-6) << what;
}

}  // namespace splash::cuda::testing
