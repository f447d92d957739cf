// Which sections a geometry demands, with their shapes and the file each one lies in: the one list that importers fill,
// that a synthetic pack is made from, and that open() compares a manifest with.
#pragma once

#include <string>
#include <vector>

#include "pack/geometry.h"
#include "pack/package.h"

namespace splash::pack {

enum class Role {
  matrix,  // strips of 16 rows in one of the formats of weight.h
  vector,  // row-major float32
  table,   // row-major bf16 or float32, gathered by row
};

struct SectionShape {
  Component component = Component::target;
  std::string name;
  Role role = Role::matrix;
  int rows = 0;
  int cols = 1;
  std::string file;  // in the pack

  std::int64_t elements() const { return std::int64_t{rows} * cols; }
};

// In the order in which they lie in their files.
std::vector<SectionShape> target_sections(const TargetGeometry& geometry);
std::vector<SectionShape> draft_sections(const DraftGeometry& geometry);

// Sections start at multiples of this in their file.
inline constexpr std::int64_t section_alignment = 16 * 1024;

std::string_view component_name(Component component);

// Kinds of sections as the manifest spells them.
inline constexpr std::string_view kind_vector = "vector";
inline constexpr std::string_view kind_table_bf16 = "table-bf16";
inline constexpr std::string_view kind_table_f32 = "table-f32";
std::string_view format_name(Format format);

// Bytes of a section of this kind and shape; 0 if the role cannot have the kind or the kind cannot have the shape.
std::int64_t section_bytes(Role role, std::string_view kind, int rows, int cols);

}  // namespace splash::pack
