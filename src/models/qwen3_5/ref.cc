#include "models/qwen3_5/model_impl.h"
#include "models/qwen3_5/open.h"
#include "models/qwen3_5/probe.h"
#include "models/qwen3_5/step.h"

namespace splash::models::qwen3_5 {

template class HybridModel<ref::Stream>;

std::unique_ptr<model::Model> open(std::unique_ptr<ref::Stream> stream, std::shared_ptr<const pack::Package> package,
                                   const model::Facts& facts) {
  return std::make_unique<HybridModel<ref::Stream>>(std::move(stream), std::move(package), facts);
}
Scores score(ref::Stream& stream, const pack::Package& package, std::span<const Token> text, int chunk,
             bool with_hidden) {
  return score<ref::Stream>(stream, package, text, chunk, with_hidden);
}
DraftReport draft_report(ref::Stream& stream, const pack::Package& package, std::span<const Token> text, int chunk) {
  return draft_report<ref::Stream>(stream, package, text, chunk);
}

}  // namespace splash::models::qwen3_5
