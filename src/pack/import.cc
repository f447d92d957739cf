#include "pack/import.h"

#include <fmt/ranges.h>

#include <memory>
#include <set>

#include "base/log.h"
#include "pack/checkpoint.h"
#include "pack/config.h"
#include "pack/fingerprint.h"
#include "pack/import_matrix.h"
#include "pack/mapped_file.h"

namespace splash::pack {
namespace {

constexpr std::size_t most_config_bytes = 4u << 20;

// A checkpoint converted by MLX stores 1 + w for the zero-centred norms; one of Hugging Face stores w. Only the layout
// of conv1d tells them apart: the last dimension is the kernel ([C, 1, k], raw) or 1 ([C, k, 1], converted).
// (Presence of mtp.* does not: mlx-lm issues 1623, 1735.)
Result<bool> is_mlx(const Checkpoint& checkpoint, const TargetConfig& config) {
  const SourceTensor* first = nullptr;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (!name.ends_with("linear_attn.conv1d.weight") || tensor.view->shape.size() != 3) continue;
    const bool converted = tensor.view->shape.back() == 1;
    if (first != nullptr && converted != (first->view->shape.back() == 1)) {
      return fail_parameter(ErrorKind::corrupt, tensor.file, "{}: laid out differently from {}: a mixed conversion",
                            tensor.place(), first->view->name);
    }
    first = &tensor;
  }
  if (first != nullptr) return first->view->shape.back() == 1;
  return config.quantization.has_value();
}

// A tensor that nobody reads may be one that changes the result (a bias, a layer more than the config states), so it
// is refused unless it is known to be harmless.
Status check_leftovers(const Checkpoint& checkpoint, const std::vector<SectionShape>& shapes, bool tied_head) {
  std::set<std::string, std::less<>> known;
  for (const SectionShape& shape : shapes) known.insert(shape.name);
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    std::string_view section = name;
    for (const char* suffix : {".weight", ".scales", ".biases"}) section = without_suffix(section, suffix);
    if (known.contains(section)) continue;
    if (tied_head && section == "lm_head") continue;  // a copy of the embedding
    if (section.ends_with("rotary_emb.inv_freq")) continue;
    return fail_parameter(ErrorKind::unsupported, tensor.file,
                          "{}: the geometry of config.json has no such tensor, so the config belongs to another model "
                          "or the model is of a kind that is not supported",
                          tensor.place());
  }
  return {};
}

Result<std::vector<SectionContent>> import_sections(const std::vector<SectionShape>& shapes,
                                                    const std::shared_ptr<const Checkpoint>& checkpoint,
                                                    const ImportOptions& options) {
  std::vector<SectionContent> contents;
  for (const SectionShape& shape : shapes) {
    auto content = shape.role == Role::matrix   ? import_matrix(shape, *checkpoint, options)
                   : shape.role == Role::vector ? import_vector(shape, *checkpoint, options)
                                                : import_table(shape, *checkpoint);
    if (!content) return tl::unexpected(std::move(content).error());
    // The content keeps the checkpoint, and with it the mapped files, alive.
    content->fill = [checkpoint, fill = std::move(content->fill)](std::int64_t first, std::int64_t count,
                                                                  std::byte* out) { return fill(first, count, out); };
    contents.push_back(std::move(*content));
  }
  return contents;
}

Result<Provenance> provenance_of(const std::filesystem::path& folder, std::string kind, WeightChoice weights) {
  Provenance provenance{.kind = std::move(kind), .weights = weights == WeightChoice::q4 ? "q4" : "source"};
  SPLASH_TRY(const auto files, source_files(folder));
  for (const std::string& file : files) {
    SPLASH_TRY(provenance.files.emplace_back(), sample_file(folder, file));
  }
  return provenance;
}

Status note_rounded(const std::vector<SectionContent>& contents, const Checkpoint& checkpoint) {
  std::vector<std::string> rounded;
  for (const SectionContent& content : contents) {
    if (content.kind == "q4" && checkpoint.find(content.shape.name + ".scales") == nullptr) {
      rounded.push_back(content.shape.name);
    }
  }
  if (!rounded.empty()) {
    log::info(
        "{} matrices that this 4-bit source keeps wider were rounded to 4 bits ({}, ...); --weights source keeps "
        "them",
        rounded.size(), rounded.front());
  }
  return {};
}

