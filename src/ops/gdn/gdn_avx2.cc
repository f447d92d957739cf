#include "backend/cpu/simd_avx2.h"
#include "ops/gdn/gdn_generic.h"

namespace splash::ops {
constinit const GdnKernels gdn_avx2 = gdn_kernels;
}  // namespace splash::ops
