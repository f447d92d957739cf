// A file mapped read-only and shared for the life of the object.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "base/result.h"

namespace splash::pack {

class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile() = default;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Lets the system take back the pages of a mapped range that will not be read again soon. The data stays readable.
void release_pages(std::span<const std::byte> mapped);

// A whole small file; fails when it is larger than `most_bytes`.
Result<std::string> read_text_file(const std::filesystem::path& path, std::size_t most_bytes);

}  // namespace splash::pack
