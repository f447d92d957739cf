// Packs of random numbers in the true shapes of the family, so that speed can be measured without the real weights.
#pragma once

#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "pack/geometry.h"

namespace splash::pack {

struct NamedGeometry {
  std::string name;  // "27b"
  TargetGeometry target;
  DraftGeometry draft;
};

// The dense sizes of the family, with a DFlash 2 draft each: the 27B's as published, the others' in its proportions.
const std::vector<NamedGeometry>& named_geometries();

struct SynthOptions {
  std::string geometry;  // one of the names above
  int layers = 0;        // 0: all
  std::filesystem::path tokenizer;  // a folder with a tokenizer.json, to be served with; empty: none
  bool show_progress = false;
  const std::atomic<bool>* stop = nullptr;
};

// Without a tokenizer score, draft and bench work; to serve takes one.
Status synth_pack(const std::filesystem::path& destination, const SynthOptions& options);
// The same for any shapes, for tests.
Status synth_pack(const std::filesystem::path& destination, const NamedGeometry& named, const SynthOptions& options);

}  // namespace splash::pack
