#include "models/qwen3_5/cuda/weights.h"

#include <algorithm>
#include <unordered_set>

#include "backend/cuda/stream.h"
#include "backend/cuda/upload.h"
#include "models/qwen3_5/state.h"
#include "ops/linear/linear_cuda.h"
#include "ops/sampling/law_cuda.h"

namespace splash::models::qwen3_5 {
namespace {

// Calls move(data pointer, bytes, order of 4-bit tiles, null if these are none) for everything a model reads.
template <class Move>
class Views {
 public:
  explicit Views(Move move) : move_(std::move(move)) {}

  void operator()(Weights& w) {
    view(w.embedding), view(w.head), view(w.norm);
    for (Layer& layer : w.layers) {
      view(layer.input_norm), view(layer.post_attention_norm), view(layer.mlp);
      if (auto* gdn = std::get_if<Gdn>(&layer.mixer)) {
        view(gdn->qkv), view(gdn->z), view(gdn->b), view(gdn->a), view(gdn->out);
        view(gdn->core.conv), view(gdn->core.a_log), view(gdn->core.dt_bias), view(gdn->core.norm);
      } else {
        auto& full = std::get<Attention>(layer.mixer);
        view(full.q_gate), view(full.k), view(full.v), view(full.out);
        view(full.norms.q_norm), view(full.norms.k_norm);
      }
    }
  }
  void operator()(dflash2::Weights& w) {
    view(w.context_projection), view(w.context_norm), view(w.norm), view(w.selector_projection);
    view(w.selector.predecessor), view(w.selector.successor);
    for (dflash2::Layer& layer : w.layers) {
      view(layer.input_norm), view(layer.post_attention_norm), view(layer.mlp);
      for (ops::BlockConvWeights* conv : {&layer.attention_conv, &layer.mlp_conv}) view(conv->base), view(conv->projection);
      view(layer.q), view(layer.k), view(layer.v), view(layer.out), view(layer.q_norm), view(layer.k_norm);
    }
  }

 private:
  void view(pack::Weight& weight) {
    const ops::Q4Order order{weight.strips(), weight.cols / pack::tile_cols};
    weight.data = move_(weight.data, weight.bytes(), weight.format == pack::Format::q4 ? &order : nullptr);
  }
  void view(pack::Table& table) {
    const int element = table.format == pack::Format::bf16 ? 2 : 4;
    table.data = move_(table.data, std::int64_t{table.rows} * table.cols * element, nullptr);
  }
  void view(std::span<const float>& values) {
    const auto* from = reinterpret_cast<const std::byte*>(values.data());
    values = {reinterpret_cast<const float*>(move_(from, static_cast<std::int64_t>(values.size_bytes()), nullptr)),
              values.size()};
  }
  void view(Mlp& mlp) { view(mlp.gate), view(mlp.up), view(mlp.down); }

