// The dense hybrid text model (spec: qwen-models.md 2.2):
//   x = E[token];  per layer: x += mixer(norm(x)), x += mlp(norm(x));  logits = head(norm(x)).
#pragma once

#include <vector>

#include "models/qwen3_5/state.h"
#include "models/qwen3_5/weights.h"
#include "ops/embed/embed.h"
#include "ops/linear/linear.h"
#include "ops/norm/norm.h"

namespace splash::models::qwen3_5 {

// The rows of one pass: segments of consecutive positions of different lanes.
struct Rows {
  std::vector<Token> tokens;
  std::vector<ops::Segment> segments;
  std::vector<ops::GdnMode> modes;  // of each segment

  int count() const { return static_cast<int>(tokens.size()); }
  void add(int lane, int position, std::span<const Token> text, std::span<const ops::PageId> pages, ops::GdnMode mode) {
    segments.push_back({lane, count(), static_cast<int>(text.size()), position, pages});
    modes.push_back(mode);
    tokens.insert(tokens.end(), text.begin(), text.end());
  }
};

// The residual stream [rows, H] after the last layer, before the final norm. after_layer(l, x) sees it after layer l;
// l = -1: the embeddings.
template <class Stream, class AfterLayer>
MatrixView<float> forward(Stream& stream, const Weights& weights, const Rows& rows, State& state,
                          AfterLayer&& after_layer) {
  const pack::TargetGeometry& g = weights.geometry;
  const int count = rows.count();
  const MatrixView<float> x = stream.matrix(count, g.hidden_size), normed = stream.matrix(count, g.hidden_size);
  const auto of_gdn = gdn_scratch(stream, count, weights.gdn);
  const auto of_attention = attention_scratch(stream, count, weights.attention);
  const auto of_mlp = mlp_scratch(stream, count, g.intermediate_size);
  std::vector<ops::GdnSegment> lanes(rows.segments.size());

  ops::embed(stream, weights.embedding, rows.tokens, x);
  after_layer(-1, x);
  for (int l = 0; l < static_cast<int>(weights.layers.size()); ++l) {
    const Layer& layer = weights.layers[l];
    ops::rms_norm(stream, x, layer.input_norm, g.rms_eps, normed);
    if (const auto* recurrent = std::get_if<Gdn>(&layer.mixer)) {
      for (std::size_t i = 0; i < lanes.size(); ++i) {
        lanes[i] = {rows.segments[i], state.gdn(rows.segments[i].lane, layer.mixer_index), rows.modes[i]};
      }
      gdn(stream, weights.gdn, *recurrent, normed, lanes, of_gdn, x);
    } else {
      attention(stream, weights.attention, std::get<Attention>(layer.mixer), normed, rows.segments, state.pool(),
                layer.mixer_index, of_attention, x);
    }
    ops::rms_norm(stream, x, layer.post_attention_norm, g.rms_eps, normed);
    mlp(stream, layer.mlp, normed, of_mlp, true, x);
    after_layer(l, x);
  }
  return x;
}

// logits [rows, V] of residual rows.
template <class Stream>
MatrixView<float> head(Stream& stream, const Weights& weights, MatrixView<const float> x) {
  const MatrixView<float> normed = stream.matrix(x.rows, x.cols);
  const MatrixView<float> logits = stream.matrix(x.rows, weights.head.rows);
  ops::rms_norm(stream, x, weights.norm, weights.geometry.rms_eps, normed);
  ops::linear(stream, normed, weights.head, logits);
  return logits;
}

}  // namespace splash::models::qwen3_5
