#include "backend/cpu/simd_avx512vnni.h"
#include "ops/draft/block_conv_generic.h"

namespace splash::ops {
constinit const BlockConvKernels block_conv_avx512vnni = block_conv_kernels;
}  // namespace splash::ops
