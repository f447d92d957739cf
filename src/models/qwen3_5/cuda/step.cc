// One step on the GPU: tables, prefill pass, the decode graph, results.

#include <algorithm>

#include "models/qwen3_5/check.h"
#include "models/qwen3_5/cuda/model.h"

namespace splash::models::qwen3_5 {

Result<model::StepResult> CudaModel::step(const model::StepPlan& plan) {
  SPLASH_TRY_STATUS(check_plan(plan, facts_, state_->backed_pages(), lengths_));
  const int prefilling = static_cast<int>(plan.prefill.size()), decoding = static_cast<int>(plan.decode.size());
  if (prefilling + decoding == 0) return model::StepResult{};
  stream_->make_current();
  ++ticket_;
  mark_length_ = 0;
  state_->send_waiting();
  for (const model::PrefillSlice& slice : plan.prefill) {
    if (slice.mark > 0) bring_to_rest(slice.lane);
  }
  if (prefilling > 0) {
    write_prefill(plan.prefill);
    tables_.of_prefill.upload(*stream_);
    run_prefill(plan.prefill);
  }
  if (decoding > 0) SPLASH_TRY_STATUS(run_decode(plan.decode, write_decode(plan.decode)));
  return collect(plan);
}

// The results, as soon as they are there: what the recorded step still does then (the draft's context) runs beside
// whatever the caller does next. Every table that the host writes has been read by then.
Result<model::StepResult> CudaModel::collect(const model::StepPlan& plan) {
  model::StepResult result;
  int choosing = 0;
  for (const model::PrefillSlice& slice : plan.prefill) {
    const int rows = static_cast<int>(slice.tokens.size());
    lengths_[slice.lane] += rows;
    kept_[slice.lane] = 0;
    model::SliceResult& out = result.prefill.emplace_back(model::SliceResult{.lane = slice.lane, .committed = rows});
    if (!slice.choose) continue;
    SPLASH_TRY(out.chosen, await(tables_.prefill_chosen[choosing++], slice.lane, 1));
  }
  for (std::size_t i = 0; i < plan.decode.size(); ++i) {
    const int lane = plan.decode[i].lane, rows = tables_.decode.choices.host[i].rows;
    SPLASH_TRY(std::vector<Token> chosen, await(tables_.decode_chosen[i], lane, rows));
    const int count = static_cast<int>(chosen.size());
    lengths_[lane] += count;
    kept_[lane] = count;
    result.decode.push_back({.lane = lane,
                             .committed = count,
                             .chosen = std::move(chosen),
                             .drafted = rows - 1,
                             .accepted = count - 1});
  }
  if (choosing == 0 && plan.decode.empty()) SPLASH_TRY_STATUS(stream_->synchronise());
  return result;
}

Result<std::vector<Token>> CudaModel::await(const ops::LaneChosen& chosen, int lane, int most) {
  std::optional<std::vector<Token>> tokens;
  SPLASH_TRY_STATUS(stream_->wait_until([&] { return (tokens = ops::arrived(chosen, ticket_)).has_value(); }));
  const int count = static_cast<int>(tokens->size());
  if (count >= 1 && count <= most) return std::move(*tokens);
  return fail(ErrorKind::internal, "the device chose {} tokens for lane {}", count, lane);
}

// -- tables -----------------------------------------------------------------------------------------------------------

void CudaModel::set_choice(ops::LaneChoice& choice, int lane, int position, int rows, int budget) const {
  const model::LaneSetup& setup = lanes_[lane];
  choice.temperature = setup.sampling.temperature;
  choice.top_p = setup.sampling.top_p;
  choice.min_p = setup.sampling.min_p;
  choice.top_k = setup.sampling.top_k;
  choice.seed = setup.sampling.seed;
  choice.position = position;
  choice.rows = rows;
  choice.budget = budget;
  choice.lane = lane;
  choice.ticket = ticket_;
  choice.stop_count = std::min<int>(static_cast<int>(setup.stop_tokens.size()), link::max_stop_tokens);
  std::copy_n(setup.stop_tokens.begin(), choice.stop_count, choice.stops);
}

void CudaModel::write_prefill(std::span<const model::PrefillSlice> slices) {
  PassTables& t = tables_.prefill;
  MarkTables& mark = tables_.mark;
  // As dflash2::context_segments: of a slice longer than the ring only the end is stored.
  const auto context = [](int first_row, int rows, int position, const ops::DraftRing& ring) {
    const int skipped = std::max(0, rows - ring.capacity);
    return ops::DraftContextSegment{first_row + skipped, rows - skipped, position + skipped, ring};
  };
  int row = 0, choosing = 0;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const model::PrefillSlice& slice = slices[i];
    const int rows = static_cast<int>(slice.tokens.size());
    tables_.set_pages(*stream_, slice.lane, slice.pages);
    std::copy(slice.tokens.begin(), slice.tokens.end(), t.tokens.host + row);
    t.segments.host[i] = {
        slice.lane, row, rows, slice.position, static_cast<int>(ops::GdnMode::commit), 0, tables_.pages_of(slice.lane)};
    mark.until.host[i] = t.segments.host[i];
    const int until = slice.mark > 0 ? slice.mark : rows;
    if (slice.mark > 0) {
      mark.until.host[i].rows = until;
      mark.rest.host[0] = t.segments.host[i];
      mark.rest.host[0].first_row += until;
      mark.rest.host[0].rows -= until;
      mark.rest.host[0].position += until;
    }
    for (int l = 0; l < tables_.sizes.draft_layers; ++l) {
      const ops::DraftRing ring = state_->ring(slice.lane, l);
      t.contexts.host[l * facts_.lanes + static_cast<int>(i)] = context(row, until, slice.position, ring);
      if (slice.mark > 0) mark.contexts.host[l] = context(row + until, rows - until, slice.position + until, ring);
    }
    // The first token is decided at the position behind the prompt; what stops a reply is not looked for here.
    if (slice.choose) {
      ops::LaneChoice& choice = t.choices.host[choosing++];
      set_choice(choice, slice.lane, slice.position + rows - 1, 1, 1);
    }
    row += rows;
  }
  std::fill(t.tokens.host + row, t.tokens.host + std::max(row, least_prefill_rows), 0);
}

