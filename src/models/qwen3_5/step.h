// One step: draft, verify, accept, commit, for all lanes of the plan together, with prefill rows in the same target
// pass. Included by ref.cc and cpu.cc only.
#pragma once

#include <algorithm>
#include <cmath>

#include "models/blocks/rows.h"
#include "models/dflash2/forward.h"
#include "models/qwen3_5/model.h"

namespace splash::models::qwen3_5 {

template <class Stream>
Result<model::StepResult> HybridModel<Stream>::step(const model::StepPlan& plan) {
  SPLASH_TRY_STATUS(check_plan(plan, facts_, facts_.pages, lengths_));
  stream_->reset();
  context_.clear();
  rest_.reset();
  mark_length_ = 0;
  std::vector<Prefill> prefill;
  std::vector<Decode> decode;
  for (const model::PrefillSlice& slice : plan.prefill) prefill.push_back({&slice});
  for (const model::DecodeSlice& slice : plan.decode) decode.push_back({&slice});
  if (prefill.empty() && decode.empty()) return model::StepResult{};

  draft(decode);
  verify(prefill, decode);
  model::StepResult result;
  for (const Prefill& slice : prefill) result.prefill.push_back(commit(slice));
  for (const Decode& slice : decode) result.decode.push_back(accept_and_commit(slice));
  if (draft_weights_) commit_draft_context();
  return result;
}

// The neural draft: one pass over all drafting lanes' blocks, the head on the slots that are wanted, then each lane's
// walk. The block is always whole: a slot's proposal must not depend on how many are verified.
template <class Stream>
void HybridModel<Stream>::draft(std::vector<Decode>& decode) {
  std::vector<dflash2::Block> blocks;
  std::vector<Decode*> drafting;
  std::vector<int> slots;  // rows of the pass: slots 1..wanted of each block
  for (Decode& lane : decode) {
    const int wanted = proposals_for(*lane.slice);
    if (wanted == 0) continue;
    const int first = static_cast<int>(blocks.size()) * draft_weights_->geometry.block_size;
    for (int slot = 1; slot <= wanted; ++slot) slots.push_back(first + slot);
    blocks.push_back({lane.slice->lane, lane.slice->anchor, lane.slice->position});
    drafting.push_back(&lane);
  }
  if (blocks.empty()) return;

  const dflash2::Weights& w = *draft_weights_;
  const auto rows = dflash2::block_rows(w, blocks, [&](int lane, int layer) { return state_.ring(lane, layer); });
  const MatrixView<float> all = dflash2::forward(*stream_, w, weights_.embedding, rows);
  const MatrixView<float> hidden = gather_rows(*stream_, all, slots);
  const MatrixView<float> logits = stream_->matrix(hidden.rows, weights_.head.rows);
  const MatrixView<float> projections = stream_->matrix(hidden.rows, w.geometry.selector_rank);
  const int k = std::min(w.geometry.selector_top_k, facts_.sampling_limit);
  const auto candidates = stream_->arena().template matrix<Token>(hidden.rows, k);
  const MatrixView<float> values = stream_->matrix(hidden.rows, k);
  ops::linear(*stream_, hidden, weights_.head, logits);
  ops::linear(*stream_, hidden, w.selector_projection, projections);
  ops::top_k(*stream_, logits, facts_.sampling_limit, candidates, values);

  int first = 0;
  for (Decode* lane : drafting) {
    const int wanted = proposals_for(*lane->slice);
    ops::selector_walk(w.selector, candidates.slice_rows(first, wanted), values.slice_rows(first, wanted),
                       projections.slice_rows(first, wanted), lane->slice->anchor, lanes_[lane->slice->lane].sampling,
                       lane->slice->position, lane->proposals);
    first += wanted;
  }
}

// One target pass over prefill rows and [anchor, proposals] of every decoding lane; the head on the rows that choose.
template <class Stream>
void HybridModel<Stream>::verify(std::vector<Prefill>& prefill, std::vector<Decode>& decode) {
  Rows rows;
  std::vector<int> choosing;
  for (Prefill& lane : prefill) {
    const model::PrefillSlice& slice = *lane.slice;
    lane.first_row = rows.count();
    if (slice.mark > 0) {
      bring_to_rest(slice.lane);
      rows.marked = static_cast<int>(rows.segments.size());
      rows.mark = slice.mark;
    }
    rows.add(slice.lane, slice.position, slice.tokens, slice.pages, ops::GdnMode::commit);
    if (!slice.choose) continue;
    lane.logit_row = static_cast<int>(choosing.size());
    choosing.push_back(rows.count() - 1);
  }
  std::vector<Token> text;
  for (Decode& lane : decode) {
    const model::DecodeSlice& slice = *lane.slice;
    text.assign(1, slice.anchor);
    for (const ops::Proposal& proposal : lane.proposals) text.push_back(proposal.token);
    lane.first_row = rows.count();
    lane.logit_row = static_cast<int>(choosing.size());
    for (int i = 0; i < lane.rows(); ++i) choosing.push_back(lane.first_row + i);
    rows.add(slice.lane, slice.position, text, slice.pages, ops::GdnMode::verify);
  }

  const int hidden = weights_.geometry.hidden_size;
  const std::vector<int> no_taps;
  const std::vector<int>& taps = draft_weights_ ? draft_weights_->geometry.taps : no_taps;
  features_ = stream_->matrix(rows.count(), static_cast<int>(taps.size()) * hidden);
  const Passed passed = forward(*stream_, weights_, rows, state_, [&](int layer, MatrixView<const float> after) {
    for (std::size_t t = 0; t < taps.size(); ++t) {
      if (taps[t] != layer) continue;
      const auto to = features_.slice_cols(static_cast<int>(t) * hidden, hidden);
      for (int r = 0; r < after.rows; ++r) std::copy_n(after.row(r), hidden, to.row(r));
    }
  });
  if (!choosing.empty()) logits_ = head(*stream_, weights_, gather_rows(*stream_, passed.normed, choosing));
}

// Kept proposals and the token after them, by the exact rule. `position`: of the first row.
template <class Stream>
std::vector<Token> HybridModel<Stream>::choose(int lane, int position, std::span<const ops::Proposal> proposals,
                                               int logit_row) {
  const model::LaneSetup& setup = lanes_[lane];
  int limit = facts_.sampling_limit, mask_words = 0;
  if (setup.constraint) {
    std::vector<Token> path;
    for (const ops::Proposal& proposal : proposals) path.push_back(proposal.token);
    mask_words = setup.constraint->mask_words();
    limit = std::min(limit, mask_words * 32);
    masks_.assign((proposals.size() + 1) * static_cast<std::size_t>(mask_words), 0);
    // Rows after a forbidden proposal stay zero: it has no mass under its own row's mask, so they are never asked.
    setup.constraint->masks_along(path, masks_);
  }
  const auto mask = [&](int row) {
    return mask_words > 0 ? masks_.data() + static_cast<std::size_t>(row) * mask_words : nullptr;
  };
  const auto logits = [&](int row) { return std::span<const float>(logits_.row_span(logit_row + row)); };

  ops::Acceptance got;
  if (setup.sampling.temperature > 0) {
    got = ops::accept(proposals, setup.sampling, position, [&](int row) -> const ops::Law& {
      ops::target_law(logits(row), limit, setup.sampling, mask(row), law_);
      return law_;
    });
  } else {
    const int count = static_cast<int>(proposals.size());
    got.next = ops::argmax(logits(0), limit, mask(0));
    while (got.accepted < count && got.next == proposals[got.accepted].token) {
      ++got.accepted;
      got.next = ops::argmax(logits(got.accepted), limit, mask(got.accepted));
    }
  }
  // A constraint that allows nothing ends the reply.
  if (got.next < 0) got.next = setup.stop_tokens.empty() ? 0 : setup.stop_tokens.front();

  std::vector<Token> chosen;
  for (int j = 0; j < got.accepted; ++j) chosen.push_back(proposals[j].token);
  chosen.push_back(got.next);
  return chosen;
}

template <class Stream>
model::SliceResult HybridModel<Stream>::commit(const Prefill& prefill) {
  const model::PrefillSlice& slice = *prefill.slice;
  const int rows = static_cast<int>(slice.tokens.size());
  state_.kept(slice.lane) = 0;
  lengths_[slice.lane] = slice.position + rows;
  if (slice.mark == 0) {
    context_.push_back({slice.lane, prefill.first_row, rows, slice.position});
  } else {
    mark_length_ = slice.position + slice.mark;
    context_.push_back({slice.lane, prefill.first_row, slice.mark, slice.position});
    rest_ = {slice.lane, prefill.first_row + slice.mark, rows - slice.mark, mark_length_};
  }
  model::SliceResult result{.lane = slice.lane, .committed = rows};
  if (slice.choose) result.chosen = choose(slice.lane, lengths_[slice.lane] - 1, {}, prefill.logit_row);
  return result;
}

// Cuts what was chosen after the first stop token and at the budget; the last one left is the next anchor, so the
// anchor and all before the last one are committed.
template <class Stream>
model::SliceResult HybridModel<Stream>::accept_and_commit(const Decode& decode) {
  const model::DecodeSlice& slice = *decode.slice;
  std::vector<Token> chosen = choose(slice.lane, slice.position, decode.proposals, decode.logit_row);
  const std::vector<Token>& stops = lanes_[slice.lane].stop_tokens;
  const auto stop = std::find_first_of(chosen.begin(), chosen.end(), stops.begin(), stops.end());
  if (stop != chosen.end()) chosen.erase(stop + 1, chosen.end());
  if (static_cast<int>(chosen.size()) > slice.budget) chosen.resize(slice.budget);

  const int committed = static_cast<int>(chosen.size());
  state_.kept(slice.lane) = committed;
  lengths_[slice.lane] = slice.position + committed;
  context_.push_back({slice.lane, decode.first_row, committed, slice.position});
  return {.lane = slice.lane,
          .committed = committed,
          .chosen = std::move(chosen),
          .drafted = static_cast<int>(decode.proposals.size()),
          .accepted = committed - 1};
}

// Target features of the committed rows become draft context. Of a slice longer than the longest ring only its end is
// needed: later rows would overwrite the earlier ones.
template <class Stream>
void HybridModel<Stream>::commit_draft_context() {
  const std::vector<int>& rings = state_.geometry().ring_capacity;
  const int longest = *std::max_element(rings.begin(), rings.end());
  std::vector<int> rows;
  const auto gather = [&](dflash2::ContextRows& lane) {
    const int skipped = std::max(0, lane.rows - longest);
    const int first = lane.first_row + skipped;
    lane = {lane.lane, static_cast<int>(rows.size()), lane.rows - skipped, lane.position + skipped};
    for (int i = 0; i < lane.rows; ++i) rows.push_back(first + i);
  };
  for (dflash2::ContextRows& lane : context_) gather(lane);
  if (rest_) gather(*rest_);
  const auto ring = [&](int lane, int layer) { return state_.ring(lane, layer); };
  dflash2::ContextSegments rest;
  if (rest_) rest = dflash2::context_segments(*draft_weights_, std::span(&*rest_, 1), ring);
  dflash2::commit_context(*stream_, *draft_weights_, gather_rows(*stream_, features_, rows),
                          dflash2::context_segments(*draft_weights_, context_, ring), rest, [&](int layer) {
                            if (rest_) state_.mark_ring(rest_->lane, layer);
                          });
}

}  // namespace splash::models::qwen3_5
