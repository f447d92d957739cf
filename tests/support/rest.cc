#include "support/rest.h"

#include "models/qwen3_5/model.h"

namespace splash::test {
namespace {

template <class Stream>
Rest rest_of_host(model::Model& model, int lane) {
  auto& hybrid = dynamic_cast<models::qwen3_5::HybridModel<Stream>&>(model);
  const auto values = hybrid.state_at_rest(lane);
  return {hybrid.state().geometry(), {values.begin(), values.end()}};
}

}  // namespace

Rest rest_of(model::Model& model, models::Backend backend, int lane) {
  if (backend == models::Backend::ref) return rest_of_host<ref::Stream>(model, lane);
  if (backend == models::Backend::cpu) return rest_of_host<cpu::Stream>(model, lane);
  return rest_of_cuda(model, lane);
}

}  // namespace splash::test
