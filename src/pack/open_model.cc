// Any model argument: a pack, or a source folder that is packed once into the cache.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/log.h"
#include "pack/checkpoint.h"
#include "pack/fingerprint.h"
#include "pack/import.h"
#include "pack/manifest.h"
#include "pack/mapped_file.h"
#include "pack/package.h"
#include "pack/sha256.h"

namespace splash::pack {
namespace {

namespace fs = std::filesystem;

Result<fs::path> cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return fs::path(cache) / "splash" / "packs";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home == '/') return fs::path(home) / ".cache" / "splash" / "packs";
  return fail(ErrorKind::io, "no cache directory: set XDG_CACHE_HOME or HOME to an absolute path");
}

// One place per source, draft and choice of weights: its real path, readable name first.
Result<fs::path> cached_place(const fs::path& source, const PackOptions& options) {
  SPLASH_TRY(const fs::path cache, cache_folder());
  std::error_code code;
  const std::string draft = options.draft ? fs::canonical(*options.draft, code).string() : std::string();
  const std::string identity = fmt::format("{}\n{}\n{}", fs::canonical(source, code).string(), draft,
                                           options.weights == WeightChoice::q4 ? "q4" : "source");
  Sha256 hash;
  hash.add(std::as_bytes(std::span(identity)));
  std::string name = model_name(source);
  for (char& c : name) {
    if (std::string_view("/\\ :").find(c) != std::string_view::npos) c = '-';
  }
  return cache / (name + "-" + hash.hex().substr(0, 16));
}

// Held while a pack is checked or made, so that two processes do not make it at once. Released by the system if the
// process dies.
class Lock {
 public:
  static Result<Lock> take(const fs::path& file, const PackOptions& options) {
    std::error_code code;
    fs::create_directories(file.parent_path(), code);
    const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor < 0) {
      return fail_parameter(ErrorKind::io, file.string(), "{}: cannot open: {}", file.string(), std::strerror(errno));
    }
    Lock lock(descriptor);
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return lock;
    if (options.show_progress) log::info("waiting for another process that packs this model");
    while (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      if (options.stop != nullptr && options.stop->load()) return fail(ErrorKind::cancelled, "interrupted");
      ::usleep(100'000);
    }
    return lock;
  }
  Lock(Lock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Lock& operator=(Lock&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Lock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

 private:
  explicit Lock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

// Takes the times of today into the manifest, so that the next start need not hash the touched files again.
Status refresh_times(const fs::path& pack, Manifest manifest, const fs::path& source, const PackOptions& options) {
  const auto refresh = [](Provenance& provenance, const fs::path& folder) -> Status {
    for (SourceFile& file : provenance.files) {
      SPLASH_TRY(const SourceFile today, sample_file(folder, file.path));
      file.modified_ns = today.modified_ns;
    }
    return {};
  };
  SPLASH_TRY_STATUS(refresh(manifest.target_source, source));
  if (options.draft && manifest.draft_source) SPLASH_TRY_STATUS(refresh(*manifest.draft_source, *options.draft));
  const fs::path fresh = pack / "manifest.json.new";
  std::ofstream stream(fresh, std::ios::binary | std::ios::trunc);
  stream << manifest_text(manifest);
  stream.close();
  std::error_code code;
  if (stream) fs::rename(fresh, pack / manifest_name, code);
  if (!stream || code) {
    return fail_parameter(ErrorKind::io, fresh.string(), "{}: cannot write", fresh.string());
  }
  return {};
}

// Whether the cached pack was made from what lies in the folders now. A pack that cannot be read is simply not it.
Result<bool> cache_holds(const fs::path& pack, const fs::path& source, const PackOptions& options) {
  std::error_code code;
  if (!fs::exists(pack / manifest_name, code)) return false;
  const auto text = read_text_file(pack / manifest_name, most_manifest_bytes);
  if (!text) return false;
  const auto manifest = parse_manifest(*text, (pack / manifest_name).string());
  if (!manifest || manifest->draft.has_value() != options.draft.has_value()) return false;
  SPLASH_TRY(const auto files, source_files(source));
  SPLASH_TRY(const Holding target, source_holds(source, files, manifest->target_source));
  Holding draft = Holding::same;
  if (options.draft) {
    SPLASH_TRY(const auto draft_files, source_files(*options.draft));
    SPLASH_TRY(draft, source_holds(*options.draft, draft_files, *manifest->draft_source));
  }
  if (target == Holding::changed || draft == Holding::changed) return false;
  if (target == Holding::same && draft == Holding::same) return true;
  SPLASH_TRY_STATUS(refresh_times(pack, *manifest, source, options));
  return true;
}

Result<std::shared_ptr<const Package>> open_source(const fs::path& source, const PackOptions& options) {
  SPLASH_TRY(const fs::path place, cached_place(source, options));
  SPLASH_TRY(const Lock lock, Lock::take(place.string() + ".lock", options));
  SPLASH_TRY(const bool holds, cache_holds(place, source, options));
  if (holds) {
    auto package = Package::open(place);
    if (package) return package;
    log::warn("{}; packing {} again", package.error().message, source.string());
  }
  SPLASH_TRY_STATUS(pack_folder(source, place, options));
  return Package::open(place);
}

}  // namespace

Result<std::shared_ptr<const Package>> open_model(const fs::path& path, const PackOptions& options) {
  const std::string shown = path.string();
  std::error_code code;
  if (!fs::is_directory(path, code)) {
    return fail_parameter(ErrorKind::not_found, shown,
                          "{}: no such folder; a model is a pack, a Hugging Face folder or "
                          "an MLX folder",
                          shown);
  }
  if (fs::exists(path / manifest_name, code)) {
    if (!options.draft) return Package::open(path);
    return fail_parameter(ErrorKind::unsupported, shown,
                          "{}: is a pack already; a draft is added when it is packed (splash pack SRC DST --draft DIR)",
                          shown);
  }
  if (fs::exists(path / "config.json", code)) return open_source(path, options);
  return fail_parameter(ErrorKind::not_found, shown,
                        "{}: neither a pack (manifest.json) nor a Hugging Face or MLX folder (config.json)", shown);
}

}  // namespace splash::pack