// Lanes of one step share a width; a lane that wants fewer rows has them cut in its own entries. Widths are powers of
// two or the whole block, so that few shapes are recorded.
CudaModel::Shape CudaModel::write_decode(std::span<const model::DecodeSlice> slices) {
  Shape shape{.lanes = static_cast<int>(slices.size()), .width = 1};
  std::vector<int> rows;
  for (const model::DecodeSlice& slice : slices) {
    rows.push_back(1 + proposals_for(slice, facts_, drafts(slice.lane)));
    while (shape.width < rows.back()) shape.width = std::min(2 * shape.width, facts_.block_rows);
    shape.kind = std::max(shape.kind, ops::law_kind(lanes_[slice.lane].sampling, facts_.sampling_limit));
    shape.cut = shape.cut || lanes_[slice.lane].constraint != nullptr;
    shape.drafting = shape.drafting || drafts(slice.lane);
  }
  PassTables& t = tables_.decode;
  int masked = 0;
  for (int i = 0; i < shape.lanes; ++i) {
    const model::DecodeSlice& slice = slices[i];
    tables_.set_pages(*stream_, slice.lane, slice.pages);
    t.segments.host[i] = {slice.lane,
                          i * shape.width,
                          rows[i],
                          slice.position,
                          static_cast<int>(ops::GdnMode::verify),
                          0,
                          tables_.pages_of(slice.lane)};
    set_choice(t.choices.host[i], slice.lane, slice.position, rows[i], slice.budget);
    // Proposals overwrite the rest of the row; where a lane drafts nothing its further rows still need a valid id.
    std::fill_n(t.tokens.host + i * shape.width, shape.width, slice.anchor);
    if (lanes_[slice.lane].constraint) {
      for (int j = 0; j < rows[i]; ++j) t.masked_rows.host[masked++] = i * shape.width + j;
    }
    if (!draft()) continue;
    const int block = draft()->geometry.block_size;
    Token* tokens = tables_.draft_tokens.host + i * block;
    std::fill_n(tokens, block, draft()->geometry.mask_token);
    tokens[0] = slice.anchor;
    for (int l = 0; l < tables_.sizes.draft_layers; ++l) {
      const ops::DraftRing ring = state_->ring(slice.lane, l);
      tables_.blocks.host[l * facts_.lanes + i] = {i * block, slice.position, ring};
      t.contexts.host[l * facts_.lanes + i] = {i * shape.width, rows[i], slice.position, ring};  // accept sets the rows
    }
  }
  return shape;
}

