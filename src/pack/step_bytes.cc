#include "pack/step_bytes.h"

#include <algorithm>

#include "pack/sections.h"

namespace splash::pack {
namespace {

void add_section(const SectionInfo& section, bool tied_head, StepBytes& bytes) {
  const bool gathered = section.kind == kind_table_bf16 || section.kind == kind_table_f32;
  const bool embedding = section.name == "embed_tokens";
  if (section.component == Component::draft) {
    if (!gathered) bytes.draft += section.bytes;
    if (section.name.ends_with("k_proj") || section.name.ends_with("v_proj")) bytes.draft_context += section.bytes;
  } else if (section.name == "lm_head" || (embedding && tied_head)) {
    bytes.head += section.bytes;
  } else if (!embedding) {
    bytes.target += section.bytes;
  }
}

}  // namespace

StepBytes step_bytes(const Package& package) {
  const TargetGeometry& g = package.target();
  StepBytes bytes;
  for (const SectionInfo& section : package.sections()) add_section(section, g.tied_head, bytes);
  if (package.draft() != nullptr) bytes.draft_head = bytes.head;

  const auto attention = std::count(g.layers.begin(), g.layers.end(), Mixer::attention);
  const auto gdn = std::ssize(g.layers) - attention;
  const std::int64_t state = std::int64_t{g.value_heads} * g.key_dim * g.value_dim;
  const std::int64_t columns = std::int64_t{g.conv_kernel - 1} * g.conv_channels();
  bytes.gdn_state = 2 * gdn * (state + columns) * static_cast<std::int64_t>(sizeof(float));
  bytes.kv_per_token = attention * 2 * g.kv_heads * (g.head_dim + static_cast<std::int64_t>(sizeof(float)));
  return bytes;
}

}  // namespace splash::pack
