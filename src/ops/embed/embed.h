// Gathers embedding rows from a matrix of strips: out[r] = E[tokens[r]]. The same bits on every stream.
#pragma once

#include <span>

#include "base/matrix.h"
#include "link/token.h"
#include "ops/streams.h"
#include "pack/weight.h"

namespace splash::ops {

void embed(ref::Stream& stream, const pack::Weight& table, std::span<const Token> tokens, MatrixView<float> out);
void embed(cpu::Stream& stream, const pack::Weight& table, std::span<const Token> tokens, MatrixView<float> out);

}  // namespace splash::ops
