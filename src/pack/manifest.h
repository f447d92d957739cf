// manifest.json of a pack: what is in it, where, and where it came from (docs/pack-format.md).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "pack/geometry.h"
#include "pack/sections.h"

namespace splash::pack {

inline constexpr int manifest_schema = 1;
inline constexpr std::size_t most_manifest_bytes = 16u << 20;
inline constexpr const char* manifest_name = "manifest.json";

struct PackedFile {
  std::string path;  // relative to the pack, with '/'
  std::int64_t size = 0;
  std::string sha256;
};

struct PackedSection {
  SectionShape shape;
  std::string kind;
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

// A file of the source, as it was when it was packed (fingerprint.h).
struct SourceFile {
  std::string path;  // relative to the source folder
  std::int64_t size = 0;
  std::int64_t modified_ns = 0;
  std::string sample_sha256;
  std::string sha256;
};

struct Provenance {
  std::string kind;     // "huggingface", "mlx", "dflash2", "synthetic"
  std::string weights;  // "q4", "source"
  std::vector<SourceFile> files;
};

struct Manifest {
  std::string name;
  Provenance target_source;
  std::optional<Provenance> draft_source;
  TargetGeometry target;
  std::optional<DraftGeometry> draft;
  std::vector<PackedFile> files;
  std::vector<PackedSection> sections;
};

std::string manifest_text(const Manifest& manifest);

// Everything that can be checked without the files: schema, geometry, paths, hashes' form, and that the sections are
// exactly those of the geometry, aligned, inside their files and apart from each other.
Result<Manifest> parse_manifest(std::string_view text, std::string_view file);

// A path that stays inside its folder: relative, no "..", no backslash or control character.
bool is_safe_path(std::string_view path);

}  // namespace splash::pack
