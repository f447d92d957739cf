// The fused pairs of fused.h on the GPU (linear_cuda.h says when they are one launch).
#pragma once

// clang-format off
#include "ops/draft/draft_cuda.h"  // before fused.h, whose sequences find only what is declared by then
#include "ops/linear/linear_cuda.h"
#include "ops/norm/norm_cuda.h"
#include "ops/swiglu/swiglu_cuda.h"
#include "ops/fused.h"
// clang-format on
