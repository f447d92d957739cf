#include "pack/package.h"

#include <algorithm>
#include <map>
#include <set>

#include "pack/import.h"
#include "pack/manifest.h"
#include "pack/mapped_file.h"
#include "pack/sha256.h"
#include "pack/write_pack.h"

namespace splash::pack {
namespace {

namespace fs = std::filesystem;

// The real place of a file of the pack. Links inside the folder are fine (a snapshot in a cache), links out are not.
Result<fs::path> resolve(const fs::path& folder, const std::string& relative) {
  const std::string shown = (folder / relative).string();
  std::error_code code;
  const fs::path root = fs::canonical(folder, code);
  const fs::path real = code ? fs::path() : fs::canonical(root / relative, code);
  if (code) return fail_parameter(ErrorKind::not_found, shown, "{}: {}", shown, code.message());
  const auto [end, unused] = std::mismatch(root.begin(), root.end(), real.begin(), real.end());
  if (end != root.end()) {
    return fail_parameter(ErrorKind::corrupt, shown, "{}: is a link out of the pack's folder", shown);
  }
  if (!fs::is_regular_file(real, code)) {
    return fail_parameter(ErrorKind::corrupt, shown, "{}: is not a plain file", shown);
  }
  return real;
}

Status check_size(const fs::path& real, const PackedFile& file, const fs::path& folder) {
  std::error_code code;
  const auto size = static_cast<std::int64_t>(fs::file_size(real, code));
  if (!code && size == file.size) return {};
  const std::string shown = (folder / file.path).string();
  return fail_parameter(ErrorKind::corrupt, shown, "{}: {} bytes, the manifest says {}: the file is {}", shown, size,
                        file.size, size < file.size ? "truncated" : "damaged");
}

// A file in one of the pack's folders that the manifest does not list has no hash, so nobody answers for it.
Status check_listed(const fs::path& folder, const Manifest& manifest) {
  std::set<std::string> listed;
  for (const PackedFile& file : manifest.files) listed.insert(file.path);
  for (const char* part : {"target", "draft", "tokenizer"}) {
    std::error_code code;
    for (const auto& entry : fs::directory_iterator(folder / part, code)) {
      const std::string relative = std::string(part) + "/" + entry.path().filename().string();
      if (listed.contains(relative)) continue;
      const std::string shown = entry.path().string();
      return fail_parameter(ErrorKind::corrupt, shown, "{}: is not listed in the manifest, remove it", shown);
    }
  }
  return {};
}

Result<Manifest> load_manifest(const fs::path& folder) {
  const fs::path file = folder / manifest_name;
  SPLASH_TRY(const std::string text, read_text_file(file, most_manifest_bytes));
  SPLASH_TRY(Manifest manifest, parse_manifest(text, file.string()));
  SPLASH_TRY_STATUS(check_listed(folder, manifest));
  return manifest;
}

using Key = std::pair<Component, std::string>;

class MappedPackage final : public Package {
 public:
  static Result<std::shared_ptr<const Package>> open(const fs::path& folder) {
    auto package = std::make_shared<MappedPackage>();
    package->folder_ = folder;
    SPLASH_TRY(package->manifest_, load_manifest(folder));
    for (const PackedFile& file : package->manifest_.files) {
      SPLASH_TRY(const fs::path real, resolve(folder, file.path));
      SPLASH_TRY_STATUS(check_size(real, file, folder));
    }
    for (const PackedSection& section : package->manifest_.sections) {
      SPLASH_TRY_STATUS(package->map_section(section));
    }
    return package;
  }

  const TargetGeometry& target() const override { return manifest_.target; }
  const DraftGeometry* draft() const override { return manifest_.draft ? &*manifest_.draft : nullptr; }
  const fs::path& folder() const override { return folder_; }
  std::string name() const override { return manifest_.name; }

  std::optional<fs::path> tokenizer_folder() const override {
    for (const PackedFile& file : manifest_.files) {
      if (file.path.starts_with("tokenizer/")) return folder_ / "tokenizer";
    }
    return std::nullopt;
  }

