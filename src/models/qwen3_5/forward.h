// The dense hybrid text model (spec: qwen-models.md 2.2):
//   x = E[token];  per layer: x += mixer(norm(x)), x += mlp(norm(x));  logits = head(norm(x)).
#pragma once

#include <vector>

#include "models/qwen3_5/state.h"
#include "models/qwen3_5/weights.h"
#include "ops/embed/embed.h"
#include "ops/fused.h"

namespace splash::models::qwen3_5 {

// The rows of one pass: segments of consecutive positions of different lanes.
struct Rows {
  std::vector<Token> tokens;
  std::vector<ops::Segment> segments;
  std::vector<ops::GdnMode> modes;  // of each segment
  int marked = -1, mark = 0;        // the segment with a mark (model.h), and behind how many of its rows

  int count() const { return static_cast<int>(tokens.size()); }
  void add(int lane, int position, std::span<const Token> text, std::span<const ops::PageId> pages, ops::GdnMode mode) {
    segments.push_back({lane, count(), static_cast<int>(text.size()), position, pages});
    modes.push_back(mode);
    tokens.insert(tokens.end(), text.begin(), text.end());
  }
};

// What a pass leaves: the residual stream after the last layer and its final norm, [rows, H] each.
struct Passed {
  MatrixView<float> x, normed;
};

// after_layer(l, x) sees the residual stream after layer l; l = -1: the embeddings. `memory`: pages and recurrent
// states (State, or a device's).
template <class Stream, class Memory, class AfterLayer>
Passed forward(Stream& stream, const Weights& weights, const Rows& rows, Memory& memory, AfterLayer&& after_layer) {
  const pack::TargetGeometry& g = weights.geometry;
  const int count = rows.count(), layers = static_cast<int>(weights.layers.size());
  const MatrixView<float> x = stream.matrix(count, g.hidden_size), normed = stream.matrix(count, g.hidden_size);
  const auto of_gdn = gdn_scratch(stream, count, weights.gdn);
  const auto of_attention = attention_scratch(stream, count, weights.attention);
  const auto of_mlp = mlp_scratch(stream, count, g.intermediate_size);

  ops::embed(stream, weights.embedding, rows.tokens, x);
  after_layer(-1, x);
  ops::rms_norm(stream, x, weights.layers.front().input_norm, g.rms_eps, normed);
  for (int l = 0; l < layers; ++l) {
    const Layer& layer = weights.layers[l];
    if (const auto* recurrent = std::get_if<Gdn>(&layer.mixer)) {
      gdn(stream, weights.gdn, *recurrent, normed, memory.gdn_segments(rows, layer.mixer_index), of_gdn);
      ops::linear_add_norm(stream, ops::finely(stream, of_gdn.mixed), recurrent->out, x, layer.post_attention_norm, g.rms_eps, normed);
    } else {
      const auto& full = std::get<Attention>(layer.mixer);
      attention(stream, weights.attention, full, normed, rows.segments, memory.pool(), layer.mixer_index, of_attention);
      ops::linear_add_norm(stream, ops::finely(stream, of_attention.mixed), full.out, x, layer.post_attention_norm, g.rms_eps, normed);
    }
    gated(stream, layer.mlp, normed, of_mlp);
    const auto next_norm = l + 1 < layers ? weights.layers[l + 1].input_norm : weights.norm;
    ops::linear_add_norm(stream, of_mlp.gate, layer.mlp.down, x, next_norm, g.rms_eps, normed);
    after_layer(l, x);
  }
  return {x, normed};
}

// logits [rows, V] of final-normed rows.
template <class Stream>
MatrixView<float> head(Stream& stream, const Weights& weights, MatrixView<const float> normed) {
  const MatrixView<float> logits = stream.matrix(normed.rows, weights.head.rows);
  ops::linear(stream, normed, weights.head, logits);
  return logits;
}

}  // namespace splash::models::qwen3_5
