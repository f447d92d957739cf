// A pack opened for use: the manifest checked, its files mapped read-only and shared, sections handed out by name.
//
// Section names are the Hugging Face module names without the prefix (`model.`, `model.language_model.`,
// `language_model.model.`) and without a trailing `.weight`:
//   target  embed_tokens, lm_head (absent if tied), norm, layers.L.{input_layernorm, post_attention_layernorm,
//           mlp.{gate_proj,up_proj,down_proj}, self_attn.{q_proj,k_proj,v_proj,o_proj,q_norm,k_norm},
//           linear_attn.{in_proj_qkv,in_proj_z,in_proj_b,in_proj_a,conv1d,A_log,dt_bias,norm,out_proj}}
//   draft   as published (dflash2.md 3.3): layers.L.attention_conv.base_kernel, fc, candidate_selector.*, ...
// Vectors are float32. Norm gains of the target are the effective gain: 1 + w of a Hugging Face source for the
// zero-centred norms, the stored value for `linear_attn.norm`, for MLX sources and for the draft.
// conv1d is [channels][kernel].
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "pack/geometry.h"
#include "pack/weight.h"

namespace splash::pack {

enum class Component { target, draft };

struct SectionInfo {
  Component component;
  std::string name;
  std::string kind;    // "q4", "bf16", "f32", "vector", "table-bf16", "table-f32"
  int rows = 0, cols = 0;
  std::int64_t bytes = 0;
};

class Package {
 public:
  // Opens a pack folder: schema, sizes, bounds and alignment are checked, hashes are not (see verify).
  static Result<std::shared_ptr<const Package>> open(const std::filesystem::path& folder);
  virtual ~Package() = default;

  virtual const TargetGeometry& target() const = 0;
  virtual const DraftGeometry* draft() const = 0;  // null: no draft, the model runs plain
  virtual const std::filesystem::path& folder() const = 0;
  virtual std::optional<std::filesystem::path> tokenizer_folder() const = 0;
  virtual std::string name() const = 0;  // for /v1/models

  // A section that the geometry demands is there with the right shape: open() checked it. CHECKs otherwise.
  virtual Weight weight(Component component, std::string_view name) const = 0;
  virtual std::span<const float> vector(Component component, std::string_view name) const = 0;
  virtual Table table(Component component, std::string_view name) const = 0;
  virtual bool has(Component component, std::string_view name) const = 0;
  virtual std::vector<SectionInfo> sections() const = 0;
};

// Hashes every file of a pack; the error names the first that differs.
Status verify(const std::filesystem::path& folder);

enum class WeightChoice { q4, source };

struct PackOptions {
  WeightChoice weights = WeightChoice::q4;
  std::optional<std::filesystem::path> draft;  // a DFlash 2 folder
  bool show_progress = false;                  // a bar on standard error
  const std::atomic<bool>* stop = nullptr;     // set by a signal handler: packing ends with ErrorKind::cancelled
};

// Packs a Hugging Face bf16 folder or an MLX 4-bit folder into `destination`. Nothing that loads is left behind when it
// is interrupted or fails.
Status pack_folder(const std::filesystem::path& source, const std::filesystem::path& destination,
                   const PackOptions& options);

// Any model argument of any verb: a pack is opened; a source folder is packed once into the cache directory
// ($XDG_CACHE_HOME/splash or ~/.cache/splash) and reused while the source's hashes hold. `draft` as in PackOptions.
Result<std::shared_ptr<const Package>> open_model(const std::filesystem::path& path, const PackOptions& options);

}  // namespace splash::pack
