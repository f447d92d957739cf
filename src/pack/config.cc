#include "pack/config.h"

#include <cmath>

namespace splash::pack {
namespace {

Status refuse_if_present(const JsonNode& object, std::string_view key, std::string_view what) {
  if (const auto node = object.find(key)) {
    return fail(ErrorKind::unsupported, "{}: {} is not supported", node->place(), what);
  }
  return {};
}

Status check_family(const JsonNode& root) {
  SPLASH_TRY(const JsonNode node, root.get("model_type"));
  SPLASH_TRY(const std::string type, node.text());
  if (type == "qwen3_5" || type == "qwen3_5_text") return {};
  if (type.starts_with("qwen3_5_moe")) {
    return fail(ErrorKind::unsupported,
                "{}: \"{}\" is a mixture of experts; this version serves the dense models (qwen3_5)", node.place(),
                type);
  }
  return fail(ErrorKind::unsupported, "{}: \"{}\" is not supported; this version serves qwen3_5", node.place(), type);
}

// What would change the arithmetic in a way that the forward pass does not implement.
Status check_arithmetic(const JsonNode& text) {
  SPLASH_TRY_STATUS(demand_text(text, "hidden_act", "silu"));
  SPLASH_TRY_STATUS(demand_bool(text, "attention_bias", false));
  SPLASH_TRY_STATUS(demand_bool(text, "attn_output_gate", true));
  SPLASH_TRY_STATUS(demand_text(text, "output_gate_type", "swish"));
  for (const char* key : {"num_experts", "num_local_experts"}) {  // dense exports may say 0
    const auto experts = text.find(key);
    if (experts && experts->integer(0, 0)) continue;
    SPLASH_TRY_STATUS(refuse_if_present(text, key, "a mixture of experts"));
  }
  return {};
}

Result<std::vector<Mixer>> parse_layers(const JsonNode& text) {
  SPLASH_TRY(const int count, parse_count(text, "num_hidden_layers", most_layers));
  std::vector<Mixer> layers;
  const auto types = text.find("layer_types");
  if (!types) {
    SPLASH_TRY(const int interval, parse_count_or(text, "full_attention_interval", most_layers, 4));
    for (int layer = 0; layer < count; ++layer) {
      layers.push_back((layer + 1) % interval == 0 ? Mixer::attention : Mixer::gdn);
    }
    return layers;
  }
  SPLASH_TRY(const auto items, types->items());
  for (const JsonNode& item : items) {
    SPLASH_TRY(const std::string type, item.text());
    if (type != "linear_attention" && type != "full_attention") {
      return fail(ErrorKind::unsupported, "{}: layer type \"{}\" is not supported", item.place(), type);
    }
    layers.push_back(type == "full_attention" ? Mixer::attention : Mixer::gdn);
  }
  if (std::ssize(layers) != count) {
    return fail(ErrorKind::corrupt, "{}: {} entries, but num_hidden_layers is {}", types->place(), layers.size(),
                count);
  }
  return layers;
}

Result<MlxBits> parse_bits(const JsonNode& node) {
  MlxBits bits;
  SPLASH_TRY(bits.bits, parse_count(node, "bits", 8));
  SPLASH_TRY(bits.group_size, parse_count(node, "group_size", 1024));
  SPLASH_TRY_STATUS(demand_text(node, "mode", "affine"));
  if (bits.bits == 7 || bits.bits == 1) {
    return fail(ErrorKind::unsupported, "{}: {}-bit weights are not supported", node.place(), bits.bits);
  }
  return bits;
}

// MLX writes `quantization` and repeats it as `quantization_config`; other tools write only the latter.
Result<std::optional<MlxQuantization>> parse_quantization(const JsonNode& root, const JsonNode& text) {
  std::optional<JsonNode> node;
  for (const JsonNode* object : {&root, &text}) {
    for (const char* key : {"quantization", "quantization_config"}) {
      if (!node) node = object->find(key);
    }
  }
  if (!node) return std::optional<MlxQuantization>{};
  if (const auto method = node->find("quant_method")) {
    return fail(ErrorKind::unsupported,
                "{}: only bf16, f16 and f32 checkpoints and MLX affine quantisation can be read", method->place());
  }
  MlxQuantization quantization;
  SPLASH_TRY(quantization.standard, parse_bits(*node));
  SPLASH_TRY(const auto members, node->members());
  for (const auto& [path, entry] : members) {
    if (entry.is_bool()) {
      SPLASH_TRY(const bool quantised, entry.boolean());
      quantization.overrides[path] = quantised ? std::optional(quantization.standard) : std::nullopt;
    } else if (entry.is_object()) {
      SPLASH_TRY(quantization.overrides[path], parse_bits(entry));
    }
  }
  return quantization;
}

Status parse_attention(const JsonNode& text, TargetGeometry& geometry) {
  SPLASH_TRY(geometry.query_heads, parse_count(text, "num_attention_heads", most_heads));
  SPLASH_TRY(geometry.kv_heads, parse_count(text, "num_key_value_heads", most_heads));
  SPLASH_TRY(geometry.head_dim, parse_count_or(text, "head_dim", most_head_dim, 256));
  SPLASH_TRY(const Rope rope, parse_rope(text, 0.25));
  geometry.rope_theta = rope.theta;
  geometry.rotary_dim = static_cast<int>(geometry.head_dim * rope.partial_rotary_factor);
  return {};
}

Status parse_recurrence(const JsonNode& text, TargetGeometry& geometry) {
  SPLASH_TRY(geometry.key_heads, parse_count(text, "linear_num_key_heads", most_heads));
  SPLASH_TRY(geometry.value_heads, parse_count(text, "linear_num_value_heads", most_heads));
  SPLASH_TRY(geometry.key_dim, parse_count_or(text, "linear_key_head_dim", most_head_dim, 128));
  SPLASH_TRY(geometry.value_dim, parse_count_or(text, "linear_value_head_dim", most_head_dim, 128));
  SPLASH_TRY(geometry.conv_kernel, parse_count_or(text, "linear_conv_kernel_dim", 16, 4));
  return {};
}

// The head is tied when the top level says so; a nested text_config often carries a default that is wrong.
Result<bool> parse_tied(const JsonNode& root, const JsonNode& text) {
  for (const JsonNode* object : {&root, &text}) {
    if (const auto node = object->find("tie_word_embeddings")) return node->boolean();
  }
  return false;
}

Result<float> parse_eps(const JsonNode& text) {
  const auto node = text.find("rms_norm_eps");
  if (!node) return 1e-6f;
  SPLASH_TRY(const double eps, node->number(0, 1));
  return static_cast<float>(eps);
}

Result<TargetConfig> read_target(const JsonNode& root) {
  SPLASH_TRY_STATUS(check_family(root));
  const JsonNode text = root.find("text_config").value_or(root);
  if (text.find("model_type")) SPLASH_TRY_STATUS(check_family(text));
  SPLASH_TRY_STATUS(check_arithmetic(text));

  TargetConfig config;
  TargetGeometry& geometry = config.geometry;
  SPLASH_TRY(geometry.vocab_size, parse_count(text, "vocab_size", most_vocab));
  SPLASH_TRY(geometry.hidden_size, parse_count(text, "hidden_size", most_width));
  SPLASH_TRY(geometry.intermediate_size, parse_count(text, "intermediate_size", most_width));
  SPLASH_TRY(geometry.layers, parse_layers(text));
  SPLASH_TRY_STATUS(parse_attention(text, geometry));
  SPLASH_TRY_STATUS(parse_recurrence(text, geometry));
  SPLASH_TRY(geometry.rms_eps, parse_eps(text));
  SPLASH_TRY(geometry.tied_head, parse_tied(root, text));
  SPLASH_TRY(geometry.max_positions, parse_count_or(text, "max_position_embeddings", most_positions, 262'144));
  SPLASH_TRY(config.quantization, parse_quantization(root, text));
  return config;
}

Result<std::vector<int>> parse_windows(const JsonNode& root, int layers) {
  SPLASH_TRY(const int window, parse_count_or(root, "sliding_window", most_positions, 0));
  const auto types = root.find("layer_types");
  if (!types) {
    bool sliding = window > 0;
    if (const auto use = root.find("use_sliding_window")) {
      SPLASH_TRY(sliding, use->boolean());
    }
    if (sliding && window == 0) return fail(ErrorKind::corrupt, "{}sliding_window: missing", root.place());
    return std::vector<int>(static_cast<std::size_t>(layers), sliding ? window : 0);
  }
  std::vector<int> windows;
  SPLASH_TRY(const auto items, types->items());
  for (const JsonNode& item : items) {
    SPLASH_TRY(const std::string type, item.text());
    if (type != "sliding_attention" && type != "full_attention") {
      return fail(ErrorKind::unsupported, "{}: layer type \"{}\" is not supported", item.place(), type);
    }
    if (type == "sliding_attention" && window == 0) {
      return fail(ErrorKind::corrupt, "{}: sliding_attention without sliding_window", item.place());
    }
    windows.push_back(type == "sliding_attention" ? window : 0);
  }
  if (std::ssize(windows) != layers) {
    return fail(ErrorKind::corrupt, "{}: {} entries, but num_hidden_layers is {}", types->place(), windows.size(),
                layers);
  }
  return windows;
}

// Options of other drafts of the family that would change the arithmetic.
Status check_draft_arithmetic(const JsonNode& object) {
  SPLASH_TRY_STATUS(demand_text(object, "hidden_act", "silu"));
  SPLASH_TRY_STATUS(demand_bool(object, "attention_bias", false));
  SPLASH_TRY_STATUS(demand_bool(object, "sample_from_anchor", false));
  SPLASH_TRY_STATUS(demand_bool(object, "is_causal", false));
  for (const char* key : {"output_multiplier", "final_logit_softcapping", "input_embedding_scale"}) {
    SPLASH_TRY_STATUS(refuse_if_present(object, key, key));
  }
  return {};
}

Status parse_selector(const JsonNode& root, const JsonNode& dflash, DraftGeometry& geometry) {
  if (!dflash.find("selector_rank")) {
    return fail(ErrorKind::unsupported, "{}selector_rank: missing: this is not a DFlash 2 draft", root.place());
  }
  SPLASH_TRY(geometry.selector_rank, parse_count(dflash, "selector_rank", 65'536));
  SPLASH_TRY(geometry.selector_top_k, parse_count_or(dflash, "selector_top_k", 256, 16));
  SPLASH_TRY(geometry.conv_group, parse_count_or(dflash, "conv_group_size", most_width, 16));
  SPLASH_TRY(const int kernel, parse_count_or(dflash, "conv_kernel_size", 16, 2));
  if (kernel != 2) {
    return fail(ErrorKind::unsupported, "{}: a convolution of {} taps is not supported, only 2",
                dflash.get("conv_kernel_size")->place(), kernel);
  }
  return {};
}

Status parse_block(const JsonNode& root, const JsonNode& dflash, DraftGeometry& geometry) {
  const JsonNode& place_of_block = dflash.find("block_size") ? dflash : root;
  SPLASH_TRY(geometry.block_size, parse_count(place_of_block, "block_size", 64));
  SPLASH_TRY(const JsonNode mask, dflash.get("mask_token_id"));
  SPLASH_TRY(geometry.mask_token, mask.integer(0, geometry.vocab_size - 1));
  SPLASH_TRY(const JsonNode taps, dflash.get("target_layer_ids"));
  SPLASH_TRY(const auto items, taps.items());
  if (items.empty()) return fail(ErrorKind::corrupt, "{}: empty", taps.place());
  for (const JsonNode& item : items) {
    const int least = geometry.taps.empty() ? 0 : geometry.taps.back() + 1;  // features are concatenated in this order
    SPLASH_TRY(const std::int64_t tap, item.integer(least, most_layers - 1));
    geometry.taps.push_back(static_cast<int>(tap));
  }
  return {};
}

Result<DraftConfig> read_draft(const JsonNode& root) {
  const JsonNode dflash = root.find("dflash_config").value_or(root);
  SPLASH_TRY_STATUS(check_draft_arithmetic(root));
  SPLASH_TRY_STATUS(check_draft_arithmetic(dflash));
  // A layer type does not tell whether a draft attends to later slots, so the config must.
  if (!root.find("is_causal") && !dflash.find("is_causal")) {
    return fail(ErrorKind::corrupt, "{}is_causal: missing: a DFlash 2 config states \"is_causal\": false",
                root.place());
  }
  DraftConfig config;
  DraftGeometry& geometry = config.geometry;
  SPLASH_TRY(geometry.vocab_size, parse_count(root, "vocab_size", most_vocab));
  SPLASH_TRY(geometry.hidden_size, parse_count(root, "hidden_size", most_width));
  SPLASH_TRY(geometry.intermediate_size, parse_count(root, "intermediate_size", most_width));
  SPLASH_TRY(geometry.layers, parse_count(root, "num_hidden_layers", most_layers));
  SPLASH_TRY(geometry.query_heads, parse_count(root, "num_attention_heads", most_heads));
  SPLASH_TRY(geometry.kv_heads, parse_count(root, "num_key_value_heads", most_heads));
  SPLASH_TRY(geometry.head_dim, parse_count(root, "head_dim", most_head_dim));
  SPLASH_TRY(const Rope rope, parse_rope(root, 1.0));
  if (rope.partial_rotary_factor != 1.0) {
    return fail(ErrorKind::unsupported, "{}partial_rotary_factor: a draft rotates the whole head", root.place());
  }
  geometry.rope_theta = rope.theta;
  SPLASH_TRY(geometry.rms_eps, parse_eps(root));
  SPLASH_TRY(geometry.windows, parse_windows(root, geometry.layers));
  SPLASH_TRY_STATUS(parse_selector(root, dflash, geometry));
  SPLASH_TRY_STATUS(parse_block(root, dflash, geometry));
  if (root.find("num_target_layers")) {
    SPLASH_TRY(config.target_layers, parse_count(root, "num_target_layers", most_layers));
  }
  return config;
}

// Parses, reads and checks; whatever goes wrong, the error's parameter is the file.
template <class Read>
auto parse_config(std::string_view text, std::string_view file, Read read)
    -> decltype(read(std::declval<const JsonNode&>())) {
  SPLASH_TRY(const boost::json::value document, parse_json(text, file));
  auto config = read(JsonNode(document, fmt::format("{}: ", file)));
  if (config) {
    if (auto status = check_geometry(config->geometry, file); !status) {
      config = tl::unexpected(std::move(status).error());
    }
  }
  if (!config) config.error().parameter = file;
  return config;
}

}  // namespace

Result<int> parse_count(const JsonNode& object, std::string_view key, int most) {
  SPLASH_TRY(const JsonNode node, object.get(key));
  SPLASH_TRY(const std::int64_t count, node.integer(1, most));
  return static_cast<int>(count);
}

Result<int> parse_count_or(const JsonNode& object, std::string_view key, int most, int standard) {
  if (!object.find(key)) return standard;
  return parse_count(object, key, most);
}

Status demand_text(const JsonNode& object, std::string_view key, std::string_view only) {
  const auto node = object.find(key);
  if (!node) return {};
  SPLASH_TRY(const std::string text, node->text());
  if (text == only) return {};
  return fail(ErrorKind::unsupported, "{}: \"{}\" is not supported, only \"{}\"", node->place(), text, only);
}

Status demand_bool(const JsonNode& object, std::string_view key, bool only) {
  const auto node = object.find(key);
  if (!node) return {};
  SPLASH_TRY(const bool value, node->boolean());
  if (value == only) return {};
  return fail(ErrorKind::unsupported, "{}: {} is not supported, only {}", node->place(), value, only);
}

Result<Rope> parse_rope(const JsonNode& text, double standard_partial_rotary_factor) {
  const JsonNode rope = text.find("rope_parameters").value_or(text);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const auto node = text.find(key);
    if (!node) continue;
    SPLASH_TRY_STATUS(demand_text(*node, "rope_type", "default"));
    SPLASH_TRY_STATUS(demand_text(*node, "type", "default"));
  }
  const auto either = [&](const char* key) { return rope.find(key) ? rope.find(key) : text.find(key); };
  Rope result{.theta = 0, .partial_rotary_factor = standard_partial_rotary_factor};
  const auto theta = either("rope_theta");
  if (!theta) return tl::unexpected(rope.get("rope_theta").error());
  SPLASH_TRY(result.theta, theta->number(1, 1e12));
  if (const auto factor = either("partial_rotary_factor")) {
    SPLASH_TRY(result.partial_rotary_factor, factor->number(0, 1));
  }
  return result;
}

Result<TargetConfig> parse_target_config(std::string_view text, std::string_view file) {
  return parse_config(text, file, read_target);
}

Result<DraftConfig> parse_draft_config(std::string_view text, std::string_view file) {
  return parse_config(text, file, read_draft);
}

}  // namespace splash::pack
