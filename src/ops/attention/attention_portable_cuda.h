// Attention on devices without Hopper's instructions (attention_portable_cuda.cu).
#pragma once

#include "backend/cuda/stream.h"

namespace splash::ops::paged {

struct Arguments;
// Enqueues chunks and their merge over prepared queries and stored keys; most_rows: of the longest segment.
void run_portable(cuda::Stream& stream, Arguments args, int segments, int most_rows);

}  // namespace splash::ops::paged
