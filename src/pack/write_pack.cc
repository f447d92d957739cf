#include "pack/write_pack.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "base/thread_pool.h"
#include "pack/fingerprint.h"
#include "pack/json.h"
#include "pack/mapped_file.h"
#include "pack/progress.h"
#include "pack/sha256.h"

namespace splash::pack {
namespace {

namespace fs = std::filesystem;

// What one thread makes at a time: large enough to write well, small enough that memory stays far below 1 GiB.
constexpr std::int64_t batch_bytes = 8 << 20;
constexpr int most_threads = 32;

tl::unexpected<Error> cannot(std::string_view verb, const fs::path& path, int error) {
  return fail_parameter(ErrorKind::io, path.string(), "{}: cannot {}: {}", path.string(), verb, std::strerror(error));
}

// One file of the pack: written from front to back, hashed on the way.
class FileWriter {
 public:
  static Result<std::unique_ptr<FileWriter>> create(const fs::path& path) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file < 0) return cannot("create", path, errno);
    return std::unique_ptr<FileWriter>(new FileWriter(path, file));
  }
  ~FileWriter() { ::close(file_); }

  Status write(std::span<const std::byte> bytes) {
    hash_.add(bytes);
    size_ += static_cast<std::int64_t>(bytes.size());
    while (!bytes.empty()) {
      const ssize_t count = ::write(file_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return cannot("write", path_, errno);
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
    return {};
  }
  Status pad_to(std::int64_t alignment) {
    const std::vector<std::byte> zeros(static_cast<std::size_t>((alignment - size_ % alignment) % alignment));
    return write(zeros);
  }
  Result<PackedFile> finish(const std::string& relative) {
    if (::fsync(file_) != 0) return cannot("sync", path_, errno);
    return PackedFile{.path = relative, .size = size_, .sha256 = hash_.hex()};
  }
  std::int64_t size() const { return size_; }

 private:
  FileWriter(fs::path path, int file) : path_(std::move(path)), file_(file) {}

  fs::path path_;
  int file_;
  std::int64_t size_ = 0;
  Sha256 hash_;
};

// One task of a worker: a file of sections, a copied file, or a file of the source to hash in full.
struct Job {
  std::int64_t bytes = 0;
  std::string path;  // in the pack
  std::vector<const SectionContent*> sections;
  SourceFile* source = nullptr;
  fs::path folder;     // of a copied or hashed file
  std::string copied;  // name in `folder`
};

class PackWriter {
 public:
  PackWriter(PackContent& content, fs::path partial, const WriteOptions& options)
      : content_(content), partial_(std::move(partial)), options_(options) {}

  Status run();

 private:
  void collect_jobs();
  void add_source_jobs(std::vector<SourceFile>& files, const fs::path& folder);
  // `buffer` is the worker's own: one allocation for all its batches.
  Status do_job(const Job& job, std::vector<std::byte>& buffer, Progress& progress);
  Status write_sections(const Job& job, std::vector<std::byte>& buffer, Progress& progress);
  Status write_section(const SectionContent& section, FileWriter& file, std::vector<std::byte>& buffer,
                       Progress& progress);
  Status copy_file(const Job& job);
  Status write_manifest();
  bool stopped() const { return options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed); }
  static tl::unexpected<Error> stop_error() { return fail(ErrorKind::cancelled, "packing was interrupted"); }

  PackContent& content_;
  fs::path partial_;
  const WriteOptions& options_;
  std::vector<Job> jobs_;
  std::mutex mutex_;  // guards the results below
  Status status_;
  std::vector<PackedFile> files_;
  std::map<const SectionContent*, std::int64_t> offsets_;
};

void PackWriter::add_source_jobs(std::vector<SourceFile>& files, const fs::path& folder) {
  for (SourceFile& file : files) jobs_.push_back({.bytes = file.size, .source = &file, .folder = folder});
}

void PackWriter::collect_jobs() {
  std::map<std::string, Job> by_file;
  for (const SectionContent& section : content_.sections) {
    Job& job = by_file[section.shape.file];
    job.path = section.shape.file;
    job.sections.push_back(&section);
    job.bytes += section.bytes();
  }
  for (auto& [path, job] : by_file) jobs_.push_back(std::move(job));
  for (const std::string& name : content_.tokenizer_files) {
    jobs_.push_back({.path = "tokenizer/" + name, .folder = content_.target_folder, .copied = name});
  }
  add_source_jobs(content_.manifest.target_source.files, content_.target_folder);
  if (content_.manifest.draft_source) {
    add_source_jobs(content_.manifest.draft_source->files, content_.draft_folder);
  }
  // Largest first, so that the threads end together.
  std::stable_sort(jobs_.begin(), jobs_.end(), [](const Job& a, const Job& b) { return a.bytes > b.bytes; });
}

Status PackWriter::write_section(const SectionContent& section, FileWriter& file, std::vector<std::byte>& buffer,
                                 Progress& progress) {
  const std::int64_t batch = std::max<std::int64_t>(1, batch_bytes / section.unit_bytes);
  for (std::int64_t first = 0; first < section.units; first += batch) {
    if (stopped()) return stop_error();
    const std::int64_t count = std::min(batch, section.units - first);
    buffer.assign(static_cast<std::size_t>(count * section.unit_bytes), std::byte{0});
    SPLASH_TRY_STATUS(section.fill(first, count, buffer.data()));
    SPLASH_TRY_STATUS(file.write(buffer));
    progress.add(count * section.unit_bytes);
  }
  return {};
}

Status PackWriter::write_sections(const Job& job, std::vector<std::byte>& buffer, Progress& progress) {
  SPLASH_TRY(const auto file, FileWriter::create(partial_ / job.path));
  for (const SectionContent* section : job.sections) {
    SPLASH_TRY_STATUS(file->pad_to(section_alignment));
    {
      const std::lock_guard lock(mutex_);
      offsets_[section] = file->size();
    }
    SPLASH_TRY_STATUS(write_section(*section, *file, buffer, progress));
  }
  SPLASH_TRY_STATUS(file->pad_to(section_alignment));
  SPLASH_TRY(PackedFile packed, file->finish(job.path));
  const std::lock_guard lock(mutex_);
  files_.push_back(std::move(packed));
  return {};
}

Status PackWriter::copy_file(const Job& job) {
  SPLASH_TRY(const MappedFile source, MappedFile::open(job.folder / job.copied));
  SPLASH_TRY(const auto file, FileWriter::create(partial_ / job.path));
  SPLASH_TRY_STATUS(file->write(source.bytes()));
  SPLASH_TRY(PackedFile packed, file->finish(job.path));
  const std::lock_guard lock(mutex_);
  files_.push_back(std::move(packed));
  return {};
}

Status PackWriter::do_job(const Job& job, std::vector<std::byte>& buffer, Progress& progress) {
  if (!job.sections.empty()) return write_sections(job, buffer, progress);
  if (!job.copied.empty()) return copy_file(job);
  SPLASH_TRY(job.source->sha256, sha256_of_file(job.folder / job.source->path));
  progress.add(job.bytes);
  return check_blob_name(job.folder, *job.source);
}

Status PackWriter::write_manifest() {
  std::sort(files_.begin(), files_.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  content_.manifest.files = std::move(files_);
  for (const SectionContent& section : content_.sections) {
    content_.manifest.sections.push_back(
        {.shape = section.shape, .kind = section.kind, .offset = offsets_.at(&section), .bytes = section.bytes()});
  }
  const std::string text = manifest_text(content_.manifest);
  SPLASH_TRY(const auto file, FileWriter::create(partial_ / manifest_name));
  SPLASH_TRY_STATUS(file->write(std::as_bytes(std::span(text))));
  SPLASH_TRY(const PackedFile packed, file->finish(manifest_name));
  return {};
}

Status PackWriter::run() {
  for (const char* folder : {"target", "draft", "tokenizer"}) {
    const bool used =
        std::string_view(folder) == "target" ||
        (std::string_view(folder) == "draft" ? content_.manifest.draft.has_value() : !content_.tokenizer_files.empty());
    std::error_code code;
    if (used) fs::create_directories(partial_ / folder, code);
    if (code) return cannot("create", partial_ / folder, code.value());
  }
  collect_jobs();
  std::int64_t total = 0;
  for (const Job& job : jobs_) total += job.bytes;
  Progress progress("packing " + content_.manifest.name, total, options_.show_progress);
  const int processors = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, most_threads);
  ThreadPool pool(options_.threads > 0 ? options_.threads : processors);
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  pool.run([&](int) {
    std::vector<std::byte> buffer;
    for (std::size_t i = next++; i < jobs_.size() && !failed; i = next++) {
      Status status = stopped() ? stop_error() : do_job(jobs_[i], buffer, progress);
      if (status) continue;
      failed = true;
      const std::lock_guard lock(mutex_);
      if (status_) status_ = std::move(status);
    }
  });
  SPLASH_TRY_STATUS(status_);
  if (stopped()) return stop_error();
  return write_manifest();
}

// ---- the destination

bool is_pack(const fs::path& folder) {
  const auto text = read_text_file(folder / manifest_name, most_manifest_bytes);
  if (!text) return false;
  const auto document = parse_json(*text, manifest_name);
  return document && JsonNode(*document, "").find("schema").has_value();
}

Status check_destination(const fs::path& destination) {
  std::error_code code;
  const auto kind = fs::symlink_status(destination, code).type();
  if (kind == fs::file_type::not_found) return {};
  if (kind == fs::file_type::directory && (fs::is_empty(destination, code) || is_pack(destination))) return {};
  return fail_parameter(ErrorKind::invalid, destination.string(),
                        "{}: exists and is not a pack; choose another place or remove it first", destination.string());
}

// Removes what killed processes left beside the destination.
void remove_stale_partials(const fs::path& destination) {
  const std::string prefix = destination.filename().string() + ".partial-";
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(destination.parent_path(), code)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    pid_t process = 0;
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), process);
    if (process > 0 && ::kill(process, 0) != 0 && errno == ESRCH) fs::remove_all(entry.path(), code);
  }
}

