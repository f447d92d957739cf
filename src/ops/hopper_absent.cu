// In the place of the kernels that are Hopper's alone, for SPLASH_CUDA_PROVE_PORTABLE: a program without them.
#include "base/check.h"
#include "ops/attention/attention_cuda.cuh"
#include "ops/attention/attention_narrow_cuda.h"
#include "ops/attention/attention_tiles_cuda.h"
#include "ops/linear/q4_launch.h"

namespace splash::ops {
namespace {

[[noreturn]] void absent() { SPLASH_CHECK(false, "this program has no kernels of Hopper's (SPLASH_CUDA_PATH=portable)"); }

}  // namespace

void launch_q4_few(cuda::Stream&, const Q4Work&) { absent(); }
int q4_square_parts(cuda::Stream&, const Q4Work&) { absent(); }
void launch_q4_wide(cuda::Stream&, const Q4Work&) { absent(); }
void launch_q4_wide_gated(cuda::Stream&, const Q4Work&) { absent(); }
int q4_wide_parts(const Q4Work&) { absent(); }
void paged::run_narrow(cuda::Stream&, Arguments, int, int) { absent(); }
void paged::run_tiles(cuda::Stream&, Arguments, int, int) { absent(); }

}  // namespace splash::ops
