// A build without the CUDA backend: cuda::find_devices gives the reason.
#include "backend/cuda/facts.h"
#include "models/qwen3_5/cuda/open.h"

namespace splash::models::qwen3_5 {
namespace {

tl::unexpected<Error> reason() {
  const auto device = cuda::choose_device(-1);
  return tl::unexpected<Error>(device ? Error{} : device.error());
}

}  // namespace

Status cuda_ready(const pack::Package&, int, int) { return reason(); }
Result<model::Footprint> footprint_on_cuda(const pack::Package&, int, int) { return reason(); }
Result<std::unique_ptr<model::Model>> open_on_cuda(int, std::shared_ptr<const pack::Package>, const model::Facts&) {
  return reason();
}
Result<Scores> score_on_cuda(int, const pack::Package&, std::span<const Token>, int, bool) { return reason(); }
Result<DraftReport> draft_report_on_cuda(int, const pack::Package&, std::span<const Token>, int) { return reason(); }

}  // namespace splash::models::qwen3_5