// -- prefill ----------------------------------------------------------------------------------------------------------

// The target pass over rows whose tables are given.
CudaModel::Pass CudaModel::run_rows(const Rows& rows, const PassTables& tables, Wanted wanted) {
  stream_->bind(rows.tokens.data(), tables.tokens.device);
  stream_->bind(rows.segments.data(), tables.segments.device);
  state_->use(tables.segments.device);
  const std::vector<int> taps = wanted.features ? this->taps() : std::vector<int>();
  const int hidden = weights_.target.geometry.hidden_size;
  Pass pass;
  if (!taps.empty()) pass.features = stream_->matrix(rows.count(), static_cast<int>(taps.size()) * hidden);
  const Passed passed =
      forward(*stream_, weights_.target, rows, *state_, [&](int layer, MatrixView<const float> after) {
        for (std::size_t t = 0; t < taps.size(); ++t) {
          if (taps[t] == layer) ops::draft_feature(*stream_, after, pass.features, static_cast<int>(t));
        }
        if (wanted.hidden) {
          pass.hidden.push_back(stream_->matrix(after.rows, after.cols));
          cuda::copy(*stream_, after, pass.hidden.back());
        }
      });
  pass.x = passed.x;
  pass.normed = passed.normed;
  return pass;
}

// 4-bit linears have three ways to add up, by the rows of a pass: up to 32, up to 64, and from 65 on, where a row's
// bits no longer depend on how many there are. Prefill always takes the last one, so that neither the cut of a prompt
// nor what is read beside it changes its numbers: a short pass gets rows that belong to nobody.
// (The portable kernels have one way for all widths.)
void CudaModel::pad_prefill(Rows& rows) const {
  if (stream_->wide_passes_apart() && rows.count() < least_prefill_rows) rows.tokens.resize(least_prefill_rows);
}

