#include "models/qwen3_5/model_impl.h"
#include "models/qwen3_5/open.h"
#include "models/qwen3_5/probe.h"
#include "models/qwen3_5/step.h"

namespace splash::models::qwen3_5 {

template class HybridModel<cpu::Stream>;

std::unique_ptr<model::Model> open(std::unique_ptr<cpu::Stream> stream, std::shared_ptr<const pack::Package> package,
                                   const model::Facts& facts) {
  return std::make_unique<HybridModel<cpu::Stream>>(std::move(stream), std::move(package), facts);
}
Scores score(cpu::Stream& stream, const pack::Package& package, std::span<const Token> text, int chunk,
             bool with_hidden) {
  return score<cpu::Stream>(stream, package, text, chunk, with_hidden);
}
DraftReport draft_report(cpu::Stream& stream, const pack::Package& package, std::span<const Token> text, int chunk) {
  return draft_report<cpu::Stream>(stream, package, text, chunk);
}

}  // namespace splash::models::qwen3_5
