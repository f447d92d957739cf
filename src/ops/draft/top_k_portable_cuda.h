// top_k on the portable path, which has no clusters: warps keep the k largest of 1024 entries each, then these are merged.
#pragma once

#include "backend/cuda/stream.h"
#include "link/token.h"

namespace splash::ops {

void top_k_portable(cuda::Stream& stream, MatrixView<const float> logits, int limit, MatrixView<Token> tokens,
                    MatrixView<float> values);

}  // namespace splash::ops