void CudaModel::run_prefill(std::span<const model::PrefillSlice> slices) {
  stream_->reset();
  Rows rows;
  std::vector<int> choosing;
  std::vector<dflash2::ContextRows> contexts, behind_mark;
  int masked = 0;
  for (const model::PrefillSlice& slice : slices) {
    const int count = static_cast<int>(slice.tokens.size()), until = slice.mark > 0 ? slice.mark : count;
    contexts.push_back({slice.lane, rows.count(), until, slice.position});
    if (slice.mark > 0) {
      state_->begin_mark();
      mark_length_ = slice.position + until;
      rows.marked = static_cast<int>(rows.segments.size());
      rows.mark = until;
      behind_mark.push_back({slice.lane, rows.count() + until, count - until, mark_length_});
    }
    rows.add(slice.lane, slice.position, slice.tokens, slice.pages, ops::GdnMode::commit);
    if (!slice.choose) continue;
    if (lanes_[slice.lane].constraint) {
      tables_.prefill.masked_rows.host[masked] = static_cast<int>(choosing.size());
      mask_path(slice.lane, {}, masked++);
    }
    choosing.push_back(rows.count() - 1);
  }
  pad_prefill(rows);
  const bool drafting = std::ranges::any_of(slices, [this](const auto& slice) { return drafts(slice.lane); });
  const Pass pass = run_rows(rows, tables_.prefill, {.features = drafting});
  for (const model::PrefillSlice& slice : slices) state_->set_kept_zero(slice.lane);

  if (!choosing.empty()) {
    const int count = static_cast<int>(choosing.size());
    const int hidden = pass.x.cols;
    const MatrixView<float> last = stream_->matrix(count, hidden), normed = stream_->matrix(count, hidden);
    for (int i = 0; i < count; ++i) cuda::copy(*stream_, pass.x.slice_rows(choosing[i], 1), last.slice_rows(i, 1));
    ops::rms_norm(*stream_, last, weights_.target.norm, weights_.target.geometry.rms_eps, normed);
    const MatrixView<float> logits = head(*stream_, weights_.target, normed);
    auto kind = ops::LawKind::greedy;
    for (const model::PrefillSlice& slice : slices) {
      if (slice.choose) kind = std::max(kind, ops::law_kind(lanes_[slice.lane].sampling, facts_.sampling_limit));
    }
    if (masked > 0) {
      const auto words = static_cast<std::size_t>(tables_.sizes.mask_words);
      cuda::upload(*stream_, tables_.masks, 0, static_cast<std::size_t>(masked) * words);
      cuda::upload(*stream_, tables_.prefill.masked_rows, 0, static_cast<std::size_t>(masked));
      ops::mask_rows(*stream_, logits, tables_.prefill.masked_rows.device, masked, tables_.masks.device,
                     tables_.sizes.mask_words);
    }
    ops::StepAcceptance choice{
        .logits = logits, .limit = facts_.sampling_limit, .lanes = count, .width = 1, .kind = kind};
    choice.choices = tables_.prefill.choices.device;
    choice.tokens = tables_.prefill.tokens.device;
    choice.chosen = tables_.prefill_chosen;
    ops::accept(*stream_, choice);
  }
  state_->settle();
  if (drafting) {
    const auto ring = [&](int lane, int layer) { return state_->ring(lane, layer); };
    const auto segments = dflash2::context_segments(*draft(), contexts, ring);
    dflash2::ContextSegments rest;
    if (!behind_mark.empty()) rest = dflash2::context_segments(*draft(), behind_mark, ring);
    for (std::size_t l = 0; l < segments.size(); ++l) {
      stream_->bind(segments[l].data(), tables_.prefill.contexts.device + l * static_cast<std::size_t>(facts_.lanes));
      if (!rest.empty()) stream_->bind(rest[l].data(), tables_.mark.contexts.device + l);
    }
    dflash2::commit_context(*stream_, *draft(), pass.features, segments, rest, [&](int layer) {
      if (!rest.empty()) state_->mark_ring(behind_mark.front().lane, layer);
    });
  }
}

// -- decode -----------------------------------------------------------------------------------------------------------

