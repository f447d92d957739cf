#include "backend/cpu/simd_avx2.h"
#include "ops/swiglu/swiglu_generic.h"

namespace splash::ops {
constinit const SwigluKernels swiglu_avx2 = swiglu_kernels;
}  // namespace splash::ops
