#include "support/random_model.h"

#include <fmt/ranges.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>

#include "base/bf16.h"
#include "base/check.h"
#include "base/rng.h"
#include "pack/safetensors.h"

namespace splash::test {

namespace fs = std::filesystem;

namespace {

// bfloat16 tensors of normal random numbers, collected and written at once.
class Tensors {
 public:
  explicit Tensors(std::uint64_t seed) : seed_(seed) {}

  double normal() {
    const double u = uniform(seed_, 2 * drawn_, Purpose::test), v = uniform(seed_, 2 * drawn_ + 1, Purpose::test);
    ++drawn_;
    return std::sqrt(-2 * std::log(1 - u)) * std::cos(6.283185307179586 * v);
  }
  // value(i) of each element in row-major order.
  void add(const std::string& name, std::vector<std::int64_t> shape, const std::function<double(std::int64_t)>& value) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    std::vector<bf16> data(count);
    for (std::int64_t i = 0; i < count; ++i) data[i] = to_bf16(static_cast<float>(value(i)));
    tensors_.push_back({name, std::move(shape), std::move(data)});
  }
  void normal(const std::string& name, std::vector<std::int64_t> shape, double scale, double mean = 0) {
    add(name, std::move(shape), [&](std::int64_t) { return mean + scale * normal(); });
  }
  void write(const fs::path& file) const {
    std::vector<pack::OutputTensor> out;
    for (const Tensor& t : tensors_) out.push_back({t.name, "BF16", t.shape, std::as_bytes(std::span(t.data))});
    const Status status = pack::write_safetensors(file, out);
    SPLASH_CHECK(status.has_value(), "{}", status.error().message);
  }