  Move move_;
};

Status need(bool holds, const char* what, int value) {
  if (holds) return {};
  return fail(ErrorKind::unsupported, "the CUDA kernels are not for {} {}", what, value);
}

Status supports_target(const pack::TargetGeometry& g) {
  bool attention = false, recurrent = false;
  for (const pack::Mixer mixer : g.layers) (mixer == pack::Mixer::attention ? attention : recurrent) = true;
  SPLASH_TRY_STATUS(need(g.hidden_size % 128 == 0, "a hidden size of", g.hidden_size));
  SPLASH_TRY_STATUS(need(g.intermediate_size % 128 == 0, "an intermediate size of", g.intermediate_size));
  if (attention) {
    SPLASH_TRY_STATUS(need(g.head_dim == 256, "attention heads of", g.head_dim));
    SPLASH_TRY_STATUS(need(g.rotary_dim == 64, "a rotary dimension of", g.rotary_dim));
    SPLASH_TRY_STATUS(need(g.query_heads / g.kv_heads <= 8, "query heads per key head:", g.query_heads / g.kv_heads));
  }
  if (recurrent) {
    SPLASH_TRY_STATUS(need(g.key_dim == 128, "Gated DeltaNet keys of", g.key_dim));
    SPLASH_TRY_STATUS(need(g.value_dim == 128, "Gated DeltaNet values of", g.value_dim));
    SPLASH_TRY_STATUS(need(g.conv_kernel == 4, "a convolution of", g.conv_kernel));
    SPLASH_TRY_STATUS(need(g.value_heads / g.key_heads <= 4, "value heads per key head:", g.value_heads / g.key_heads));
  }
  return {};
}

Status supports_draft(const pack::DraftGeometry& g, int max_context) {
  SPLASH_TRY_STATUS(need(g.head_dim == 64 || g.head_dim == 128, "draft heads of", g.head_dim));
  const int rows = g.block_size * g.query_heads / g.kv_heads;
  SPLASH_TRY_STATUS(need(rows <= 32, "draft query rows per key head:", rows));
  SPLASH_TRY_STATUS(need(g.hidden_size % 128 == 0, "a draft hidden size of", g.hidden_size));
  SPLASH_TRY_STATUS(need(g.intermediate_size % 128 == 0, "a draft intermediate size of", g.intermediate_size));
  SPLASH_TRY_STATUS(need(g.conv_group % 8 == 0, "a convolution group of", g.conv_group));
  SPLASH_TRY_STATUS(
      need(g.selector_top_k <= ops::most_candidates_cuda, "draft candidates per slot:", g.selector_top_k));
  SPLASH_TRY_STATUS(need(g.selector_rank <= ops::most_selector_rank_cuda, "a selector rank of", g.selector_rank));
  for (int layer = 0; layer < g.layers; ++layer) {
    // Partial sums of the draft's attention: every 64 positions of its reach.
    const std::int64_t reach = dflash2::ring_capacity(g, layer, max_context);
    const std::int64_t floats = link::max_lanes * std::int64_t{g.kv_heads} * (reach / 64 + 3) * 32 * (g.head_dim + 2);
    constexpr auto most = static_cast<std::int64_t>(cuda::Stream::partials_bytes());
    SPLASH_TRY_STATUS(need(floats * 4 <= most, "a draft window of", static_cast<int>(reach)));
  }
  return {};
}

}  // namespace

Status cuda_supports(const pack::Package& package, int max_context) {
  SPLASH_TRY_STATUS(supports_target(package.target()));
  if (package.draft() != nullptr) SPLASH_TRY_STATUS(supports_draft(*package.draft(), max_context));
  // From 33 rows on a 4-bit linear takes two tiles of 64 inputs at a time.
  for (const pack::SectionInfo& section : package.sections()) {
    if (section.kind == "q4" && section.cols % 128 != 0) {
      return fail(ErrorKind::unsupported, "the CUDA kernels are not for 4-bit matrices with {} inputs ({})",
                  section.cols, section.name);
    }
  }
  return {};
}

Result<CudaWeights> upload_weights(cuda::Stream& stream, const pack::Package& package) {
  CudaWeights out;
  out.target = load(package);
  if (package.draft() != nullptr) out.draft = dflash2::load(package);
  // Twice over the same views: first where each block goes, then, with the memory at hand, the views themselves.
  PlacementPlan plan;
  std::int64_t most_of_group = 0;
  Views place([&](const std::byte* from, std::int64_t bytes, const ops::Q4Order* order) {
    if (order) most_of_group = std::max(most_of_group, order->group_bytes());
    return plan.add(from, bytes), from;
  });
  place(out.target);
  if (out.draft) place(*out.draft);
  SPLASH_TRY(out.memory, cuda::upload(stream, plan));
  constexpr std::int64_t arranged_at_once = std::int64_t{32} << 20;
  const auto scratch_bytes = static_cast<std::size_t>(std::max(arranged_at_once, most_of_group));
  SPLASH_TRY(const cuda::DeviceBuffer scratch, cuda::DeviceBuffer::allocate(scratch_bytes));
  std::unordered_set<std::int64_t> arranged;  // a tied head is the embedding
  Views move([&](const std::byte* from, std::int64_t bytes, const ops::Q4Order* order) -> const std::byte* {
    const std::int64_t offset = plan.add(from, bytes);
    if (order && arranged.insert(offset).second) {
      ops::arrange_q4(stream, *order, out.memory.data() + offset, {scratch.data(), scratch.bytes()});
    }
    return out.memory.data() + offset;
  });
  move(out.target);
  if (out.draft) move(*out.draft);
  SPLASH_TRY_STATUS(stream.synchronise());
  return out;
}

}  // namespace splash::models::qwen3_5