Status sync_folder(const fs::path& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return cannot("open", folder, errno);
  const int result = ::fsync(file);
  const int error = errno;
  ::close(file);
  if (result != 0) return cannot("sync", folder, error);
  return {};
}

// A pack that is already there changes places with the new one in one step, so that a reader finds one or the other.
Status publish(const fs::path& partial, const fs::path& destination) {
  for (const char* folder : {"target", "draft", "tokenizer", "."}) {
    std::error_code code;
    if (fs::exists(partial / folder, code)) SPLASH_TRY_STATUS(sync_folder(partial / folder));
  }
  if (::rename(partial.c_str(), destination.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) return cannot("rename", partial, errno);
    if (::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, destination.c_str(), RENAME_EXCHANGE) != 0) {
      return cannot("replace", destination, errno);
    }
    std::error_code code;
    fs::remove_all(partial, code);
  }
  return sync_folder(destination.parent_path());
}

}  // namespace

Status write_pack(PackContent content, const fs::path& to, const WriteOptions& options) {
  fs::path destination = fs::absolute(to).lexically_normal();
  if (destination.filename().empty()) destination = destination.parent_path();  // "folder/"
  SPLASH_TRY_STATUS(check_destination(destination));
  std::error_code code;
  fs::create_directories(destination.parent_path(), code);
  if (code) return cannot("create", destination.parent_path(), code.value());
  remove_stale_partials(destination);
  const fs::path partial = destination.string() + ".partial-" + std::to_string(::getpid());
  fs::remove_all(partial, code);
  Status status = PackWriter(content, partial, options).run();
  if (status) status = publish(partial, destination);
  if (!status) fs::remove_all(partial, code);
  return status;
}

}  // namespace splash::pack
