// The three kernels of a long commit pass (gdn_prefill_cuda.cu); same bits as the one of gdn_cuda.cu.
#pragma once

#include "backend/cuda/stream.h"
#include "ops/gdn/gdn.h"

namespace splash::ops::delta {

struct Arguments;
// Whether the rows' operands fit the stream's memory for partial sums.
bool prefill_fits(cuda::Stream& stream, const GdnGeometry& geometry, int rows);
// All segments are commit passes, the longest of tables.longest_commit rows.
void prefill(cuda::Stream& stream, const Arguments& args);
// Any pass, on devices without clusters: the same three kernels behind one that folds the kept rows in.
void run_portable(cuda::Stream& stream, const Arguments& args);

}  // namespace splash::ops::delta
