// Gated DeltaNet with its input projections: gdn(qkv, z, b, a), before out_proj.
#pragma once

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

// Leaves its result in scratch.mixed, the input of weights.out. Segments: GdnSegment values, or a device's tables of
// them.
template <class Stream, class Segments>
void gdn(Stream& stream, const ops::GdnGeometry& geometry, const Gdn& weights, MatrixView<const float> x,
         const Segments& segments, const GdnScratch& scratch) {
  const ops::LinearTarget projections[] = {
      {weights.qkv, scratch.qkv}, {weights.z, scratch.z}, {weights.b, scratch.b}, {weights.a, scratch.a}};
  ops::linear(stream, x, projections);
  ops::gdn(stream, geometry, weights.core, {scratch.qkv, scratch.z, scratch.b, scratch.a}, segments, scratch.mixed);
}

}  // namespace splash::models
