// What is to be written into a pack, independent of where it comes from: importers and `synth` make it, write_pack
// writes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "pack/manifest.h"
#include "pack/sections.h"

namespace splash::pack {

// The bytes of a section, made in pieces: `units` pieces of `unit_bytes` (a strip of a matrix, a row of a table, or a
// whole vector).
struct SectionContent {
  SectionShape shape;
  std::string kind;
  std::int64_t units = 0;
  std::int64_t unit_bytes = 0;
  // Writes units [first, first + count) to `out` (count * unit_bytes, zeroed before). Called from several threads, for
  // different sections.
  std::function<Status(std::int64_t first, std::int64_t count, std::byte* out)> fill;

  std::int64_t bytes() const { return units * unit_bytes; }
};

SectionContent matrix_content(const SectionShape& shape, Format format);  // without `fill`

struct PackContent {
  Manifest manifest;  // without files and sections, and without the full hashes of the source's files
  std::vector<SectionContent> sections;
  std::filesystem::path target_folder;  // empty: no source
  std::filesystem::path draft_folder;
  std::vector<std::string> tokenizer_files;  // copied from target_folder
};

}  // namespace splash::pack
