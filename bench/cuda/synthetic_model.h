// The 27B geometry with random weights, composed of ops as the model composes them: what a step costs before there is a
// package on the machine. Greedy lanes; every kernel, byte and boundary of the real step is there.
#pragma once

#include <memory>
#include <vector>

#include "backend/cuda/stream.h"
#include "ops/attention/attention_cuda.h"
#include "ops/draft/draft_cuda.h"
#include "ops/embed/embed_cuda.h"
#include "ops/fused_cuda.h"
#include "ops/gdn/gdn_cuda.h"
#include "ops/linear/linear_cuda.h"
#include "ops/norm/norm_cuda.h"
#include "ops/sampling/law_cuda.h"
#include "ops/swiglu/swiglu_cuda.h"

namespace splash::bench {

struct Geometry {
  int layers = 64, hidden = 5120, inner = 17408, vocabulary = 248320;
  int query_heads = 24, kv_heads = 4, key_heads = 16, value_heads = 48;
  int draft_layers = 5, draft_query_heads = 32, draft_kv_heads = 8, draft_dim = 128, window = 2048, taps = 5,
      rank = 256, block = 8;
};

class SyntheticModel {
 public:
  // Weights for `layers` layers, lanes with room for `context` positions each when all are there.
  static Result<std::unique_ptr<SyntheticModel>> make(cuda::Stream& stream, const Geometry& geometry, int lanes,
                                                      int context);

  bool fold_norms = true;  // RMSNorm inside the linears around it
  // What a step may leave out, to be timed by what is missing then.
  struct Part {
    static constexpr unsigned gdn = 1 << 0, attention = 1 << 1, target_linears = 1 << 2, target_head = 1 << 3,
                              taps = 1 << 4, draft = 1 << 5, draft_attention = 1 << 6, draft_boundaries = 1 << 7,
                              draft_linears = 1 << 8, draft_head = 1 << 9, draft_choice = 1 << 10, commit = 1 << 11,
                              context_layers = 1 << 12;
  };
  unsigned without = 0;

  struct Layer {
    bool recurrent = false;
    pack::Weight qkv, z, b, a, q_gate, k, v, out, gate, up, down;
  };
  const Geometry& geometry() const { return g_; }
  const std::vector<Layer>& layers() const { return layers_; }
  const pack::Weight& head() const { return head_; }
  ops::GdnGeometry gdn_geometry() const;
  ops::AttentionGeometry attention_geometry() const;
  ops::DraftAttentionGeometry draft_geometry() const;
  std::int64_t layer_weight_bytes() const { return layer_bytes_; }  // all layers
  std::int64_t draft_weight_bytes() const { return draft_bytes_; }
  std::int64_t state_bytes() const;  // recurrent, one lane, one way

  // Sets the lanes' lengths: zero state, `position` committed tokens (their pages hold noise).
  void place(int lanes, int position);

  // Resets the stream and binds the tables of the next recording; not while recording.
  void begin(int lanes, int rows, bool verify);
  // Enqueues a step of `lanes` lanes x `width` rows at the placed position: draft (if width > 1), verify, accept,
  // commit. What it leaves: the residual, the logits, and (width > 1) the residual after each tap.
  struct StepViews {
    MatrixView<float> x, logits, features;
  };
  StepViews step(int lanes, int width);
  // Enqueues a pass of `rows` prompt rows of lane 0 (no head).
  void prefill(int rows);
  // Parts, for the table of kernels.
  void gdn_layer(int layer, int lanes, int rows);
  void attention_layer(int layer, int lanes, int rows);
  void draft_attention_layer(int layer, int lanes);
  const int* kept() const { return kept_; }
  void set_kept(int lanes, int kept);
  const Token* tokens() const { return verify_tokens_; }              // [lanes][block]
  const ops::KvPool& pool() const { return pool_; }
  std::int64_t pool_bytes() const { return pool_.geometry.page_bytes() * pages_per_lane_ * max_lanes_; }
  const ops::GdnLane& gdn_lane(int layer, int lane) const { return gdn_lanes_[layer][lane]; }
  // Positions that each of so many lanes has room for: they share the pages of all.
  int context(int lanes) const { return max_lanes_ / lanes * context_; }
  std::int64_t page_layer_bytes() const { return pool_.geometry.layer_bytes(); }
  std::span<const float> norm() const { return norm_; }

 private:
  bool has(unsigned part) const { return (without & part) == 0; }
  explicit SyntheticModel(cuda::Stream& stream) : stream_(stream) {}
  void copy(void* to, const void* from, std::size_t bytes);
  void fill(void* to, int value, std::size_t bytes);
  pack::Weight weight(int rows, int cols);
  float* floats(std::size_t count, float scale);
  std::span<const float> gain(int count) { return {floats(count, 1), static_cast<std::size_t>(count)}; }
  template <class T>
  T* memory(std::size_t count);

  void forward(MatrixView<float> x, MatrixView<float> normed, int lanes, MatrixView<float> features);
  void draft_pass(int lanes);
  void commit_draft(int lanes, int rows, MatrixView<const float> features);

  cuda::Stream& stream_;
  Geometry g_;
  std::vector<cuda::DeviceBuffer> buffers_;
  std::string failure_;
  unsigned seed_ = 1;
  std::vector<Layer> layers_;
  struct DraftLayer {
    pack::Weight attention_projection, mlp_projection, q, k, v, out, gate, up, down;
    std::span<const float> attention_base, mlp_base;
  };
  std::vector<DraftLayer> draft_layers_;
  pack::Weight head_, fc_, selector_projection_;
  ops::SelectorWeights selector_;
  std::span<const float> norm_, head_norm_, draft_head_norm_;
  ops::GdnWeights gdn_weights_;
  std::int64_t layer_bytes_ = 0, draft_bytes_ = 0;

  int max_lanes_ = 0, context_ = 0, position_ = 0, commit_rows_ = 0;
  std::vector<std::vector<ops::GdnLane>> gdn_lanes_;  // [layer][lane]
  std::vector<const ops::GdnLane*> gdn_lane_tables_;  // device, per layer
  int* kept_ = nullptr;
  ops::KvPool pool_;
  std::vector<std::vector<ops::DraftRing>> rings_;  // [draft layer][lane]
  const ops::PageId* pages_ = nullptr;
  int pages_per_lane_ = 0;
  ops::SegmentEntry* entries_ = nullptr;
  std::vector<ops::Segment> segments_;
  std::vector<std::vector<ops::DraftBlockSegment>> block_segments_;      // [draft layer][lane]
  std::vector<std::vector<ops::DraftContextSegment>> context_segments_;  // [draft layer][lane]
  Token* draft_tokens_ = nullptr;                                        // [lanes][block]: anchor, masks
  Token* verify_tokens_ = nullptr;                                       // [lanes][block]
  static constexpr int max_rows = 4096;
  std::vector<Token> token_names_ = std::vector<Token>(2 * max_rows);  // host stand-ins for bind(): draft, verify
  ops::DraftBlockSegment* block_tables_ = nullptr;                     // [draft layer][lane]
  ops::DraftContextSegment* context_tables_ = nullptr;                 // [draft layer][lane]
  ops::LaneChoice* choices_ = nullptr;                                 // [lanes]: greedy
  ops::SlotLaw* laws_ = nullptr;                                       // [lanes][block]
  ops::LaneChosen* chosen_ = nullptr;                                  // [lanes]
};

}  // namespace splash::bench
