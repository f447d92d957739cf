// Reads what a checkpoint says about itself: config.json of a target and of a DFlash 2 draft.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "pack/geometry.h"
#include "pack/json.h"

namespace splash::pack {

// The bounds that every geometry must keep, whether it was read from a config or from a manifest: with them no size
// computed from it overflows. `place` is for messages.
Status check_geometry(const TargetGeometry& geometry, std::string_view place);
Status check_geometry(const DraftGeometry& geometry, std::string_view place);
// A draft works on its target's hidden states and vocabulary.
Status check_match(const TargetGeometry& target, const DraftGeometry& draft, std::string_view place);

struct MlxBits {
  int bits = 4;
  int group_size = 64;
};

// `quantization` of an MLX config: a default and entries that win over it for one path.
struct MlxQuantization {
  MlxBits standard;
  std::map<std::string, std::optional<MlxBits>, std::less<>> overrides;  // nullopt: this matrix is not quantised
};

struct TargetConfig {
  TargetGeometry geometry;
  std::optional<MlxQuantization> quantization;
};

struct DraftConfig {
  DraftGeometry geometry;
  std::optional<int> target_layers;  // num_target_layers
};

// `text` is the content of config.json, `file` its name for messages.
Result<TargetConfig> parse_target_config(std::string_view text, std::string_view file);
Result<DraftConfig> parse_draft_config(std::string_view text, std::string_view file);

// Pieces of both: rope settings live in `rope_parameters` (new) or beside it (old).
struct Rope {
  double theta = 0;
  double partial_rotary_factor = 0;
};
Result<Rope> parse_rope(const JsonNode& text_config, double standard_partial_rotary_factor);
Result<int> parse_count(const JsonNode& object, std::string_view key, int most);
Result<int> parse_count_or(const JsonNode& object, std::string_view key, int most, int standard);
// Fails when `key` is there and not the one value that this engine implements.
Status demand_text(const JsonNode& object, std::string_view key, std::string_view only);
Status demand_bool(const JsonNode& object, std::string_view key, bool only);

inline constexpr int most_layers = 512;
inline constexpr int most_width = 1 << 18;  // hidden, intermediate, heads x head size
inline constexpr int most_heads = 4096;
inline constexpr int most_head_dim = 1024;
inline constexpr int most_vocab = 1 << 22;
inline constexpr int most_positions = 1 << 26;

}  // namespace splash::pack
