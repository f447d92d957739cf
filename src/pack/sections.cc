#include "pack/sections.h"

namespace splash::pack {
namespace {

// Collects the sections of one file; `prefix` is put before each name ("layers.3.").
class FileSections {
 public:
  FileSections(std::vector<SectionShape>& out, Component component, std::string file, std::string prefix)
      : out_(out), component_(component), file_(std::move(file)), prefix_(std::move(prefix)) {}

  void matrix(std::string_view name, int rows, int cols) { add(name, Role::matrix, rows, cols); }
  void vector(std::string_view name, int rows, int cols = 1) { add(name, Role::vector, rows, cols); }
  void table(std::string_view name, int rows, int cols) { add(name, Role::table, rows, cols); }

 private:
  void add(std::string_view name, Role role, int rows, int cols) {
    out_.push_back({component_, prefix_ + std::string(name), role, rows, cols, file_});
  }

  std::vector<SectionShape>& out_;
  Component component_;
  std::string file_;
  std::string prefix_;
};

void add_attention(FileSections& layer, const TargetGeometry& g) {
  const int query_width = g.query_heads * g.head_dim;
  const int kv_width = g.kv_heads * g.head_dim;
  layer.matrix("self_attn.q_proj", 2 * query_width, g.hidden_size);  // per head: query, then gate
  layer.matrix("self_attn.k_proj", kv_width, g.hidden_size);
  layer.matrix("self_attn.v_proj", kv_width, g.hidden_size);
  layer.vector("self_attn.q_norm", g.head_dim);
  layer.vector("self_attn.k_norm", g.head_dim);
  layer.matrix("self_attn.o_proj", g.hidden_size, query_width);
}

void add_gdn(FileSections& layer, const TargetGeometry& g) {
  const int value_width = g.value_heads * g.value_dim;
  layer.matrix("linear_attn.in_proj_qkv", g.conv_channels(), g.hidden_size);
  layer.matrix("linear_attn.in_proj_z", value_width, g.hidden_size);
  layer.matrix("linear_attn.in_proj_b", g.value_heads, g.hidden_size);
  layer.matrix("linear_attn.in_proj_a", g.value_heads, g.hidden_size);
  layer.vector("linear_attn.conv1d", g.conv_channels(), g.conv_kernel);
  layer.vector("linear_attn.A_log", g.value_heads);
  layer.vector("linear_attn.dt_bias", g.value_heads);
  layer.vector("linear_attn.norm", g.value_dim);
  layer.matrix("linear_attn.out_proj", g.hidden_size, value_width);
}

void add_mlp(FileSections& layer, int hidden, int intermediate) {
  layer.matrix("mlp.gate_proj", intermediate, hidden);
  layer.matrix("mlp.up_proj", intermediate, hidden);
  layer.matrix("mlp.down_proj", hidden, intermediate);
}

void add_draft_layer(FileSections& layer, const DraftGeometry& g) {
  const int query_width = g.query_heads * g.head_dim;
  const int kv_width = g.kv_heads * g.head_dim;
  const int coefficients = 4 * g.conv_groups();  // stage, tap, group
  layer.vector("input_layernorm", g.hidden_size);
  layer.vector("attention_conv.base_kernel", 4, g.hidden_size);
  layer.matrix("attention_conv.kernel_projection", coefficients, g.hidden_size);
  layer.matrix("self_attn.q_proj", query_width, g.hidden_size);
  layer.matrix("self_attn.k_proj", kv_width, g.hidden_size);
  layer.matrix("self_attn.v_proj", kv_width, g.hidden_size);
  layer.vector("self_attn.q_norm", g.head_dim);
  layer.vector("self_attn.k_norm", g.head_dim);
  layer.matrix("self_attn.o_proj", g.hidden_size, query_width);
  layer.vector("post_attention_layernorm", g.hidden_size);
  layer.vector("mlp_conv.base_kernel", 4, g.hidden_size);
  layer.matrix("mlp_conv.kernel_projection", coefficients, g.hidden_size);
  add_mlp(layer, g.hidden_size, g.intermediate_size);
}

}  // namespace

std::vector<SectionShape> target_sections(const TargetGeometry& g) {
  std::vector<SectionShape> sections;
  FileSections(sections, Component::target, "target/embedding.bin", "")
      .matrix("embed_tokens", g.vocab_size, g.hidden_size);
  for (std::size_t i = 0; i < g.layers.size(); ++i) {
    FileSections layer(sections, Component::target, fmt::format("target/layer-{:03}.bin", i),
                       fmt::format("layers.{}.", i));
    layer.vector("input_layernorm", g.hidden_size);
    if (g.layers[i] == Mixer::attention) {
      add_attention(layer, g);
    } else {
      add_gdn(layer, g);
    }
    layer.vector("post_attention_layernorm", g.hidden_size);
    add_mlp(layer, g.hidden_size, g.intermediate_size);
  }
  FileSections(sections, Component::target, "target/model.bin", "").vector("norm", g.hidden_size);
  if (!g.tied_head) {
    FileSections(sections, Component::target, "target/head.bin", "").matrix("lm_head", g.vocab_size, g.hidden_size);
  }
  return sections;
}

std::vector<SectionShape> draft_sections(const DraftGeometry& g) {
  std::vector<SectionShape> sections;
  for (int i = 0; i < g.layers; ++i) {
    FileSections layer(sections, Component::draft, fmt::format("draft/layer-{:03}.bin", i),
                       fmt::format("layers.{}.", i));
    add_draft_layer(layer, g);
  }
  FileSections model(sections, Component::draft, "draft/model.bin", "");
  model.matrix("fc", g.hidden_size, static_cast<int>(g.taps.size()) * g.hidden_size);
  model.vector("hidden_norm", g.hidden_size);
  model.vector("norm", g.hidden_size);
  model.matrix("candidate_selector.hidden_projection", g.selector_rank, g.hidden_size);
  model.table("candidate_selector.predecessor_codebook", g.vocab_size, g.selector_rank);
  model.table("candidate_selector.successor_codebook", g.vocab_size, g.selector_rank);
  return sections;
}

std::string_view component_name(Component component) { return component == Component::target ? "target" : "draft"; }

std::string_view format_name(Format format) {
  switch (format) {
    case Format::q4:
      return "q4";
    case Format::bf16:
      return "bf16";
    case Format::f32:
      return "f32";
  }
  SPLASH_CHECK(false, "unknown weight format");
}

std::int64_t section_bytes(Role role, std::string_view kind, int rows, int cols) {
  const std::int64_t elements = std::int64_t{rows} * cols;
  if (role == Role::vector) return kind == kind_vector ? elements * 4 : 0;
  if (role == Role::table) return kind == kind_table_bf16 ? elements * 2 : kind == kind_table_f32 ? elements * 4 : 0;
  for (const Format format : {Format::q4, Format::bf16, Format::f32}) {
    if (kind != format_name(format)) continue;
    if (format == Format::q4 && cols % tile_cols != 0) return 0;
    return Weight{.format = format, .rows = rows, .cols = cols}.bytes();
  }
  return 0;
}

}  // namespace splash::pack
