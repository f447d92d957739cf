// The draft (spec: dflash2.md sections 1.3 and 2.1): one bidirectional pass over blocks [anchor, MASK, MASK, ...], slot
// t predicting the token at anchor position + t, plus the projection of committed target features into its context.
#pragma once

#include <utility>
#include <vector>

#include "models/blocks/mlp.h"
#include "models/dflash2/weights.h"
#include "ops/draft/draft.h"
#include "ops/embed/embed.h"
#include "ops/linear/linear.h"
#include "ops/fused.h"
#include "ops/norm/norm.h"

namespace splash::models::dflash2 {

struct Block {
  int lane = 0;
  Token anchor = 0;
  int position = 0;  // of the anchor
};

template <class Stream>
struct Scratch {
  MatrixView<float> normed, convolved, q, k, v, mixed, sublayer, spare;
  MatrixView<float> coefficients[2];  // of attention and of the MLP
  MlpScratch mlp;

  Scratch(Stream& stream, const pack::DraftGeometry& g, int rows)
      : normed(stream.matrix(rows, g.hidden_size)),
        convolved(stream.matrix(rows, g.hidden_size)),
        q(stream.matrix(rows, g.query_heads * g.head_dim)),
        k(stream.matrix(rows, g.kv_heads * g.head_dim)),
        v(stream.matrix(rows, g.kv_heads * g.head_dim)),
        mixed(stream.matrix(rows, g.query_heads * g.head_dim)),
        sublayer(stream.matrix(rows, g.hidden_size)),
        spare(stream.matrix(rows, g.hidden_size)),
        coefficients{stream.matrix(rows, 4 * g.conv_groups()), stream.matrix(rows, 4 * g.conv_groups())},
        mlp(mlp_scratch(stream, rows, g.intermediate_size)) {}
};

// The rows of one draft pass.
struct BlockRows {
  std::vector<Token> tokens;                                  // per block: the anchor, then masks
  std::vector<std::vector<ops::DraftBlockSegment>> segments;  // [layer][block]
};
// ring(lane, layer): the lane's context in that layer.
template <class Rings>
BlockRows block_rows(const Weights& weights, std::span<const Block> blocks, Rings&& ring) {
  const pack::DraftGeometry& g = weights.geometry;
  BlockRows rows;
  rows.segments.resize(g.layers);
  for (const Block& block : blocks) {
    const int first = static_cast<int>(rows.tokens.size());
    rows.tokens.push_back(block.anchor);
    rows.tokens.insert(rows.tokens.end(), g.block_size - 1, g.mask_token);
    for (int i = 0; i < g.layers; ++i) rows.segments[i].push_back({first, block.position, ring(block.lane, i)});
  }
  return rows;
}

// Final-normed hidden states of `count` slots of every block from slot `first` on (0: all that follow), dense:
// [blocks * count, H]. Each sublayer: x += conv_1( sublayer( conv_0(n) ) ), n = norm(x); both stages' coefficients come from n.
template <class Stream>
MatrixView<float> forward(Stream& stream, const Weights& weights, const pack::Weight& embedding, const BlockRows& blocks,
                          int first = 0, int count = 0) {
  const pack::DraftGeometry& g = weights.geometry;
  const int rows = static_cast<int>(blocks.tokens.size());
  MatrixView<float> x = stream.matrix(rows, g.hidden_size);
  Scratch<Stream> s(stream, g, rows);
  ops::DraftBoundary::End end;
  const auto begin = [&](std::span<const float> norm, const ops::BlockConvWeights& conv, MatrixView<float> coefficients) {
    const MatrixView<float> now = ops::draft_boundary(stream, x, s.spare,
                                                      {.end = end,
                                                       .gain = norm,
                                                       .eps = g.rms_eps,
                                                       .conv = conv,
                                                       .group = g.conv_group,
                                                       .block = g.block_size,
                                                       .normed = s.normed,
                                                       .coefficients = coefficients,
                                                       .convolved = s.convolved});
    if (now.data != x.data) std::swap(x, s.spare);
    end = {conv.base, coefficients, s.sublayer};
  };

  ops::embed(stream, embedding, blocks.tokens, x);
  for (int i = 0; i < g.layers; ++i) {
    const Layer& layer = weights.layers[i];
    begin(layer.input_norm, layer.attention_conv, s.coefficients[0]);
    const ops::LinearTarget qkv[] = {{layer.q, s.q}, {layer.k, s.k}, {layer.v, s.v}};
    ops::linear(stream, s.convolved, qkv);
    ops::draft_attention(stream, layer.attention, layer.q_norm, layer.k_norm, s.q, s.k, s.v, g.block_size,
                         blocks.segments[i], s.mixed);
    ops::linear(stream, s.mixed, layer.out, s.sublayer);
    begin(layer.post_attention_norm, layer.mlp_conv, s.coefficients[1]);
    gated(stream, layer.mlp, s.convolved, s.mlp);
    ops::linear(stream, s.mlp.gate, layer.mlp.down, s.sublayer);
  }
  if (count == 0) count = g.block_size - first;
  const MatrixView<float> out = stream.matrix(rows / g.block_size * count, g.hidden_size);
  ops::draft_finish(stream, x, end, g.conv_group, g.block_size, weights.norm, g.rms_eps, first, out);
  return out;
}

// Committed rows whose target features become context: rows [first_row, first_row + rows) at `position` and on.
struct ContextRows {
  int lane = 0;
  int first_row = 0;
  int rows = 0;
  int position = 0;
};

// [layer][lane]: where the rows go. ring(lane, layer): the lane's context in that layer.
using ContextSegments = std::vector<std::vector<ops::DraftContextSegment>>;
template <class Rings>
ContextSegments context_segments(const Weights& weights, std::span<const ContextRows> lanes, Rings&& ring) {
  ContextSegments segments(weights.geometry.layers);
  for (int i = 0; i < weights.geometry.layers; ++i) {
    for (const ContextRows& rows : lanes) {
      const ops::DraftRing to = ring(rows.lane, i);
      const int skipped = rows.rows > to.capacity ? rows.rows - to.capacity : 0;  // would be overwritten at once
      segments[i].push_back({rows.first_row + skipped, rows.rows - skipped, rows.position + skipped, to});
    }
  }
  return segments;
}

// c = norm(fc f); each layer's keys and values of c go to the lanes' rings, between(layer) is called, and the rows of
// `rest` follow. features [rows, taps * H].
template <class Stream, class Between>
void commit_context(Stream& stream, const Weights& weights, MatrixView<const float> features,
                    const ContextSegments& segments, const ContextSegments& rest, Between&& between) {
  const pack::DraftGeometry& g = weights.geometry;
  const MatrixView<float> context = stream.matrix(features.rows, g.hidden_size);
  const MatrixView<float> k = stream.matrix(features.rows, g.kv_heads * g.head_dim);
  const MatrixView<float> v = stream.matrix(features.rows, g.kv_heads * g.head_dim);
  ops::linear(stream, features, weights.context_projection, context);
  ops::rms_norm(stream, context, weights.context_norm, g.rms_eps, context);
  for (int i = 0; i < g.layers; ++i) {
    const Layer& layer = weights.layers[i];
    const ops::LinearTarget kv[] = {{layer.k, k}, {layer.v, v}};
    ops::linear(stream, context, kv);
    ops::draft_context(stream, layer.attention, layer.k_norm, k, v, segments[i]);
    between(i);
    if (!rest.empty()) ops::draft_context(stream, layer.attention, layer.k_norm, k, v, rest[i]);
  }
}
// The same without a rest, all layers at once where the stream can do that.
template <class Stream>
void commit_context(Stream& stream, const Weights& weights, MatrixView<const float> features,
                    const ContextSegments& segments) {
  const pack::DraftGeometry& g = weights.geometry;
  const MatrixView<float> context = stream.matrix(features.rows, g.hidden_size),
                          normed = stream.matrix(features.rows, g.hidden_size);
  std::vector<ops::DraftContextLayer> layers;
  bool four_bits = true;
  for (int i = 0; i < g.layers; ++i) {
    const Layer& layer = weights.layers[i];
    layers.push_back({layer.k, layer.v, layer.k_norm, segments[i]});
    four_bits = four_bits && layer.k.format == pack::Format::q4 && layer.v.format == pack::Format::q4;
  }
  if (four_bits) {
    ops::linear_norm(stream, features, weights.context_projection, context, weights.context_norm, g.rms_eps, normed);
  } else {
    ops::linear(stream, features, weights.context_projection, context);
    ops::rms_norm(stream, context, weights.context_norm, g.rms_eps, normed);
  }
  ops::draft_contexts(stream, weights.layers.front().attention, normed, layers);
}

}  // namespace splash::models::dflash2
