#include "models/qwen3_5/check.h"

#include <algorithm>

#include "link/limits.h"

namespace splash::models::qwen3_5 {
namespace {

Status check_slice(const model::Facts& facts, int backed, int length, int lane, int position, int rows,
                   std::span<const model::PageId> pages) {
  if (rows < 1) return fail(ErrorKind::internal, "an empty slice for lane {}", lane);
  if (position != length) {
    return fail(ErrorKind::internal, "lane {} has {} committed tokens, the plan says {}", lane, length, position);
  }
  if (position + rows > facts.max_context) {
    return fail(ErrorKind::invalid, "position {} is beyond the context of {} tokens", position + rows - 1,
                facts.max_context);
  }
  if (position + rows > static_cast<int>(pages.size()) * link::page_tokens) {
    return fail(ErrorKind::internal, "{} pages do not hold {} positions", pages.size(), position + rows);
  }
  for (const model::PageId page : pages) {
    if (page < 0 || page >= backed) {
      return fail(ErrorKind::internal, "page {} of {}, {} with memory", page, facts.pages, backed);
    }
  }
  return {};
}

Status check_tokens(const model::Facts& facts, std::span<const Token> tokens) {
  for (const Token token : tokens) {
    if (token < 0 || token >= facts.vocab_size) {
      return fail(ErrorKind::invalid, "token id {} is outside the vocabulary of {}", token, facts.vocab_size);
    }
  }
  return {};
}

}  // namespace

Status check_plan(const model::StepPlan& plan, const model::Facts& facts, int pages, std::span<const int> lengths) {
  std::vector<bool> taken(facts.lanes);
  const auto take = [&](int lane) -> Status {
    if (lane < 0 || lane >= facts.lanes || taken[lane]) {
      return fail(ErrorKind::internal, "lane {} is not one of {} lanes or is in the plan twice", lane, facts.lanes);
    }
    taken[lane] = true;
    return {};
  };
  int rows = 0, marks = 0;
  for (const model::PrefillSlice& slice : plan.prefill) {
    SPLASH_TRY_STATUS(take(slice.lane));
    rows += static_cast<int>(slice.tokens.size());
    SPLASH_TRY_STATUS(check_slice(facts, pages, lengths[slice.lane], slice.lane, slice.position,
                                  static_cast<int>(slice.tokens.size()), slice.pages));
    SPLASH_TRY_STATUS(check_tokens(facts, slice.tokens));
    if (slice.mark != 0 && (++marks > 1 || slice.mark < 0 || slice.mark >= static_cast<int>(slice.tokens.size()))) {
      return fail(ErrorKind::internal, "lane {}: a mark behind row {} of {}", slice.lane, slice.mark, slice.tokens.size());
    }
  }
  if (rows > facts.max_prefill_rows) {
    return fail(ErrorKind::internal, "{} prefill rows in one step, the limit is {}", rows, facts.max_prefill_rows);
  }
  for (const model::DecodeSlice& slice : plan.decode) {
    SPLASH_TRY_STATUS(take(slice.lane));
    SPLASH_TRY_STATUS(check_slice(facts, pages, lengths[slice.lane], slice.lane, slice.position, 1, slice.pages));
    SPLASH_TRY_STATUS(check_tokens(facts, {&slice.anchor, 1}));
    if (slice.budget < 1) return fail(ErrorKind::internal, "a decode slice needs a budget of at least 1");
  }
  return {};
}

int proposals_for(const model::DecodeSlice& slice, const model::Facts& facts, bool drafts) {
  if (!drafts) return 0;
  const int room = std::min(facts.max_context, static_cast<int>(slice.pages.size()) * link::page_tokens);
  return std::max(0, std::min({slice.width, facts.block_rows, room - slice.position}) - 1);
}

}  // namespace splash::models::qwen3_5
