#include "backend/cpu/simd_avx2.h"
#include "ops/draft/block_conv_generic.h"

namespace splash::ops {
constinit const BlockConvKernels block_conv_avx2 = block_conv_kernels;
}  // namespace splash::ops
