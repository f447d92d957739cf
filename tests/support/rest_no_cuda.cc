#include "base/check.h"
#include "support/rest.h"

namespace splash::test {

Rest rest_of_cuda(model::Model&, int) { SPLASH_CHECK(false, "this build has no CUDA backend"); }

}  // namespace splash::test
