// What a model is, as numbers: read from config.json, kept in the manifest, the only thing kernels and plans are told.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace splash::pack {

enum class Mixer { gdn, attention };

// The dense text model of the family (config.json: model_type qwen3_5 / qwen3_5_text).
struct TargetGeometry {
  int vocab_size = 0;         // rows of the embedding and of the logits (padded)
  int hidden_size = 0;        // H
  int intermediate_size = 0;  // I
  std::vector<Mixer> layers;  // one per layer
  // Gated full attention.
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 256;
  int rotary_dim = 64;
  double rope_theta = 1e7;
  // Gated DeltaNet.
  int key_heads = 0;    // nk
  int value_heads = 0;  // nv, a multiple of nk
  int key_dim = 128;    // per head
  int value_dim = 128;  // per head
  int conv_kernel = 4;
  float rms_eps = 1e-6f;
  bool tied_head = false;
  int max_positions = 262'144;

  int conv_channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
  bool operator==(const TargetGeometry&) const = default;
};

// A DFlash 2 draft (spec: dflash2.md section 3). hidden_size is the target's.
struct DraftGeometry {
  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int layers = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  double rope_theta = 1e7;
  float rms_eps = 1e-6f;
  std::vector<int> windows;     // per layer: sliding window W (strict: distance < W); 0 = full attention
  int block_size = 8;           // B: the anchor and B - 1 masked slots
  std::int32_t mask_token = 0;
  std::vector<int> taps;        // target layers whose output feeds the draft, ascending
  int conv_group = 16;          // channels per predicted coefficient
  int selector_rank = 0;
  int selector_top_k = 16;

  int conv_groups() const { return hidden_size / conv_group; }
  bool operator==(const DraftGeometry&) const = default;
};

}  // namespace splash::pack
