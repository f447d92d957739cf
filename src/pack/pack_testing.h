// Helpers of the tests of this folder: temporary folders, and safetensors made by hand.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "pack/fixture_testing.h"
#include "pack/safetensors.h"

namespace splash::pack {

// A fresh folder that is removed at the end of the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "splash-pack-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code code;
    std::filesystem::remove_all(path_, code);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(stream), {});
}

inline void write_file(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(content.data(), static_cast<std::streamsize>(content.size()));
}

inline std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

// A source tensor with its own bytes.
struct OwnedTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string data;
};

inline std::vector<OwnedTensor> read_tensors(const std::filesystem::path& file) {
  std::vector<OwnedTensor> tensors;
  auto opened = SafetensorsFile::open(file);
  EXPECT_TRUE(opened) << (opened ? "" : opened.error().message);
  if (!opened) return tensors;
  for (const TensorView& view : (*opened)->tensors()) {
    tensors.push_back({view.name, view.dtype, view.shape,
                       std::string(reinterpret_cast<const char*>(view.data.data()), view.data.size())});
  }
  return tensors;
}

inline void write_tensors(const std::filesystem::path& file, const std::vector<OwnedTensor>& tensors) {
  std::vector<OutputTensor> outputs;
  for (const OwnedTensor& tensor : tensors) {
    outputs.push_back({tensor.name, tensor.dtype, tensor.shape, std::as_bytes(std::span(tensor.data))});
  }
  std::filesystem::create_directories(file.parent_path());
  const Status status = write_safetensors(file, outputs);
  EXPECT_TRUE(status) << (status ? "" : status.error().message);
}

inline OwnedTensor* find_tensor(std::vector<OwnedTensor>& tensors, std::string_view name) {
  for (OwnedTensor& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return nullptr;
}

// EXPECT_OK(status or result)
#define EXPECT_OK(expression)                                               \
  do {                                                                      \
    const auto& expect_ok = (expression);                                   \
    EXPECT_TRUE(expect_ok) << (expect_ok ? "" : expect_ok.error().message); \
  } while (false)
#define ASSERT_OK(expression)                                               \
  do {                                                                      \
    const auto& assert_ok = (expression);                                   \
    ASSERT_TRUE(assert_ok) << (assert_ok ? "" : assert_ok.error().message); \
  } while (false)

// An error whose message holds every one of `parts`: it must name the file and the tensor or key.
template <class T>
void expect_error(const Result<T>& result, const std::vector<std::string>& parts) {
  ASSERT_FALSE(result) << "expected an error with " << (parts.empty() ? "" : parts[0]);
  for (const std::string& part : parts) {
    EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message << "\nlacks: " << part;
  }
}

}  // namespace splash::pack
