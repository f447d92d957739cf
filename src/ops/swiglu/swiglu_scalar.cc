#include "backend/cpu/simd_scalar.h"
#include "ops/swiglu/swiglu_generic.h"

namespace splash::ops {
constinit const SwigluKernels swiglu_scalar = swiglu_kernels;
}  // namespace splash::ops
