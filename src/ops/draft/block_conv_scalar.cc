#include "backend/cpu/simd_scalar.h"
#include "ops/draft/block_conv_generic.h"

namespace splash::ops {
constinit const BlockConvKernels block_conv_scalar = block_conv_kernels;
}  // namespace splash::ops
