// The draft (spec: dflash2.md sections 1.3 and 2.1): one bidirectional pass over blocks [anchor, MASK, MASK, ...], slot
// t predicting the token at anchor position + t, plus the projection of committed target features into its context.
#pragma once

#include <vector>

#include "models/blocks/mlp.h"
#include "models/dflash2/weights.h"
#include "ops/draft/draft.h"
#include "ops/embed/embed.h"
#include "ops/linear/linear.h"
#include "ops/norm/norm.h"

namespace splash::models::dflash2 {

struct Block {
  int lane = 0;
  Token anchor = 0;
  int position = 0;  // of the anchor
};

template <class Stream>
struct Scratch {
  MatrixView<float> normed, coefficients, convolved, q, k, v, mixed, sublayer;
  MlpScratch mlp;

  Scratch(Stream& stream, const pack::DraftGeometry& g, int rows)
      : normed(stream.matrix(rows, g.hidden_size)),
        coefficients(stream.matrix(rows, 4 * g.conv_groups())),
        convolved(stream.matrix(rows, g.hidden_size)),
        q(stream.matrix(rows, g.query_heads * g.head_dim)),
        k(stream.matrix(rows, g.kv_heads * g.head_dim)),
        v(stream.matrix(rows, g.kv_heads * g.head_dim)),
        mixed(stream.matrix(rows, g.query_heads * g.head_dim)),
        sublayer(stream.matrix(rows, g.hidden_size)),
        mlp(mlp_scratch(stream, rows, g.intermediate_size)) {}
};

// x += conv_1( sublayer( conv_0(n) ) ), n = norm(x); both stages' coefficients come from n.
template <class Stream, class Sublayer>
void convolved_sublayer(Stream& stream, const pack::DraftGeometry& g, std::span<const float> norm, const Conv& conv,
                        Scratch<Stream>& s, MatrixView<float> x, Sublayer&& sublayer) {
  ops::rms_norm(stream, x, norm, g.rms_eps, s.normed);
  ops::linear(stream, s.normed, conv.projection, s.coefficients);
  const ops::BlockConv before{conv.base, g.conv_group, 0, g.block_size},
      after{conv.base, g.conv_group, 1, g.block_size};
  ops::block_conv(stream, before, s.coefficients, s.normed, false, s.convolved);
  sublayer(s.convolved, s.sublayer);
  ops::block_conv(stream, after, s.coefficients, s.sublayer, true, x);
}

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

// Final-normed hidden states [blocks * block_size, H].
template <class Stream>
MatrixView<float> forward(Stream& stream, const Weights& weights, const pack::Weight& embedding,
                          const BlockRows& blocks) {
  const pack::DraftGeometry& g = weights.geometry;
  const int rows = static_cast<int>(blocks.tokens.size());
  const MatrixView<float> x = stream.matrix(rows, g.hidden_size);
  Scratch<Stream> s(stream, g, rows);

  ops::embed(stream, embedding, blocks.tokens, x);
  for (int i = 0; i < g.layers; ++i) {
    const Layer& layer = weights.layers[i];
    convolved_sublayer(stream, g, layer.input_norm, layer.attention_conv, s, x,
                       [&](MatrixView<const float> u, MatrixView<float> out) {
                         const ops::LinearTarget qkv[] = {{layer.q, s.q}, {layer.k, s.k}, {layer.v, s.v}};
                         ops::linear(stream, u, qkv);
                         ops::draft_attention(stream, layer.attention, layer.q_norm, layer.k_norm, s.q, s.k, s.v,
                                              g.block_size, blocks.segments[i], s.mixed);
                         ops::linear(stream, s.mixed, layer.out, out);
                       });
    convolved_sublayer(stream, g, layer.post_attention_norm, layer.mlp_conv, s, x,
                       [&](MatrixView<const float> u, MatrixView<float> out) {
                         gated(stream, layer.mlp, u, s.mlp);
                         ops::linear(stream, s.mlp.gate, layer.mlp.down, out);
                       });
  }
  ops::rms_norm(stream, x, weights.norm, g.rms_eps, s.normed);
  return s.normed;
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
template <class Stream>
void commit_context(Stream& stream, const Weights& weights, MatrixView<const float> features,
                    const ContextSegments& segments) {
  commit_context(stream, weights, features, segments, {}, [](int) {});
}

}  // namespace splash::models::dflash2
