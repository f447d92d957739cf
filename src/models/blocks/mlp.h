// SwiGLU: down( silu(gate x) * up x ).
#pragma once

#include "ops/linear/linear.h"
#include "ops/swiglu/swiglu.h"
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

// out = mlp(x), or out += mlp(x) where `accumulate` (the residual).
template <class Stream>
void mlp(Stream& stream, const Mlp& weights, MatrixView<const float> x, const MlpScratch& scratch, bool accumulate,
         MatrixView<float> out) {
  const ops::LinearTarget inner[] = {{weights.gate, scratch.gate}, {weights.up, scratch.up}};
  ops::linear(stream, x, inner);
  ops::swiglu(stream, scratch.gate, scratch.up, scratch.gate);
  const ops::LinearTarget outer{weights.down, out, accumulate};
  ops::linear(stream, scratch.gate, std::span(&outer, 1));
}

}  // namespace splash::models
