// safetensors files: a mapped reader that trusts nothing in the header, and a writer for small outputs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace splash::pack {

struct TensorView {
  std::string name;
  std::string dtype;  // "F32", "BF16", "F16", "U32", "I32", "I64", ...
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
  std::int64_t elements() const;
};

// Bytes of one element, 0 for a dtype that this reader does not know.
int dtype_bytes(std::string_view dtype);

// The tensors of a whole file in memory; the views point into `file`. `name` is for messages.
Result<std::vector<TensorView>> parse_safetensors(std::span<const std::byte> file, std::string_view name);

class SafetensorsFile {
 public:
  // Header length, JSON, dtypes, shapes, offsets (in range, no overlap, matching the shape) are all checked.
  static Result<std::shared_ptr<const SafetensorsFile>> open(const std::filesystem::path& file);
  virtual ~SafetensorsFile() = default;
  virtual const std::vector<TensorView>& tensors() const = 0;
  virtual const TensorView* find(std::string_view name) const = 0;  // null if absent
};

struct OutputTensor {
  std::string name;
  std::string dtype;  // "F32" or "I32"
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
};
Status write_safetensors(const std::filesystem::path& file, std::span<const OutputTensor> tensors);

}  // namespace splash::pack