 private:
  struct Tensor {
    std::string name;
    std::vector<std::int64_t> shape;
    std::vector<bf16> data;
  };
  std::uint64_t seed_;
  std::uint64_t drawn_ = 0;
  std::vector<Tensor> tensors_;
};

// Embedding and head are drawn from streams of their own, so that the draft's selector can repeat them. Dimension 0 of
// every embedding is the same large constant: it survives the norms, and the selector turns it into a gate of one.
constexpr double constant = 3.0;
double embedding_value(const RandomModel& m, std::int64_t token, std::int64_t i) {
  if (i == 0) return constant;
  Tensors stream(m.seed * 1'000'003 + 17 + static_cast<std::uint64_t>(token * m.hidden + i));
  return stream.normal();
}
double head_value(const RandomModel& m, std::int64_t token, std::int64_t i) {
  if (m.tied) return embedding_value(m, token, i);
  if (i == 0) return 0;
  Tensors stream(m.seed * 1'000'003 + 500'000'017 + static_cast<std::uint64_t>(token * m.hidden + i));
  return stream.normal() * m.sharpness / std::sqrt(static_cast<double>(m.hidden));
}

void add_mixer(const RandomModel& m, Tensors& t, const std::string& layer, bool attention) {
  const double in = 1 / std::sqrt(static_cast<double>(m.hidden));
  const auto out = [&](int width) { return m.mixing / std::sqrt(static_cast<double>(width)); };
  const std::int64_t h = m.hidden;
  if (attention) {
    const std::int64_t q = m.query_heads * m.head_dim, kv = m.kv_heads * m.head_dim;
    t.normal(layer + "self_attn.q_proj.weight", {2 * q, h}, in);
    t.normal(layer + "self_attn.k_proj.weight", {kv, h}, in);
    t.normal(layer + "self_attn.v_proj.weight", {kv, h}, in);
    t.normal(layer + "self_attn.o_proj.weight", {h, q}, 4 * out(static_cast<int>(q)));
    t.normal(layer + "self_attn.q_norm.weight", {m.head_dim}, 0.1, 0.5);
    t.normal(layer + "self_attn.k_norm.weight", {m.head_dim}, 0.1, 0.5);
    return;
  }
  const std::int64_t key = m.key_heads * m.key_dim, value = m.value_heads * m.value_dim;
  t.normal(layer + "linear_attn.in_proj_qkv.weight", {2 * key + value, h}, in);
  t.normal(layer + "linear_attn.in_proj_z.weight", {value, h}, in);
  t.normal(layer + "linear_attn.in_proj_b.weight", {m.value_heads, h}, in);
  t.normal(layer + "linear_attn.in_proj_a.weight", {m.value_heads, h}, in);
  t.normal(layer + "linear_attn.conv1d.weight", {2 * key + value, 1, m.conv_kernel}, 0.5);
  t.normal(layer + "linear_attn.A_log", {m.value_heads}, 0.7, -1);
  t.normal(layer + "linear_attn.dt_bias", {m.value_heads}, 0.5, -1);
  t.normal(layer + "linear_attn.norm.weight", {m.value_dim}, 0.1, 1);
  t.normal(layer + "linear_attn.out_proj.weight", {h, value}, 2 * out(static_cast<int>(value)));
}

void add_mlp(const RandomModel& m, Tensors& t, const std::string& layer) {
  const double in = 1 / std::sqrt(static_cast<double>(m.hidden));
  t.normal(layer + "mlp.gate_proj.weight", {m.intermediate, m.hidden}, in);
  t.normal(layer + "mlp.up_proj.weight", {m.intermediate, m.hidden}, in);
  t.normal(layer + "mlp.down_proj.weight", {m.hidden, m.intermediate},
           m.mixing / std::sqrt(static_cast<double>(m.intermediate)));
}

void write_text(const fs::path& file, const std::string& text) { std::ofstream(file) << text; }

void write_target(const RandomModel& m, const fs::path& folder) {
  fs::create_directories(folder);
  Tensors t(m.seed);
  const std::string model = "model.";
  t.add(model + "embed_tokens.weight", {m.vocab, m.hidden},
        [&](std::int64_t i) { return embedding_value(m, i / m.hidden, i % m.hidden); });
  if (!m.tied) {
    t.add("lm_head.weight", {m.vocab, m.hidden},
          [&](std::int64_t i) { return head_value(m, i / m.hidden, i % m.hidden); });
  }
  // A tied head's logits are as sharp as the final norm's gain makes them.
  const double gain = m.tied ? m.sharpness / std::sqrt(static_cast<double>(m.hidden)) - 1 : 0;
  t.normal(model + "norm.weight", {m.hidden}, m.tied ? 0.0 : 0.1, gain);
  std::string types;
  for (std::size_t i = 0; i < m.layers.size(); ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    const bool attention = m.layers[i] == 'a';
    t.normal(layer + "input_layernorm.weight", {m.hidden}, 0.1);
    t.normal(layer + "post_attention_layernorm.weight", {m.hidden}, 0.1);
    add_mixer(m, t, layer, attention);
    add_mlp(m, t, layer);
    types += fmt::format("{}\"{}\"", i > 0 ? ", " : "", attention ? "full_attention" : "linear_attention");
  }
  t.write(folder / "model.safetensors");
  write_text(
      folder / "config.json",
      fmt::format(R"({{"model_type": "qwen3_5_text", "vocab_size": {}, "hidden_size": {}, "intermediate_size": {},
"num_hidden_layers": {}, "layer_types": [{}], "num_attention_heads": {}, "num_key_value_heads": {}, "head_dim": {},
"hidden_act": "silu", "max_position_embeddings": {}, "rms_norm_eps": 1e-06, "tie_word_embeddings": {},
"rope_parameters": {{"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": {}}},
"attention_bias": false, "linear_conv_kernel_dim": {}, "linear_key_head_dim": {}, "linear_value_head_dim": {},
"linear_num_key_heads": {}, "linear_num_value_heads": {}}})",
                  m.vocab, m.hidden, m.intermediate, m.layers.size(), types, m.query_heads, m.kv_heads, m.head_dim,
                  m.max_positions, m.tied, m.rotary_share, m.conv_kernel, m.key_dim, m.value_dim, m.key_heads,
                  m.value_heads));
}

// The draft's own logits are noise; its final norm keeps them small beside the selector's scores.
constexpr double quiet = 0.2;

// The selector's rank is the hidden size: A = E, B = head, W_h h = the constant's gate.
void add_selector(const RandomModel& m, Tensors& t) {
  t.add("candidate_selector.predecessor_codebook", {m.vocab, m.hidden},
        [&](std::int64_t i) { return embedding_value(m, i / m.hidden, i % m.hidden); });
  t.add("candidate_selector.successor_codebook", {m.vocab, m.hidden},
        [&](std::int64_t i) { return head_value(m, i / m.hidden, i % m.hidden); });
  const double gate =
      m.skill / (constant * quiet) * (m.tied ? m.sharpness / std::sqrt(static_cast<double>(m.hidden)) : 1.0);
  t.add("candidate_selector.hidden_projection.weight", {m.hidden, m.hidden}, [&](std::int64_t i) {
    return i % m.hidden == 0 ? gate : 0.02 * t.normal() / std::sqrt(static_cast<double>(m.hidden));
  });
}

