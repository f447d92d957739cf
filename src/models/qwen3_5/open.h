// What registry.cc needs of this family, per stream.
#pragma once

#include <memory>

#include "models/probe.h"
#include "models/qwen3_5/model.h"

namespace splash::models::qwen3_5 {

model::Footprint footprint(const pack::Package& package, ops::KvFormat format, int max_prefill_rows, int max_context);

// Defined in ref.cc and cpu.cc.
std::unique_ptr<model::Model> open(std::unique_ptr<ref::Stream> stream, std::shared_ptr<const pack::Package> package,
                                   const model::Facts& facts);
std::unique_ptr<model::Model> open(std::unique_ptr<cpu::Stream> stream, std::shared_ptr<const pack::Package> package,
                                   const model::Facts& facts);
Scores score(ref::Stream& stream, const pack::Package& package, std::span<const Token> text, int chunk,
             bool with_hidden);
Scores score(cpu::Stream& stream, const pack::Package& package, std::span<const Token> text, int chunk,
             bool with_hidden);
DraftReport draft_report(ref::Stream& stream, const pack::Package& package, std::span<const Token> text, int chunk);
DraftReport draft_report(cpu::Stream& stream, const pack::Package& package, std::span<const Token> text, int chunk);

}  // namespace splash::models::qwen3_5
