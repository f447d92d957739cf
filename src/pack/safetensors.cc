#include "pack/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>

#include "base/check.h"
#include "pack/json.h"
#include "pack/mapped_file.h"

namespace splash::pack {
namespace {

// The limits of the reference implementation, and enough for any tensor that a matrix can come from.
constexpr std::size_t length_bytes = 8;
constexpr std::uint64_t largest_header_bytes = 100'000'000;
constexpr std::size_t largest_rank = 8;
constexpr std::int64_t largest_extent = std::int64_t{1} << 40;

Result<TensorView> read_tensor(const std::string& name, const JsonNode& node, std::span<const std::byte> data) {
  TensorView tensor;
  tensor.name = name;
  SPLASH_TRY(const JsonNode dtype, node.get("dtype"));
  SPLASH_TRY(tensor.dtype, dtype.text());
  const int element_bytes = dtype_bytes(tensor.dtype);
  if (element_bytes == 0) return fail(ErrorKind::unsupported, "{}: unknown dtype \"{}\"", node.place(), tensor.dtype);

  SPLASH_TRY(const JsonNode shape, node.get("shape"));
  SPLASH_TRY(const auto extents, shape.items());
  if (extents.size() > largest_rank) return fail(ErrorKind::corrupt, "{}: more than 8 dimensions", shape.place());
  std::int64_t bytes = element_bytes;
  for (const JsonNode& extent : extents) {
    SPLASH_TRY(const std::int64_t count, extent.integer(0, largest_extent));
    if (__builtin_mul_overflow(bytes, count, &bytes)) {
      return fail(ErrorKind::corrupt, "{}: the number of bytes overflows", shape.place());
    }
    tensor.shape.push_back(count);
  }

  SPLASH_TRY(const JsonNode offsets, node.get("data_offsets"));
  SPLASH_TRY(const auto range, offsets.items());
  if (range.size() != 2) return fail(ErrorKind::corrupt, "{}: expected two offsets", offsets.place());
  const auto size = static_cast<std::int64_t>(data.size());
  SPLASH_TRY(const std::int64_t begin, range[0].integer(0, std::int64_t{1} << 60));
  SPLASH_TRY(const std::int64_t end, range[1].integer(0, std::int64_t{1} << 60));
  if (begin > end || end > size) {
    return fail(ErrorKind::corrupt, "{}: [{}, {}) lies outside the {} bytes of data: the file is truncated or damaged",
                offsets.place(), begin, end, size);
  }
  if (end - begin != bytes) {
    return fail(ErrorKind::corrupt, "{}: {} bytes, but the shape and dtype {} need {}", offsets.place(), end - begin,
                tensor.dtype, bytes);
  }
  tensor.data = data.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(bytes));
  return tensor;
}

// Tensors must follow each other without overlap or gap and fill the file, as in the reference implementation:
// anything else is a damaged file or bytes that nobody accounts for.
Status check_coverage(std::vector<const TensorView*> tensors, std::span<const std::byte> data, std::string_view file) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorView* a, const TensorView* b) {
    return std::pair(a->data.data(), a->data.size()) < std::pair(b->data.data(), b->data.size());
  });
  const std::byte* next = data.data();
  for (const TensorView* tensor : tensors) {
    if (tensor->data.data() != next) {
      return fail(ErrorKind::corrupt, "{}: {}: its data {} the tensor before it", file, tensor->name,
                  tensor->data.data() < next ? "overlaps" : "does not follow");
    }
    next += tensor->data.size();
  }
  if (next != data.data() + data.size()) {
    return fail(ErrorKind::corrupt, "{}: {} bytes after the last tensor", file, data.data() + data.size() - next);
  }
  return {};
}

Result<std::string_view> header_text(std::span<const std::byte> file, std::string_view name) {
  std::uint64_t header_bytes = 0;
  if (file.size() < length_bytes) {
    return fail(ErrorKind::corrupt, "{}: {} bytes are too few for a safetensors file", name, file.size());
  }
  std::memcpy(&header_bytes, file.data(), length_bytes);
  if (header_bytes > largest_header_bytes || header_bytes > file.size() - length_bytes) {
    return fail(ErrorKind::corrupt, "{}: the header claims {} bytes, the file has {}: truncated, or not safetensors",
                name, header_bytes, file.size());
  }
  return std::string_view(reinterpret_cast<const char*>(file.data()) + length_bytes,
                          static_cast<std::size_t>(header_bytes));
}

