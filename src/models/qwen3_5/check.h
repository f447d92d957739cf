// What every implementation of model::Model checks before it runs a plan.
#pragma once

#include <span>

#include "model/model.h"

namespace splash::models::qwen3_5 {

// Each lane at most once and at its committed length (`lengths`, by lane), rows and pages inside the limits, token ids
// inside the vocabulary. `pages`: those that have memory.
Status check_plan(const model::StepPlan& plan, const model::Facts& facts, int pages, std::span<const int> lengths);

// Rows that are verified beyond the anchor: what was asked for, cut by the block, the pages and the context's end.
int proposals_for(const model::DecodeSlice& slice, const model::Facts& facts, bool drafts);

}  // namespace splash::models::qwen3_5
