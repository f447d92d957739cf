// Gated DeltaNet with its input projections: gdn(qkv, z, b, a), before out_proj.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "ops/gdn/gdn.h"
#include "ops/linear/linear.h"
#include "pack/weight.h"

namespace splash::models {

struct Gdn {
  pack::Weight qkv, z, b, a, out;
  ops::GdnWeights core;
};

struct GdnScratch {
  MatrixView<float> qkv, z, b, a, mixed;
};
template <class Stream>
GdnScratch gdn_scratch(Stream& stream, int rows, const ops::GdnGeometry& geometry) {
  const int value_width = geometry.value_heads * geometry.value_dim;
  return {stream.matrix(rows, geometry.channels()), stream.matrix(rows, value_width),
          stream.matrix(rows, geometry.value_heads), stream.matrix(rows, geometry.value_heads),
          stream.matrix(rows, value_width)};
}

// The segments of a layer, one of them perhaps cut in two at its mark: what the lane remembers there is copied before the
// rest of it runs. A layer goes row by row, so the cut does not show in any bit.
struct GdnTurns {
  std::vector<ops::GdnSegment> first;
  std::vector<ops::GdnSegment> rest;  // of the marked segment; empty without a mark
  std::span<const float> from;        // the lane's state and conv in this layer
  float* to = nullptr;
};
template <class Stream>
void run_gdn(Stream& stream, const ops::GdnGeometry& geometry, const ops::GdnWeights& weights, const ops::GdnRows& rows,
             const GdnTurns& turns, MatrixView<float> out) {
  ops::gdn(stream, geometry, weights, rows, turns.first, out);
  if (turns.rest.empty()) return;
  std::copy(turns.from.begin(), turns.from.end(), turns.to);
  ops::gdn(stream, geometry, weights, rows, turns.rest, out);
}
// A device's own tables hold the same.
template <class Stream, class Tables>
void run_gdn(Stream& stream, const ops::GdnGeometry& geometry, const ops::GdnWeights& weights, const ops::GdnRows& rows,
             const Tables& tables, MatrixView<float> out) {
  ops::gdn(stream, geometry, weights, rows, tables, out);
}

// Leaves its result in scratch.mixed, the input of weights.out. Segments: GdnTurns, or a device's tables.
template <class Stream, class Segments>
void gdn(Stream& stream, const ops::GdnGeometry& geometry, const Gdn& weights, MatrixView<const float> x,
         const Segments& segments, const GdnScratch& scratch) {
  const ops::LinearTarget projections[] = {
      {weights.qkv, scratch.qkv}, {weights.z, scratch.z}, {weights.b, scratch.b}, {weights.a, scratch.a}};
  ops::linear(stream, x, projections);
  run_gdn(stream, geometry, weights.core, {scratch.qkv, scratch.z, scratch.b, scratch.a}, segments, scratch.mixed);
}

}  // namespace splash::models
