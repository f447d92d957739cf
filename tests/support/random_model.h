// Tiny models with random weights, written as Hugging Face folders (target and DFlash 2 draft) and packed, so that
// steps can be tested over many geometries in milliseconds.
//
// Purely random drafts are never accepted. Here the target's next token depends mostly on the token before it (the
// mixers and MLPs are scaled by `mixing`), and the draft's selector holds the target's own bigram scores (scaled by
// `skill`): acceptance of every length occurs, and so do rejections at every slot.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "pack/package.h"

namespace splash::test {

struct RandomModel {
  std::uint64_t seed = 1;
  int vocab = 32;
  int hidden = 64;
  int intermediate = 64;
  std::string layers = "gga";  // g: Gated DeltaNet, a: attention
  int query_heads = 2, kv_heads = 1, head_dim = 64;
  double rotary_share = 0.5;  // of a head
  int key_heads = 1, value_heads = 2, key_dim = 32, value_dim = 32, conv_kernel = 4;
  bool tied = false;
  double mixing = 0.2;   // size of what mixers and MLPs add to the residual stream
  double sharpness = 3;  // standard deviation of logits, about
  int max_positions = 4096;

  bool draft = true;
  int draft_layers = 1;
  int draft_query_heads = 2, draft_kv_heads = 1, draft_head_dim = 32;
  int window = 16;  // 0: full attention
  int block = 8;
  std::vector<int> taps{0, 1};
  int top_k = 24;
  double skill = 1;  // 0: a draft that knows nothing
};

// Writes `folder`/target and, if there is one, `folder`/draft.
void write_sources(const RandomModel& model, const std::filesystem::path& folder);

// Writes, packs and opens; `folder` must outlive nothing: the pack stays mapped.
std::shared_ptr<const pack::Package> random_package(const RandomModel& model, const std::filesystem::path& folder,
                                                    pack::WeightChoice weights = pack::WeightChoice::source);

// A folder under the system's temporary directory that is removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Packs a source folder (and a draft) into `folder` and opens it; CHECKs on an error.
std::shared_ptr<const pack::Package> packed(const std::filesystem::path& source,
                                            const std::filesystem::path& destination, const pack::PackOptions& options);

}  // namespace splash::test
