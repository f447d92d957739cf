// The dense hybrid text model's weights as views into a pack.
#pragma once

#include <variant>
#include <vector>

#include "models/blocks/attention.h"
#include "models/blocks/gdn.h"
#include "models/blocks/mlp.h"
#include "pack/package.h"

namespace splash::models::qwen3_5 {

struct Layer {
  std::span<const float> input_norm, post_attention_norm;  // effective gains
  std::variant<Gdn, Attention> mixer;
  int mixer_index = 0;  // among the layers with the same kind of mixer
  Mlp mlp;
};

struct Weights {
  pack::TargetGeometry geometry;
  ops::GdnGeometry gdn;
  ops::AttentionGeometry attention;
  pack::Weight embedding, head;  // the same matrix when tied
  std::span<const float> norm;
  std::vector<Layer> layers;
  int gdn_layers = 0, attention_layers = 0;
};

Weights load(const pack::Package& package);

ops::GdnGeometry gdn_geometry(const pack::TargetGeometry& geometry);
ops::AttentionGeometry attention_geometry(const pack::TargetGeometry& geometry);

}  // namespace splash::models::qwen3_5
