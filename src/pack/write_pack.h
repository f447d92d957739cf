// Writes the content of a pack: streaming, hashed on the way, atomic at the end.
#pragma once

#include <atomic>
#include <filesystem>

#include "base/result.h"
#include "pack/content.h"

namespace splash::pack {

struct WriteOptions {
  bool show_progress = false;
  const std::atomic<bool>* stop = nullptr;
  int threads = 0;  // 0: one per processor
};

// Files are written into "<destination>.partial-<pid>", the manifest last; then everything is synced and the folder is
// renamed to its place. On failure, and when `stop` is set, the partial folder is removed; a killed process leaves a
// partial folder without a manifest, which never loads and which the next pack to the same place removes.
// A destination that exists is replaced only if it is empty or a pack.
Status write_pack(PackContent content, const std::filesystem::path& destination, const WriteOptions& options);

}  // namespace splash::pack
