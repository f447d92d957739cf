// A lane's state at rest, on the host, whatever the backend.
#pragma once

#include <vector>

#include "models/qwen3_5/state.h"
#include "models/registry.h"

namespace splash::test {

struct Rest {
  models::qwen3_5::StateGeometry geometry;
  std::vector<float> values;  // [gdn layer][state, conv], then [draft layer][keys, values]
};
Rest rest_of(model::Model& model, models::Backend backend, int lane);

// In rest_cuda.cc; where the build leaves CUDA out, rest_no_cuda.cc.
Rest rest_of_cuda(model::Model& model, int lane);

}  // namespace splash::test
