#include "backend/cpu/simd_avx512vnni.h"
#include "ops/gdn/gdn_generic.h"

namespace splash::ops {
constinit const GdnKernels gdn_avx512vnni = gdn_kernels;
}  // namespace splash::ops
