#include "backend/cpu/simd_scalar.h"
#include "ops/gdn/gdn_generic.h"

namespace splash::ops {
constinit const GdnKernels gdn_scalar = gdn_kernels;
}  // namespace splash::ops
