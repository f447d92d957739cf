#include "models/qwen3_5/cuda/model.h"
#include "support/rest.h"

namespace splash::test {

Rest rest_of_cuda(model::Model& model, int lane) {
  auto& device = dynamic_cast<models::qwen3_5::CudaModel&>(model);
  return {device.state().geometry(), device.state_at_rest(lane)};
}

}  // namespace splash::test
