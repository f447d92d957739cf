#pragma once

#include "backend/cuda/stream.h"
#include "ops/embed/embed.h"

namespace splash::ops {

// `tokens` is a host table (Stream::bind).
void embed(cuda::Stream& stream, const pack::Weight& table, std::span<const Token> tokens, MatrixView<float> out);

}  // namespace splash::ops