void write_draft(const RandomModel& m, const fs::path& folder) {
  fs::create_directories(folder);
  Tensors t(m.seed + 1'000'000);
  const double in = 1 / std::sqrt(static_cast<double>(m.hidden));
  const std::int64_t h = m.hidden, q = m.draft_query_heads * m.draft_head_dim, kv = m.draft_kv_heads * m.draft_head_dim;
  for (int i = 0; i < m.draft_layers; ++i) {
    const std::string layer = fmt::format("layers.{}.", i);
    t.normal(layer + "input_layernorm.weight", {h}, 0.1, 1);
    t.normal(layer + "post_attention_layernorm.weight", {h}, 0.1, 1);
    for (const char* conv : {"attention_conv.", "mlp_conv."}) {
      t.add(layer + conv + "base_kernel", {2, 2, h},
            [&](std::int64_t at) { return 0.2 * t.normal() + (at / h % 2 == 0 ? 1.0 : 0.0); });
      t.normal(layer + conv + "kernel_projection.weight", {4 * h / 16, h}, 0.3 * in);
    }
    t.normal(layer + "self_attn.q_proj.weight", {q, h}, in);
    t.normal(layer + "self_attn.k_proj.weight", {kv, h}, in);
    t.normal(layer + "self_attn.v_proj.weight", {kv, h}, in);
    t.normal(layer + "self_attn.o_proj.weight", {h, q}, m.mixing / std::sqrt(static_cast<double>(q)));
    t.normal(layer + "self_attn.q_norm.weight", {m.draft_head_dim}, 0.1, 1.5);
    t.normal(layer + "self_attn.k_norm.weight", {m.draft_head_dim}, 0.1, 1.5);
    add_mlp(m, t, layer);
  }
  t.normal("fc.weight", {h, static_cast<std::int64_t>(m.taps.size()) * h}, in);
  t.normal("hidden_norm.weight", {h}, 0.1, 1);
  t.normal("norm.weight", {h}, 0.1 * quiet, quiet);
  add_selector(m, t);
  t.write(folder / "model.safetensors");
  std::string types;
  for (int i = 0; i < m.draft_layers; ++i) {
    types += fmt::format("{}\"{}\"", i > 0 ? ", " : "", m.window > 0 ? "sliding_attention" : "full_attention");
  }
  write_text(
      folder / "config.json",
      fmt::format(
          R"({{"architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "is_causal": false,
"hidden_act": "silu", "hidden_size": {}, "intermediate_size": {}, "num_hidden_layers": {}, "num_attention_heads": {},
"num_key_value_heads": {}, "head_dim": {}, "vocab_size": {}, "rms_norm_eps": 1e-06, "attention_bias": false,
"rope_parameters": {{"rope_theta": 10000000, "rope_type": "default"}}, "layer_types": [{}], {}
"num_target_layers": {}, "dflash_config": {{"block_size": {}, "mask_token_id": {}, "target_layer_ids": [{}],
"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": {}, "selector_top_k": {}}}}})",
          m.hidden, m.intermediate, m.draft_layers, m.draft_query_heads, m.draft_kv_heads, m.draft_head_dim, m.vocab,
          types,
          m.window > 0 ? fmt::format("\"sliding_window\": {}, \"use_sliding_window\": true,", m.window) : std::string(),
          m.layers.size(), m.block, m.vocab - 1, fmt::join(m.taps, ", "), m.hidden, std::min(m.top_k, m.vocab)));
}

}  // namespace

void write_sources(const RandomModel& model, const fs::path& folder) {
  write_target(model, folder / "target");
  if (model.draft) write_draft(model, folder / "draft");
}

std::shared_ptr<const pack::Package> packed(const fs::path& source, const fs::path& destination,
                                            const pack::PackOptions& options) {
  const Status status = pack::pack_folder(source, destination, options);
  SPLASH_CHECK(status.has_value(), "{}", status.error().message);
  auto package = pack::Package::open(destination);
  SPLASH_CHECK(package.has_value(), "{}", package.error().message);
  return *package;
}

std::shared_ptr<const pack::Package> random_package(const RandomModel& model, const fs::path& folder,
                                                    pack::WeightChoice weights) {
  write_sources(model, folder);
  pack::PackOptions options;
  options.weights = weights;
  if (model.draft) options.draft = folder / "draft";
  return packed(folder / "target", folder / "pack", options);
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (fs::temp_directory_path() / "splash-test-XXXXXX").string();
  SPLASH_CHECK(::mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}
TemporaryFolder::~TemporaryFolder() {
  std::error_code code;
  fs::remove_all(path_, code);
}

}  // namespace splash::test
