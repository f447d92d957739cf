#include "pack/fingerprint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "pack/sha256.h"

namespace splash::pack {
namespace {

constexpr std::int64_t whole_bytes = 4 << 20;
constexpr std::int64_t head_bytes = 1 << 20;
constexpr std::int64_t block_bytes = 4096;
constexpr int blocks = 64;

tl::unexpected<Error> cannot_read(const std::filesystem::path& path) {
  const auto kind = errno == ENOENT ? ErrorKind::not_found : ErrorKind::io;
  return fail_parameter(kind, path.string(), "{}: cannot read: {}", path.string(), std::strerror(errno));
}

class OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& path) : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~OpenFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

bool hash_range(int file, std::int64_t offset, std::int64_t bytes, Sha256& hash) {
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(bytes, head_bytes)));
  while (bytes > 0) {
    const ssize_t count =
        ::pread(file, buffer.data(), std::min(buffer.size(), static_cast<std::size_t>(bytes)), offset);
    if (count <= 0) return false;
    hash.add(std::span(buffer).first(static_cast<std::size_t>(count)));
    offset += count;
    bytes -= count;
  }
  return true;
}

}  // namespace

Result<SourceFile> sample_file(const std::filesystem::path& folder, const std::string& relative) {
  const std::filesystem::path path = folder / relative;
  const OpenFile file(path);
  struct stat facts {};
  if (file.get() < 0 || ::fstat(file.get(), &facts) != 0) return cannot_read(path);
  SourceFile result{.path = relative, .size = facts.st_size};
  result.modified_ns = facts.st_mtim.tv_sec * std::int64_t{1'000'000'000} + facts.st_mtim.tv_nsec;
  Sha256 hash;
  const std::string size = std::to_string(result.size);
  hash.add(std::as_bytes(std::span(size)));
  bool read = hash_range(file.get(), 0, result.size <= whole_bytes ? result.size : head_bytes, hash);
  if (result.size > whole_bytes) {
    for (int i = 1; i <= blocks && read; ++i) {  // the last block ends at the end of the file
      const std::int64_t offset = (result.size - block_bytes) / blocks * i;
      read = hash_range(file.get(), i == blocks ? result.size - block_bytes : offset, block_bytes, hash);
    }
  }
  if (!read) return cannot_read(path);
  result.sample_sha256 = hash.hex();
  return result;
}

Result<Holding> source_holds(const std::filesystem::path& folder, const std::vector<std::string>& now,
                             const Provenance& recorded) {
  if (now.size() != recorded.files.size()) return Holding::changed;
  Holding holding = Holding::same;
  for (std::size_t i = 0; i < now.size(); ++i) {
    const SourceFile& before = recorded.files[i];
    if (before.path != now[i]) return Holding::changed;
    SPLASH_TRY(const SourceFile today, sample_file(folder, now[i]));
    if (today.size != before.size || today.sample_sha256 != before.sample_sha256) return Holding::changed;
    if (today.modified_ns == before.modified_ns) continue;
    SPLASH_TRY(const std::string hash, sha256_of_file(folder / now[i]));
    if (hash != before.sha256) return Holding::changed;
    holding = Holding::only_times;
  }
  return holding;
}

Status check_blob_name(const std::filesystem::path& folder, const SourceFile& file) {
  std::error_code code;
  const std::filesystem::path real = std::filesystem::canonical(folder / file.path, code);
  if (code || real.parent_path().filename() != "blobs") return {};
  const std::string name = real.filename().string();
  if (name.size() != 64 || name.find_first_not_of("0123456789abcdef") != std::string::npos) return {};
  if (name == file.sha256) return {};
  const std::string path = (folder / file.path).string();
  return fail_parameter(ErrorKind::corrupt, path,
                        "{}: its SHA-256 is {}, but it was published as {}: the download is damaged, delete the file "
                        "and download it again",
                        path, file.sha256, name);
}

}  // namespace splash::pack
