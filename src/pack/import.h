// Makes the content of a pack from source folders.
#pragma once

#include <filesystem>

#include "base/result.h"
#include "pack/content.h"
#include "pack/package.h"

namespace splash::pack {

// A Hugging Face or MLX folder as the target and, if the options name one, a DFlash 2 folder as the draft. Tensors are
// checked against the geometry here; their values are read when the content is written. The content keeps the
// source's files mapped.
Result<PackContent> import_folders(const std::filesystem::path& source, const PackOptions& options);

// How a folder is called in /v1/models: its own name, or "owner/name" for a snapshot in a Hugging Face cache.
std::string model_name(const std::filesystem::path& folder);

}  // namespace splash::pack