void CudaModel::enqueue_draft(const Shape& shape, Between& between) {
  const dflash2::Weights& w = *draft();
  const int slots = shape.width - 1;
  const std::vector<dflash2::Block> blocks(static_cast<std::size_t>(shape.lanes));
  between.blocks = dflash2::block_rows(w, blocks, [&](int, int layer) { return state_->ring(0, layer); });
  const dflash2::BlockRows& rows = between.blocks;
  stream_->bind(rows.tokens.data(), tables_.draft_tokens.device);
  for (std::size_t l = 0; l < rows.segments.size(); ++l) {
    stream_->bind(rows.segments[l].data(), tables_.blocks.device + l * static_cast<std::size_t>(facts_.lanes));
  }
  const MatrixView<float> dense = dflash2::forward(*stream_, w, weights_.target.embedding, rows, 1, slots);
  const int k = std::min(w.geometry.selector_top_k, facts_.sampling_limit);
  const MatrixView<float> logits = stream_->matrix(dense.rows, weights_.target.head.rows);
  const MatrixView<float> projections = stream_->matrix(dense.rows, w.geometry.selector_rank);
  const MatrixView<float> values = stream_->matrix(dense.rows, k);
  const MatrixView<Token> candidates{stream_->allocate<Token>(static_cast<std::size_t>(dense.rows) * k), dense.rows, k};
  const ops::LinearTarget targets[] = {{weights_.target.head, logits}, {w.selector_projection, projections}};
  ops::linear(*stream_, dense, targets);
  ops::top_k(*stream_, logits, facts_.sampling_limit, candidates, values);
  between.laws = stream_->allocate<ops::SlotLaw>(static_cast<std::size_t>(dense.rows));
  ops::selector_walk(*stream_, {.weights = w.selector,
                                .candidates = candidates,
                                .values = values,
                                .projections = projections,
                                .lanes = shape.lanes,
                                .slots = slots,
                                .choices = tables_.decode.choices.device,
                                .tokens = tables_.decode.tokens.device,
                                .laws = between.laws});
}

void CudaModel::enqueue_verify(const Shape& shape, Between& between) {
  const std::vector<Token> any(static_cast<std::size_t>(shape.width));
  for (int i = 0; i < shape.lanes; ++i) between.rows.add(i, 0, any, {}, ops::GdnMode::verify);
  const Pass pass = run_rows(between.rows, tables_.decode, {.features = shape.drafting});
  between.features = pass.features;
  between.logits = head(*stream_, weights_.target, pass.normed);
}

void CudaModel::enqueue_accept(const Shape& shape, Between& between) {
  ops::StepAcceptance acceptance{.logits = between.logits,
                                 .limit = facts_.sampling_limit,
                                 .lanes = shape.lanes,
                                 .width = shape.width,
                                 .kind = shape.kind};
  acceptance.choices = tables_.decode.choices.device;
  acceptance.tokens = tables_.decode.tokens.device;
  acceptance.laws = between.laws;
  acceptance.chosen = tables_.decode_chosen;
  acceptance.kept = state_->kept();
  acceptance.contexts = tables_.decode.contexts.device;
  acceptance.context_layers = shape.drafting ? tables_.sizes.draft_layers : 0;
  acceptance.context_stride = facts_.lanes;
  ops::accept(*stream_, acceptance);
  if (!shape.drafting) return;
  std::vector<dflash2::ContextRows> contexts;
  for (int i = 0; i < shape.lanes; ++i) contexts.push_back({0, i * shape.width, shape.width, 0});
  between.contexts =
      dflash2::context_segments(*draft(), contexts, [&](int, int layer) { return state_->ring(0, layer); });
  const dflash2::ContextSegments& segments = between.contexts;
  for (std::size_t l = 0; l < segments.size(); ++l) {
    stream_->bind(segments[l].data(), tables_.decode.contexts.device + l * static_cast<std::size_t>(facts_.lanes));
  }
  dflash2::commit_context(*stream_, *draft(), between.features, segments);
}

Result<const CudaModel::Recorded*> CudaModel::recorded(const Shape& shape) {
  if (const auto known = recordings_.find(shape); known != recordings_.end()) return &known->second;
  SPLASH_TRY_STATUS(stream_->synchronise());  // what was enqueued before reports its own errors
  stream_->reset();
  Recorded made;
  Between between;
  const auto draft_part = [&] {
    if (shape.width > 1) enqueue_draft(shape, between);
  };
  const auto verify_part = [&] { enqueue_verify(shape, between); };
  const auto accept_part = [&] { enqueue_accept(shape, between); };
  const auto tables_part = [&] { tables_.of_decode.fetch(*stream_); };
  if (shape.cut) {
    if (shape.width > 1) {
      SPLASH_TRY(made.draft, stream_->record([&] { tables_part(), draft_part(); }));
      SPLASH_TRY(made.verify, stream_->record(verify_part));
    } else {
      SPLASH_TRY(made.verify, stream_->record([&] { tables_part(), verify_part(); }));
    }
    SPLASH_TRY(made.accept, stream_->record(accept_part));
  } else {
    SPLASH_TRY(made.verify, stream_->record([&] { tables_part(), draft_part(), verify_part(), accept_part(); }));
  }
  made.logits = between.logits;
  return &recordings_.emplace(shape, std::move(made)).first->second;
}