class MappedSafetensors final : public SafetensorsFile {
 public:
  MappedSafetensors(MappedFile file, std::vector<TensorView> tensors)
      : file_(std::move(file)), tensors_(std::move(tensors)) {
    for (const TensorView& tensor : tensors_) by_name_.emplace(tensor.name, &tensor);
  }
  const std::vector<TensorView>& tensors() const override { return tensors_; }
  const TensorView* find(std::string_view name) const override {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }

 private:
  MappedFile file_;
  std::vector<TensorView> tensors_;
  std::map<std::string_view, const TensorView*> by_name_;
};

}  // namespace

std::int64_t TensorView::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

int dtype_bytes(std::string_view dtype) {
  if (dtype == "BOOL" || dtype == "U8" || dtype == "I8" || dtype.starts_with("F8_")) return 1;
  if (dtype == "U16" || dtype == "I16" || dtype == "F16" || dtype == "BF16") return 2;
  if (dtype == "U32" || dtype == "I32" || dtype == "F32") return 4;
  if (dtype == "U64" || dtype == "I64" || dtype == "F64") return 8;
  return 0;
}

Result<std::vector<TensorView>> parse_safetensors(std::span<const std::byte> file, std::string_view name) {
  SPLASH_TRY(const std::string_view header, header_text(file, name));
  SPLASH_TRY(const boost::json::value document, parse_json(header, name));
  const JsonNode root(document, fmt::format("{}: ", name));
  SPLASH_TRY(const auto members, root.members());
  const std::span<const std::byte> data = file.subspan(length_bytes + header.size());

  std::vector<TensorView> tensors;
  for (const auto& [key, node] : members) {
    if (key == "__metadata__") continue;
    auto tensor = read_tensor(key, node, data);
    if (!tensor) {
      tensor.error().parameter = name;
      return tl::unexpected(std::move(tensor).error());
    }
    tensors.push_back(std::move(*tensor));
  }
  std::vector<const TensorView*> order;
  for (const TensorView& tensor : tensors) order.push_back(&tensor);
  SPLASH_TRY_STATUS(check_coverage(std::move(order), data, name));
  return tensors;
}

Result<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::open(const std::filesystem::path& path) {
  SPLASH_TRY(MappedFile file, MappedFile::open(path));
  SPLASH_TRY(auto tensors, parse_safetensors(file.bytes(), path.string()));
  return std::make_shared<const MappedSafetensors>(std::move(file), std::move(tensors));
}

Status write_safetensors(const std::filesystem::path& path, std::span<const OutputTensor> tensors) {
  std::string header = "{";
  std::uint64_t offset = 0;
  for (const OutputTensor& tensor : tensors) {
    std::int64_t elements = 1;
    for (const std::int64_t extent : tensor.shape) elements *= extent;
    SPLASH_CHECK(elements * dtype_bytes(tensor.dtype) == static_cast<std::int64_t>(tensor.data.size()),
                 "tensor {} has {} bytes", tensor.name, tensor.data.size());
    header += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                          header.size() > 1 ? "," : "", quote_json(tensor.name), tensor.dtype,
                          fmt::join(tensor.shape, ","), offset, offset + tensor.data.size());
    offset += tensor.data.size();
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');  // so that the data is aligned to 8 bytes

  // Written beside its place and renamed, so that a reader never meets half a file.
  const std::filesystem::path partial = path.string() + ".partial";
  std::ofstream stream(partial, std::ios::binary | std::ios::trunc);
  const std::uint64_t header_bytes = header.size();
  stream.write(reinterpret_cast<const char*>(&header_bytes), length_bytes);
  stream.write(header.data(), static_cast<std::streamsize>(header.size()));
  for (const OutputTensor& tensor : tensors) {
    stream.write(reinterpret_cast<const char*>(tensor.data.data()), static_cast<std::streamsize>(tensor.data.size()));
  }
  stream.close();
  std::error_code code;
  if (stream) std::filesystem::rename(partial, path, code);
  if (!stream || code) {
    std::filesystem::remove(partial, code);
    return fail_parameter(ErrorKind::io, path.string(), "{}: cannot write: {}", path.string(), std::strerror(errno));
  }
  return {};
}

}  // namespace splash::pack
