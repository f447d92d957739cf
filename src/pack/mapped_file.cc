#include "pack/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

namespace splash::pack {

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    const auto kind = errno == ENOENT ? ErrorKind::not_found : ErrorKind::io;
    return fail_parameter(kind, path.string(), "{}: cannot open: {}", path.string(), std::strerror(errno));
  }
  struct stat facts {};
  MappedFile mapped;
  void* data = nullptr;
  int error = 0;
  if (::fstat(file, &facts) != 0) error = errno;
  if (error == 0 && !S_ISREG(facts.st_mode)) error = EISDIR;
  if (error == 0 && facts.st_size > 0) {
    data = ::mmap(nullptr, static_cast<std::size_t>(facts.st_size), PROT_READ, MAP_SHARED, file, 0);
    if (data == MAP_FAILED) error = errno;
  }
  ::close(file);
  if (error != 0) {
    return fail_parameter(ErrorKind::io, path.string(), "{}: cannot map: {}", path.string(), std::strerror(error));
  }
  mapped.data_ = static_cast<const std::byte*>(data);
  mapped.size_ = static_cast<std::size_t>(facts.st_size);
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void release_pages(std::span<const std::byte> mapped) {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(mapped.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(mapped.data() + mapped.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

Result<std::string> read_text_file(const std::filesystem::path& path, std::size_t most_bytes) {
  std::error_code code;
  const auto size = std::filesystem::file_size(path, code);
  if (code) {
    const auto kind = code == std::errc::no_such_file_or_directory ? ErrorKind::not_found : ErrorKind::io;
    return fail_parameter(kind, path.string(), "{}: cannot read: {}", path.string(), code.message());
  }
  if (size > most_bytes) {
    return fail_parameter(ErrorKind::corrupt, path.string(), "{}: {} bytes, more than the {} that such a file may have",
                          path.string(), size, most_bytes);
  }
  std::ifstream stream(path, std::ios::binary);
  std::string text(size, '\0');
  if (!stream.read(text.data(), static_cast<std::streamsize>(size))) {
    return fail_parameter(ErrorKind::io, path.string(), "{}: cannot read", path.string());
  }
  return text;
}

}  // namespace splash::pack
