// Starts the 4-bit kernels; each lives in a file of its own because each takes a while to compile.
#pragma once

#include "backend/cuda/stream.h"

namespace splash::ops {

struct Q4Work;
void launch_q4_few(cuda::Stream& stream, const Q4Work& work);  // tokens <= 32
// Sums of squares that launch_q4_few writes where a norm follows.
int q4_square_parts(cuda::Stream& stream, const Q4Work& work);
void launch_q4_wide(cuda::Stream& stream, const Q4Work& work);  // panel tiles of 64 to 256 tokens
// silu(gate) * up of matrices 0 and 1 to gated_panel (and matrix 0's out, if it has one).
void launch_q4_wide_gated(cuda::Stream& stream, const Q4Work& work);
// In how many parts a wide pass cuts the launch's K: of the matrix alone, so that bits do not depend on the rows.
int q4_wide_parts(const Q4Work& work);

// Devices without Hopper's instructions: any number of tokens, no folded norms, no parts.
void launch_q4_portable(cuda::Stream& stream, const Q4Work& work);

}  // namespace splash::ops