Status CudaModel::prepare() {
  stream_->make_current();
  state_->prepare_snapshots(std::int64_t{4} << 30);
  for (const auto kind : {ops::LawKind::greedy, ops::LawKind::few}) {
    for (int lanes = 1; lanes <= facts_.lanes; ++lanes) {
      for (int width = 1;; width = std::min(2 * width, facts_.block_rows)) {
        const Shape shape{.lanes = lanes, .width = width, .kind = kind, .drafting = draft() != nullptr};
        SPLASH_TRY([[maybe_unused]] const Recorded* made, recorded(shape));
        if (width == facts_.block_rows) break;
      }
    }
  }
  return {};
}

Status CudaModel::run_decode(std::span<const model::DecodeSlice> slices, const Shape& shape) {
  state_->settle();
  SPLASH_TRY(const Recorded* step, recorded(shape));
  if (!shape.cut) {
    stream_->replay(step->verify);
    return {};
  }
  const auto tokens = static_cast<std::size_t>(shape.lanes) * shape.width;
  if (shape.width > 1) stream_->replay(step->draft);
  stream_->note(cudaMemcpyAsync(tables_.drafted.host, tables_.decode.tokens.device, tokens * sizeof(Token),
                                cudaMemcpyDeviceToHost, stream_->native()),
                "proposals");
  stream_->note(cudaEventRecord(drafted_, stream_->native()), "proposals");
  stream_->replay(step->verify);
  // While the target runs, the grammars look at what it verifies.
  stream_->note(cudaEventSynchronize(drafted_), "proposals");
  int masked = 0;
  for (int i = 0; i < shape.lanes; ++i) {
    if (!lanes_[slices[i].lane].constraint) continue;
    const int rows = tables_.decode.choices.host[i].rows;
    mask_path(slices[i].lane, {tables_.drafted.host + i * shape.width + 1, static_cast<std::size_t>(rows - 1)}, masked);
    masked += rows;
  }
  cuda::upload(*stream_, tables_.masks, 0, static_cast<std::size_t>(masked) * tables_.sizes.mask_words);
  ops::mask_rows(*stream_, step->logits, tables_.decode.masked_rows.device, masked, tables_.masks.device,
                 tables_.sizes.mask_words);
  stream_->replay(step->accept);
  return {};
}

// The masks of a lane's rows along a drafted path, from mask row `first_mask` on. Rows behind a forbidden proposal
// forbid everything: nobody asks for them.
void CudaModel::mask_path(int lane, std::span<const Token> path, int first_mask) {
  link::TokenConstraint& constraint = *lanes_[lane].constraint;
  const auto own_words = static_cast<std::size_t>(constraint.mask_words()),
             words = static_cast<std::size_t>(tables_.sizes.mask_words), rows = path.size() + 1;
  std::vector<std::uint32_t> masks(rows * own_words);
  constraint.masks_along(path, masks);
  std::uint32_t* to = tables_.masks.host + static_cast<std::size_t>(first_mask) * words;
  std::fill_n(to, rows * words, 0u);
  for (std::size_t row = 0; row < rows; ++row) {
    std::copy_n(masks.data() + row * own_words, std::min(own_words, words), to + row * words);
  }
}

}  // namespace splash::models::qwen3_5