Status import_target(const std::filesystem::path& folder, const PackOptions& options, PackContent& content) {
  const std::string config_file = (folder / "config.json").string();
  SPLASH_TRY(const std::string text, read_text_file(config_file, most_config_bytes));
  SPLASH_TRY(const TargetConfig config, parse_target_config(text, config_file));
  SPLASH_TRY(Checkpoint opened, Checkpoint::open(folder));
  const auto checkpoint = std::make_shared<const Checkpoint>(std::move(opened));
  SPLASH_TRY(const bool mlx, is_mlx(*checkpoint, config));
  const ImportOptions import_options{
      .weights = options.weights, .quantization = config.quantization, .zero_centred_norms = !mlx};
  const auto shapes = target_sections(config.geometry);
  SPLASH_TRY_STATUS(check_leftovers(*checkpoint, shapes, config.geometry.tied_head));
  SPLASH_TRY(content.sections, import_sections(shapes, checkpoint, import_options));
  if (checkpoint->skipped() > 0) {
    log::info("{} tensors of a vision tower or mtp head were left out", checkpoint->skipped());
  }
  if (config.quantization) SPLASH_TRY_STATUS(note_rounded(content.sections, *checkpoint));
  SPLASH_TRY(content.manifest.target_source, provenance_of(folder, mlx ? "mlx" : "huggingface", options.weights));
  content.manifest.target = config.geometry;
  content.manifest.name = model_name(folder);
  content.target_folder = folder;
  content.tokenizer_files = tokenizer_files(folder);
  return {};
}

Status import_draft(const std::filesystem::path& folder, const PackOptions& options, PackContent& content) {
  const std::string config_file = (folder / "config.json").string();
  SPLASH_TRY(const std::string text, read_text_file(config_file, most_config_bytes));
  SPLASH_TRY(const DraftConfig config, parse_draft_config(text, config_file));
  const TargetGeometry& target = content.manifest.target;
  SPLASH_TRY_STATUS(check_match(target, config.geometry, config_file));
  if (config.target_layers && *config.target_layers != std::ssize(target.layers)) {
    return fail_parameter(ErrorKind::invalid, config_file,
                          "{}: num_target_layers is {}, the target has {} layers: not a draft for this model",
                          config_file, *config.target_layers, target.layers.size());
  }
  SPLASH_TRY(Checkpoint opened, Checkpoint::open(folder));
  const auto checkpoint = std::make_shared<const Checkpoint>(std::move(opened));
  const auto shapes = draft_sections(config.geometry);
  SPLASH_TRY_STATUS(check_leftovers(*checkpoint, shapes, false));
  SPLASH_TRY(auto sections, import_sections(shapes, checkpoint, {.weights = options.weights}));
  for (SectionContent& section : sections) content.sections.push_back(std::move(section));
  SPLASH_TRY(content.manifest.draft_source, provenance_of(folder, "dflash2", options.weights));
  content.manifest.draft = config.geometry;
  content.draft_folder = folder;
  return {};
}

}  // namespace

std::string model_name(const std::filesystem::path& folder) {
  std::error_code code;
  const std::filesystem::path real = std::filesystem::canonical(folder, code);
  std::string name = (code ? folder : real).filename().string();
  if (!code && real.parent_path().filename() == "snapshots") {  // .../models--Qwen--Qwen3.5-4B/snapshots/<revision>
    const std::string repository = real.parent_path().parent_path().filename().string();
    const std::size_t owner = repository.find("--");
    if (owner != std::string::npos) name = repository.substr(owner + 2);
    if (const std::size_t cut = name.find("--"); cut != std::string::npos) name.replace(cut, 2, "/");
  }
  return name.empty() ? "model" : name;
}

Result<PackContent> import_folders(const std::filesystem::path& source, const PackOptions& options) {
  PackContent content;
  SPLASH_TRY_STATUS(import_target(source, options, content));
  if (options.draft) SPLASH_TRY_STATUS(import_draft(*options.draft, options, content));
  return content;
}

}  // namespace splash::pack
