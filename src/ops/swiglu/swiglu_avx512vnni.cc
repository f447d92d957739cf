#include "backend/cpu/simd_avx512vnni.h"
#include "ops/swiglu/swiglu_generic.h"

namespace splash::ops {
constinit const SwigluKernels swiglu_avx512vnni = swiglu_kernels;
}  // namespace splash::ops
