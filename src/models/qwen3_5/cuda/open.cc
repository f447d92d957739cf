#include "models/qwen3_5/cuda/open.h"

#include "models/qwen3_5/cuda/model.h"

namespace splash::models::qwen3_5 {
namespace {

// A model of one lane for a text that the caller owns.
Result<std::unique_ptr<CudaModel>> open_for(int index, const pack::Package& package, std::span<const Token> text,
                                            int chunk) {
  SPLASH_TRY(const cuda::DeviceFacts device, cuda::choose_device(index));
  model::Facts facts;
  facts.name = package.name();
  facts.lanes = 1;
  facts.pages = static_cast<int>(text.size()) / link::page_tokens + 2;
  facts.max_context = facts.pages * link::page_tokens;
  facts.max_prefill_rows = chunk;
  SPLASH_TRY(auto model,
             CudaModel::open(device, std::shared_ptr<const pack::Package>(std::shared_ptr<void>(), &package), facts));
  SPLASH_TRY_STATUS(model->back_pages(facts.pages));
  return model;
}

}  // namespace

Status cuda_ready(const pack::Package& package, int index, int max_context) {
  SPLASH_TRY(const cuda::DeviceFacts device, cuda::choose_device(index));
  return cuda_supports(package, max_context);
}

Result<model::Footprint> footprint_on_cuda(const pack::Package& package, int max_prefill_rows, int max_context) {
  return cuda_footprint(package, max_prefill_rows, max_context);
}

Result<std::unique_ptr<model::Model>> open_on_cuda(int index, std::shared_ptr<const pack::Package> package,
                                                   const model::Facts& facts) {
  SPLASH_TRY(const cuda::DeviceFacts device, cuda::choose_device(index));
  return CudaModel::open(device, std::move(package), facts);
}

Result<Scores> score_on_cuda(int index, const pack::Package& package, std::span<const Token> text, int chunk,
                             bool with_hidden) {
  SPLASH_TRY(const auto model, open_for(index, package, text, chunk));
  return model->score(text, chunk, with_hidden);
}

Result<DraftReport> draft_report_on_cuda(int index, const pack::Package& package, std::span<const Token> text,
                                         int chunk) {
  SPLASH_TRY(const auto model, open_for(index, package, text, chunk));
  return model->draft_report(text, chunk);
}

}  // namespace splash::models::qwen3_5
