// What registry.cc needs of this family on an NVIDIA GPU. open.cc has it; where the build leaves CUDA out, absent.cc
// says so.
#pragma once

#include <memory>
#include <span>

#include "model/model.h"
#include "models/probe.h"
#include "pack/package.h"

namespace splash::models::qwen3_5 {

// Whether device `index` (-1: the first that can) is there and its kernels fit the package. The error says why not.
Status cuda_ready(const pack::Package& package, int index, int max_context);

// Of device memory; a snapshot takes the same in the host's.
Result<model::Footprint> footprint_on_cuda(const pack::Package& package, int max_prefill_rows, int max_context);
Result<std::unique_ptr<model::Model>> open_on_cuda(int index, std::shared_ptr<const pack::Package> package,
                                                   const model::Facts& facts);
Result<Scores> score_on_cuda(int index, const pack::Package& package, std::span<const Token> text, int chunk,
                             bool with_hidden);
Result<DraftReport> draft_report_on_cuda(int index, const pack::Package& package, std::span<const Token> text,
                                         int chunk);

}  // namespace splash::models::qwen3_5