  Weight weight(Component component, std::string_view name) const override {
    const auto& [section, data] = find(component, name, Role::matrix);
    const Format format = section->kind == "q4" ? Format::q4 : section->kind == "bf16" ? Format::bf16 : Format::f32;
    return {.format = format, .rows = section->shape.rows, .cols = section->shape.cols, .data = data};
  }

  std::span<const float> vector(Component component, std::string_view name) const override {
    const auto& [section, data] = find(component, name, Role::vector);
    return {reinterpret_cast<const float*>(data), static_cast<std::size_t>(section->shape.elements())};
  }

  Table table(Component component, std::string_view name) const override {
    const auto& [section, data] = find(component, name, Role::table);
    const Format format = section->kind == kind_table_bf16 ? Format::bf16 : Format::f32;
    return {.format = format, .rows = section->shape.rows, .cols = section->shape.cols, .data = data};
  }

  bool has(Component component, std::string_view name) const override {
    return sections_.contains(Key(component, name));
  }

  std::vector<SectionInfo> sections() const override {
    std::vector<SectionInfo> infos;
    for (const PackedSection& section : manifest_.sections) {
      const SectionShape& shape = section.shape;
      infos.push_back({shape.component, shape.name, section.kind, shape.rows, shape.cols, section.bytes});
    }
    return infos;
  }

 private:
  struct Mapped {
    const PackedSection* section = nullptr;
    const std::byte* data = nullptr;
  };

  Status map_section(const PackedSection& section) {
    auto file = files_.find(section.shape.file);
    if (file == files_.end()) {
      SPLASH_TRY(const fs::path real, resolve(folder_, section.shape.file));
      SPLASH_TRY(MappedFile mapped, MappedFile::open(real));
      file = files_.emplace(section.shape.file, std::move(mapped)).first;
    }
    // The size was checked a moment ago; should the file have changed since, no view may leave the mapping.
    if (section.offset + section.bytes > static_cast<std::int64_t>(file->second.bytes().size())) {
      return fail_parameter(ErrorKind::corrupt, section.shape.file, "{}: truncated", section.shape.file);
    }
    sections_.emplace(Key(section.shape.component, section.shape.name),
                      Mapped{&section, file->second.bytes().data() + section.offset});
    return {};
  }

  const Mapped& find(Component component, std::string_view name, Role role) const {
    const auto found = sections_.find(Key(component, name));
    SPLASH_CHECK(found != sections_.end(), "no {} section {}", component_name(component), name);
    SPLASH_CHECK(found->second.section->shape.role == role, "section {} is of kind {}", name,
                 found->second.section->kind);
    return found->second;
  }

  fs::path folder_;
  Manifest manifest_;
  std::map<std::string, MappedFile> files_;
  std::map<Key, Mapped> sections_;
};

}  // namespace

Result<std::shared_ptr<const Package>> Package::open(const fs::path& folder) { return MappedPackage::open(folder); }

Status verify(const fs::path& folder) {
  SPLASH_TRY(const Manifest manifest, load_manifest(folder));
  for (const PackedFile& file : manifest.files) {
    SPLASH_TRY(const fs::path real, resolve(folder, file.path));
    SPLASH_TRY_STATUS(check_size(real, file, folder));
    SPLASH_TRY(const std::string hash, sha256_of_file(real));
    if (hash == file.sha256) continue;
    const std::string shown = (folder / file.path).string();
    return fail_parameter(ErrorKind::corrupt, shown, "{}: its SHA-256 is {}, the manifest says {}: pack it again",
                          shown, hash, file.sha256);
  }
  return {};
}

Status pack_folder(const fs::path& source, const fs::path& destination, const PackOptions& options) {
  SPLASH_TRY(PackContent content, import_folders(source, options));
  return write_pack(std::move(content), destination, {.show_progress = options.show_progress, .stop = options.stop});
}

}  // namespace splash::pack
