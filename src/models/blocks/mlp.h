// SwiGLU: down( silu(gate x) * up x ).
#pragma once

#include "ops/fused.h"
#include "pack/weight.h"

namespace splash::models {

struct Mlp {
  pack::Weight gate, up, down;  // [I, H], [I, H], [H, I]
};

// Activations of one pass; every layer uses the same memory.
struct MlpScratch {
  MatrixView<float> gate, up;
};
template <class Stream>
MlpScratch mlp_scratch(Stream& stream, int rows, int intermediate) {
  return {stream.matrix(rows, intermediate), stream.matrix(rows, intermediate)};
}

// silu(gate x) * up x, the input of weights.down: left in scratch.gate.
template <class Stream>
void gated(Stream& stream, const Mlp& weights, MatrixView<const float> x, const MlpScratch& scratch) {
  ops::linear_swiglu(stream, x, weights.gate, weights.up, scratch.up, scratch.gate);
}

}  // namespace splash::models
