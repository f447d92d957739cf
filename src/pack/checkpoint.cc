#include "pack/checkpoint.h"

#include <algorithm>
#include <array>
#include <set>

#include "pack/json.h"
#include "pack/manifest.h"
#include "pack/mapped_file.h"

namespace splash::pack {
namespace {

constexpr const char* index_name = "model.safetensors.index.json";
constexpr std::size_t most_index_bytes = 64u << 20;

// Everything that the text half reads: the tokenizer, the chat template and the ids that end a reply.
constexpr std::array tokenizer_names{"added_tokens.json",
                                     "chat_template.jinja",
                                     "chat_template.json",
                                     "config.json",
                                     "generation_config.json",
                                     "merges.txt",
                                     "preprocessor_config.json",
                                     "special_tokens_map.json",
                                     "tokenizer.json",
                                     "tokenizer_config.json",
                                     "vocab.json"};

Result<std::map<std::string, std::string>> read_index(const std::filesystem::path& folder) {
  const std::string file = (folder / index_name).string();
  SPLASH_TRY(const std::string text, read_text_file(file, most_index_bytes));
  SPLASH_TRY(const boost::json::value document, parse_json(text, file));
  const JsonNode root(document, file + ": ");
  SPLASH_TRY(const JsonNode map, root.get("weight_map"));
  SPLASH_TRY(const auto members, map.members());
  std::map<std::string, std::string> index;
  for (const auto& [tensor, node] : members) {
    SPLASH_TRY(const std::string shard, node.text());
    if (!is_safe_path(shard) || shard.find('/') != std::string::npos) {
      return fail_parameter(ErrorKind::corrupt, file, "{}: the shard {} leaves the folder", node.place(),
                            quote_json(shard));
    }
    index.emplace(tensor, shard);
  }
  if (index.empty()) return fail_parameter(ErrorKind::corrupt, file, "{}: weight_map is empty", file);
  return index;
}

// Without an index: model.safetensors, or the only file of the kind.
Result<std::string> single_file(const std::filesystem::path& folder) {
  std::error_code code;
  if (std::filesystem::exists(folder / "model.safetensors", code)) return std::string("model.safetensors");
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder, code)) {
    if (entry.path().extension() == ".safetensors") found.push_back(entry.path().filename().string());
  }
  if (found.size() == 1) return found[0];
  return fail_parameter(ErrorKind::not_found, folder.string(), "{}: expected {} or one model.safetensors, found {}",
                        folder.string(), index_name, found.empty() ? "no weights" : "several files without an index");
}

Result<std::vector<std::string>> shard_names(const std::filesystem::path& folder) {
  std::error_code code;
  if (!std::filesystem::exists(folder / index_name, code)) {
    SPLASH_TRY(std::string file, single_file(folder));
    return std::vector<std::string>{std::move(file)};
  }
  SPLASH_TRY(const auto index, read_index(folder));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : index) shards.insert(shard);
  return std::vector<std::string>(shards.begin(), shards.end());
}

}  // namespace

std::string section_name_of(std::string_view tensor) {
  for (const std::string_view part : {"mtp.", "visual.", "vision_tower.", "vision_model."}) {
    for (const std::string_view before :
         {"", "model.", "language_model.", "model.language_model.", "language_model.model."}) {
      if (tensor.starts_with(before) && tensor.substr(before.size()).starts_with(part)) return {};
    }
  }
  for (const std::string_view prefix :
       {"language_model.model.", "model.language_model.", "model.", "language_model."}) {
    if (tensor.starts_with(prefix)) return std::string(tensor.substr(prefix.size()));
  }
  return std::string(tensor);
}

Result<Checkpoint> Checkpoint::open(const std::filesystem::path& folder) {
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  SPLASH_TRY(const auto shards, shard_names(folder));
  for (const std::string& shard : shards) SPLASH_TRY_STATUS(checkpoint.add_shard(shard));
  std::error_code code;
  if (std::filesystem::exists(folder / index_name, code)) {
    SPLASH_TRY(const auto index, read_index(folder));
    SPLASH_TRY_STATUS(checkpoint.check_index(index));
  }
  return checkpoint;
}

Status Checkpoint::add_shard(const std::string& shard) {
  const std::string file = (folder_ / shard).string();
  SPLASH_TRY(shards_.emplace_back(), SafetensorsFile::open(file));
  for (const TensorView& view : shards_.back()->tensors()) {
    const auto [before, fresh] = shard_of_.emplace(view.name, shard);
    if (!fresh) {
      return fail_parameter(ErrorKind::corrupt, file, "{}: {}: also in {}", file, view.name, before->second);
    }
    std::string name = section_name_of(view.name);
    if (name.empty()) {
      ++skipped_;
      continue;
    }
    const auto [other, unique] = tensors_.emplace(std::move(name), SourceTensor{&view, file});
    if (!unique) {
      return fail_parameter(ErrorKind::corrupt, file, "{}: {}: means the same as {}", file, view.name,
                            other->second.view->name);
    }
  }
  return {};
}

Status Checkpoint::check_index(const std::map<std::string, std::string>& index) const {
  for (const auto& [tensor, shard] : index) {
    const auto found = shard_of_.find(tensor);
    if (found != shard_of_.end() && found->second == shard) continue;
    const std::string file = (folder_ / shard).string();
    return fail_parameter(ErrorKind::corrupt, file, "{}: {}: missing, though {} places it here", file, tensor,
                          index_name);
  }
  return {};
}

const SourceTensor* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::vector<std::string> tokenizer_files(const std::filesystem::path& folder) {
  std::error_code code;
  const bool tokenizer =
      std::filesystem::exists(folder / "tokenizer.json", code) || std::filesystem::exists(folder / "vocab.json", code);
  std::vector<std::string> files;
  if (!tokenizer) return files;
  for (const char* name : tokenizer_names) {
    if (std::filesystem::is_regular_file(folder / name, code)) files.emplace_back(name);
  }
  return files;
}

Result<std::vector<std::string>> source_files(const std::filesystem::path& folder) {
  SPLASH_TRY(const auto shards, shard_names(folder));
  std::set<std::string> files(shards.begin(), shards.end());
  files.insert("config.json");
  std::error_code code;
  if (std::filesystem::exists(folder / index_name, code)) files.insert(index_name);
  for (std::string& name : tokenizer_files(folder)) files.insert(std::move(name));
  return std::vector<std::string>(files.begin(), files.end());
}

}  // namespace splash::pack
