#include "ops/gdn/gdn_rows.cuh"

namespace splash::ops::delta {

bool prefill_fits(cuda::Stream& stream, const GdnGeometry& geometry, int rows) {
  return Prepared::floats(geometry, rows) * sizeof(float) <= stream.partials_bytes();
}

void prefill(cuda::Stream& stream, const Arguments& args) { run_rows<false>(stream, args, args.tables.longest_commit); }

}  // namespace splash::ops::delta
