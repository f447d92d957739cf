// Attention of wide passes on Hopper, by tiles of query rows (attention_tiles_cuda.cu).
#pragma once

#include "backend/cuda/stream.h"

namespace splash::ops::paged {

struct Arguments;
// Enqueues the tiles over prepared queries and stored keys. most_rows: of the longest segment.
void run_tiles(cuda::Stream& stream, Arguments args, int segments, int most_rows);

}  // namespace splash::ops::paged
