// A DFlash 2 draft's weights as views into a pack (spec: dflash2.md section 3.3). Embedding and head are the target's.
#pragma once

#include <vector>

#include "models/blocks/mlp.h"
#include "ops/draft/draft.h"
#include "ops/sampling/sampling.h"
#include "pack/package.h"

namespace splash::models::dflash2 {

struct Layer {
  std::span<const float> input_norm, post_attention_norm;
  ops::BlockConvWeights attention_conv, mlp_conv;
  pack::Weight q, k, v, out;
  std::span<const float> q_norm, k_norm;
  Mlp mlp;
  ops::DraftAttentionGeometry attention;
};

struct Weights {
  pack::DraftGeometry geometry;
  std::vector<Layer> layers;
  pack::Weight context_projection;  // fc: [H, taps * H]
  std::span<const float> context_norm, norm;
  pack::Weight selector_projection;  // W_h: [rank, H]
  ops::SelectorWeights selector;
};

// The package must have a draft.
Weights load(const pack::Package& package);

// Context positions that a layer's ring must hold.
int ring_capacity(const pack::DraftGeometry& geometry, int layer, int max_context);

}  // namespace splash::models::dflash2
