// A source folder opened: its config, its tensors under our section names, its tokenizer files.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "pack/safetensors.h"

namespace splash::pack {

struct SourceTensor {
  const TensorView* view = nullptr;
  std::string file;  // of this shard, for messages

  std::string place() const { return file + ": " + view->name; }
};

class Checkpoint {
 public:
  // Reads model.safetensors.index.json and its shards, or the one *.safetensors file of the folder. Errors name the
  // shard and the tensor.
  static Result<Checkpoint> open(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  // `name` is a section name with its suffix: "layers.0.mlp.gate_proj.weight". Null if absent.
  const SourceTensor* find(std::string_view name) const;
  // By section name; tensors that no text model reads (mtp.*, the vision tower) are left out and counted.
  const std::map<std::string, SourceTensor, std::less<>>& tensors() const { return tensors_; }
  int skipped() const { return skipped_; }

 private:
  Status add_shard(const std::string& shard);
  Status check_index(const std::map<std::string, std::string>& index) const;

  std::filesystem::path folder_;
  std::vector<std::shared_ptr<const SafetensorsFile>> shards_;
  std::map<std::string, std::string> shard_of_;  // full tensor name to shard
  std::map<std::string, SourceTensor, std::less<>> tensors_;
  int skipped_ = 0;
};

// The name of a tensor without what the exporters put before it; empty for tensors of a vision tower or mtp head.
std::string section_name_of(std::string_view tensor);

// Files that a pack of this folder depends on, sorted: config, index, shards and tokenizer.
Result<std::vector<std::string>> source_files(const std::filesystem::path& folder);
// Those of them that are copied into the pack's tokenizer folder.
std::vector<std::string> tokenizer_files(const std::filesystem::path& folder);

}  // namespace splash::pack
