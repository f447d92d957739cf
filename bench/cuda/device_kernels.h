// Kernels that only the benchmark needs: filling memory with plausible weights, and the read roof.
#pragma once

#include "backend/cuda/stream.h"

namespace splash::bench {

void fill_tiles(cuda::Stream& stream, void* tiles, std::size_t count, unsigned seed);  // 576-byte q4 tiles
void fill_floats(cuda::Stream& stream, float* values, std::size_t count, float scale, unsigned seed);
// Random int8 codes; every float read out of it (the scales) lies in 0.0078 .. 0.0157.
void fill_pages(cuda::Stream& stream, void* pages, std::size_t bytes, unsigned seed);
void read_everything(cuda::Stream& stream, const void* data, std::size_t bytes, unsigned* sink, int blocks);

}  // namespace splash::bench
