// One matrix, vector or table of a checkpoint as content of a pack.
#pragma once

#include <memory>

#include "pack/checkpoint.h"
#include "pack/config.h"
#include "pack/content.h"
#include "pack/package.h"

namespace splash::pack {

struct ImportOptions {
  WeightChoice weights = WeightChoice::q4;
  std::optional<MlxQuantization> quantization;
  bool zero_centred_norms = false;  // the source stores w where the gain is 1 + w
};

// Each finds its tensors in the checkpoint (which must outlive the content), checks dtype and shape, and decides the
// kind of the section.
Result<SectionContent> import_matrix(const SectionShape& shape, const Checkpoint& checkpoint,
                                     const ImportOptions& options);
Result<SectionContent> import_vector(const SectionShape& shape, const Checkpoint& checkpoint,
                                     const ImportOptions& options);
Result<SectionContent> import_table(const SectionShape& shape, const Checkpoint& checkpoint);

// "model.layers.0.mlp.gate_proj.weight" -> "model.layers.0.mlp.gate_proj"
std::string_view without_suffix(std::string_view name, std::string_view suffix);

}  // namespace splash::pack
