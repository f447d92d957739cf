// The probes of models/probe.h on the GPU.
#include <algorithm>
#include <numeric>

#include "models/qwen3_5/cuda/model.h"

namespace splash::models::qwen3_5 {
namespace {

std::vector<model::PageId> first_pages(std::size_t tokens) {
  std::vector<model::PageId> pages((tokens + link::page_tokens - 1) / link::page_tokens);
  std::iota(pages.begin(), pages.end(), 0);
  return pages;
}

template <class T>
Status append(cuda::Stream& stream, MatrixView<T> rows, std::vector<std::remove_const_t<T>>& to) {
  const std::size_t before = to.size(), row = static_cast<std::size_t>(rows.cols);
  to.resize(before + row * static_cast<std::size_t>(rows.rows));
  stream.note(cudaMemcpy2DAsync(to.data() + before, row * sizeof(T), rows.data, rows.stride * sizeof(T),
                                row * sizeof(T), rows.rows, cudaMemcpyDeviceToHost, stream.native()),
              "download");
  return stream.synchronise();
}

}  // namespace

Result<Scores> CudaModel::score(std::span<const Token> text, int chunk, bool with_hidden) {
  const pack::TargetGeometry& g = weights_.target.geometry;
  const std::vector<model::PageId> pages = first_pages(text.size());
  Scores scores{.rows = static_cast<int>(text.size()), .vocab_size = g.vocab_size, .hidden_size = g.hidden_size};
  if (with_hidden) scores.hidden.resize(g.layers.size() + 1);
  start_lane(0, {});
  for (std::size_t begin = 0; begin < text.size();) {
    const auto part =
        text.subspan(begin, std::min<std::size_t>(std::min(chunk, facts_.max_prefill_rows), text.size() - begin));
    const model::PrefillSlice slice{0, static_cast<int>(begin), part, pages, false};
    write_prefill({&slice, 1});
    tables_.of_prefill.upload(*stream_);
    stream_->reset();
    Rows rows;
    rows.add(0, slice.position, part, pages, ops::GdnMode::commit);
    const int count_rows = rows.count();
    pad_prefill(rows);
    const Pass pass = run_rows(rows, tables_.prefill, {.hidden = with_hidden});
    const MatrixView<float> normed = stream_->matrix(count_rows, g.hidden_size);
    ops::rms_norm(*stream_, pass.x.slice_rows(0, count_rows), weights_.target.norm, g.rms_eps, normed);
    constexpr int at_once = link::max_lanes;  // rows of logits that scratch is sure to hold
    const MatrixView<float> logits = stream_->matrix(at_once, g.vocab_size);
    for (int row = 0; row < normed.rows; row += at_once) {
      const int count = std::min(at_once, normed.rows - row);
      ops::linear(*stream_, normed.slice_rows(row, count), weights_.target.head, logits.slice_rows(0, count));
      SPLASH_TRY_STATUS(append(*stream_, logits.slice_rows(0, count), scores.logits));
    }
    for (std::size_t layer = 0; layer + 1 < pass.hidden.size(); ++layer) {
      SPLASH_TRY_STATUS(append(*stream_, pass.hidden[layer].slice_rows(0, count_rows), scores.hidden[layer]));
    }
    if (with_hidden) SPLASH_TRY_STATUS(append(*stream_, normed, scores.hidden.back()));
    begin += part.size();
    lengths_[0] = static_cast<int>(begin);
  }
  return scores;
}

// `text`: context positions, then the anchor.
Result<DraftReport> CudaModel::draft_report(std::span<const Token> text, int chunk) {
  const dflash2::Weights& w = *draft();
  const pack::DraftGeometry& g = w.geometry;
  const std::vector<model::PageId> pages = first_pages(text.size());
  start_lane(0, {.sampling = {.temperature = 0}});
  const auto context = text.first(text.size() - 1);
  while (lengths_[0] < std::ssize(context)) {
    const auto begin = static_cast<std::size_t>(lengths_[0]);
    const auto part = context.subspan(begin, std::min<std::size_t>(chunk, context.size() - begin));
    model::StepPlan plan;
    plan.prefill.push_back({0, lengths_[0], part, pages, false});
    SPLASH_TRY(const model::StepResult ignored, step(plan));
  }
  const int position = lengths_[0], slots = g.block_size - 1;
  const model::DecodeSlice slice{0, position, text.back(), pages, 1, g.block_size};
  write_decode({&slice, 1});
  tables_.decode.choices.host[0].rows = g.block_size;  // the pages may end before the block does
  tables_.of_decode.upload(*stream_);
  stream_->reset();
  const dflash2::Block block{0, text.back(), position};
  const auto rows =
      dflash2::block_rows(w, std::span(&block, 1), [&](int lane, int layer) { return state_->ring(lane, layer); });
  const MatrixView<float> h = dflash2::forward(*stream_, w, weights_.target.embedding, rows);
  const int k = std::min(g.selector_top_k, facts_.sampling_limit);
  const MatrixView<float> logits = stream_->matrix(h.rows, facts_.vocab_size),
                          projections = stream_->matrix(h.rows, g.selector_rank), values = stream_->matrix(slots, k),
                          scores = stream_->matrix(slots, k);
  const MatrixView<Token> candidates{stream_->allocate<Token>(static_cast<std::size_t>(slots) * k), slots, k};
  ops::linear(*stream_, h, weights_.target.head, logits);
  ops::linear(*stream_, h, w.selector_projection, projections);
  ops::top_k(*stream_, logits.slice_rows(1, slots), facts_.vocab_size, candidates, values);
  ops::selector_walk(*stream_, {.weights = w.selector,
                                .candidates = candidates,
                                .values = values,
                                .projections = projections.slice_rows(1, slots),
                                .lanes = 1,
                                .slots = slots,
                                .choices = tables_.decode.choices.device,
                                .tokens = tables_.decode.tokens.device,
                                .laws = stream_->allocate<ops::SlotLaw>(static_cast<std::size_t>(slots)),
                                .scores = scores.data});
  DraftReport report{
      .block = g.block_size, .vocab_size = logits.cols, .hidden_size = g.hidden_size, .candidates_per_slot = k};
  SPLASH_TRY_STATUS(append(*stream_, h, report.hidden));
  SPLASH_TRY_STATUS(append(*stream_, logits, report.logits));
  SPLASH_TRY_STATUS(append(*stream_, scores, report.scores));
  SPLASH_TRY_STATUS(append(*stream_, candidates, report.candidates));
  SPLASH_TRY_STATUS(append(*stream_, MatrixView<Token>(tables_.decode.tokens.device + 1, 1, slots), report.path));
  return report;
}

}  // namespace splash::models::qwen3_5
