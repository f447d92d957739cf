// Attention of steps and other narrow passes on Hopper (attention_narrow_cuda.cu).
#pragma once

#include <algorithm>

#include "backend/cuda/stream.h"

namespace splash::ops::paged {

// Rows of a segment that share a tile, where `group` query heads share a key-value head.
constexpr int narrow_tile_rows(int group) { return 64 / group; }
// Up to so many a tile makes its queries, keys and values itself: a warp for each row.
constexpr int narrow_new_rows = 8;
constexpr int narrow_own_rows(int group) { return std::min(narrow_tile_rows(group), narrow_new_rows); }

struct Arguments;
// Enqueues the tiles over prepared queries and stored keys, or, where there is one tile a segment and args.queries is
// null, over the projections themselves. most_rows: of the longest segment.
void run_narrow(cuda::Stream& stream, Arguments args, int segments, int most_rows);

}  // namespace splash::ops::paged
