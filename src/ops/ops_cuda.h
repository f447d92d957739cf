// Every op on cuda::Stream. A file that instantiates the model for CUDA includes this first: the templates in models/
// name ops::linear and the like with their namespace, so only overloads declared before the template are found.
#pragma once

#include "ops/attention/attention_cuda.h"
#include "ops/draft/draft_cuda.h"
#include "ops/embed/embed_cuda.h"
#include "ops/fused_cuda.h"
#include "ops/gdn/gdn_cuda.h"
#include "ops/linear/linear_cuda.h"
#include "ops/norm/norm_cuda.h"
#include "ops/sampling/law_cuda.h"
#include "ops/swiglu/swiglu_cuda.h"
