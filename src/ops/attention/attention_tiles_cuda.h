// Attention by tiles of query rows (attention_tiles_cuda.cu).
#pragma once

#include "backend/cuda/stream.h"

namespace splash::ops::paged {

// Rows of a segment that share a tile in narrow passes, where `group` query heads share a key-value head.
constexpr int narrow_tile_rows(int group) { return 64 / group; }

struct Arguments;
// Enqueues the tiles over prepared queries and stored keys, or, where there is one narrow tile a segment and
// args.queries is null, over the projections themselves. most_rows: of the longest segment.
void run_tiles(cuda::Stream& stream, Arguments args, int segments, int most_rows, bool wide);

}  // namespace splash::ops::paged
