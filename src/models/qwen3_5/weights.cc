#include "models/qwen3_5/weights.h"

namespace splash::models::qwen3_5 {

ops::GdnGeometry gdn_geometry(const pack::TargetGeometry& g) {
  return {.key_heads = g.key_heads,
          .value_heads = g.value_heads,
          .key_dim = g.key_dim,
          .value_dim = g.value_dim,
          .conv_kernel = g.conv_kernel,
          .rms_eps = g.rms_eps};
}

ops::AttentionGeometry attention_geometry(const pack::TargetGeometry& g) {
  return {.query_heads = g.query_heads,
          .kv_heads = g.kv_heads,
          .head_dim = g.head_dim,
          .rotary_dim = g.rotary_dim,
          .rope_theta = g.rope_theta,
          .rms_eps = g.rms_eps};
}

Weights load(const pack::Package& package) {
  constexpr auto component = pack::Component::target;
  Weights weights;
  weights.geometry = package.target();
  weights.gdn = gdn_geometry(weights.geometry);
  weights.attention = attention_geometry(weights.geometry);
  weights.embedding = package.weight(component, "embed_tokens");
  weights.head = weights.geometry.tied_head ? weights.embedding : package.weight(component, "lm_head");
  weights.norm = package.vector(component, "norm");
  for (std::size_t i = 0; i < weights.geometry.layers.size(); ++i) {
    const auto name = [&](std::string_view part) { return fmt::format("layers.{}.{}", i, part); };
    const auto weight = [&](std::string_view part) { return package.weight(component, name(part)); };
    const auto vector = [&](std::string_view part) { return package.vector(component, name(part)); };
    Layer layer;
    layer.input_norm = vector("input_layernorm");
    layer.post_attention_norm = vector("post_attention_layernorm");
    layer.mlp = {weight("mlp.gate_proj"), weight("mlp.up_proj"), weight("mlp.down_proj")};
    if (weights.geometry.layers[i] == pack::Mixer::attention) {
      layer.mixer = Attention{weight("self_attn.q_proj"),
                              weight("self_attn.k_proj"),
                              weight("self_attn.v_proj"),
                              weight("self_attn.o_proj"),
                              {vector("self_attn.q_norm"), vector("self_attn.k_norm")}};
      layer.mixer_index = weights.attention_layers++;
    } else {
      layer.mixer = Gdn{weight("linear_attn.in_proj_qkv"),
                        weight("linear_attn.in_proj_z"),
                        weight("linear_attn.in_proj_b"),
                        weight("linear_attn.in_proj_a"),
                        weight("linear_attn.out_proj"),
                        {vector("linear_attn.conv1d"), vector("linear_attn.A_log"), vector("linear_attn.dt_bias"),
                         vector("linear_attn.norm")}};
      layer.mixer_index = weights.gdn_layers++;
    }
    weights.layers.push_back(std::move(layer));
  }
  return weights;
}

}  // namespace splash::models::qwen3_5
