#include "models/dflash2/weights.h"

#include <algorithm>

namespace splash::models::dflash2 {

namespace {

constexpr auto component = pack::Component::draft;

Layer load_layer(const pack::Package& package, const pack::DraftGeometry& geometry, int index) {
  const auto name = [&](std::string_view part) { return fmt::format("layers.{}.{}", index, part); };
  const auto weight = [&](std::string_view part) { return package.weight(component, name(part)); };
  const auto vector = [&](std::string_view part) { return package.vector(component, name(part)); };
  Layer layer;
  layer.input_norm = vector("input_layernorm");
  layer.post_attention_norm = vector("post_attention_layernorm");
  layer.attention_conv = {vector("attention_conv.base_kernel"), weight("attention_conv.kernel_projection")};
  layer.mlp_conv = {vector("mlp_conv.base_kernel"), weight("mlp_conv.kernel_projection")};
  layer.q = weight("self_attn.q_proj");
  layer.k = weight("self_attn.k_proj");
  layer.v = weight("self_attn.v_proj");
  layer.out = weight("self_attn.o_proj");
  layer.q_norm = vector("self_attn.q_norm");
  layer.k_norm = vector("self_attn.k_norm");
  layer.mlp = {weight("mlp.gate_proj"), weight("mlp.up_proj"), weight("mlp.down_proj")};
  layer.attention = {.query_heads = geometry.query_heads,
                     .kv_heads = geometry.kv_heads,
                     .head_dim = geometry.head_dim,
                     .rope_theta = geometry.rope_theta,
                     .rms_eps = geometry.rms_eps,
                     .window = geometry.windows[index]};
  return layer;
}

}  // namespace

Weights load(const pack::Package& package) {
  SPLASH_CHECK(package.draft() != nullptr);
  Weights weights;
  weights.geometry = *package.draft();
  for (int i = 0; i < weights.geometry.layers; ++i) {
    weights.layers.push_back(load_layer(package, weights.geometry, i));
  }
  weights.context_projection = package.weight(component, "fc");
  weights.context_norm = package.vector(component, "hidden_norm");
  weights.norm = package.vector(component, "norm");
  weights.selector_projection = package.weight(component, "candidate_selector.hidden_projection");
  weights.selector = {package.table(component, "candidate_selector.predecessor_codebook"),
                      package.table(component, "candidate_selector.successor_codebook")};
  return weights;
}

int ring_capacity(const pack::DraftGeometry& geometry, int layer, int max_context) {
  const int window = geometry.windows[layer];
  return window > 0 ? std::min(window, max_context) : max_context;
}

}  // namespace splash::models::dflash2
