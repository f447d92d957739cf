// The probes of models/probe.h over one lane of a state of their own. Included by ref.cc and cpu.cc only.
#pragma once

#include <numeric>

#include "models/dflash2/forward.h"
#include "models/probe.h"
#include "models/qwen3_5/model.h"

namespace splash::models::qwen3_5 {

inline void append(MatrixView<const float> rows, std::vector<float>& to) {
  for (int r = 0; r < rows.rows; ++r) to.insert(to.end(), rows.row(r), rows.row(r) + rows.cols);
}

// A text run from the empty state in chunks; after_chunk(passed) sees what each chunk leaves.
template <class Stream, class AfterLayer, class AfterChunk>
void run_text(Stream& stream, const Weights& weights, State& state, std::span<const Token> text, int chunk,
              AfterLayer&& after_layer, AfterChunk&& after_chunk) {
  std::vector<ops::PageId> pages((text.size() + link::page_tokens - 1) / link::page_tokens);
  std::iota(pages.begin(), pages.end(), 0);
  for (std::size_t begin = 0; begin < text.size(); begin += chunk) {
    stream.reset();
    Rows rows;
    const auto part = text.subspan(begin, std::min<std::size_t>(chunk, text.size() - begin));
    rows.add(0, static_cast<int>(begin), part, pages, ops::GdnMode::commit);
    after_chunk(forward(stream, weights, rows, state, after_layer));
  }
}

inline int pages_for(std::span<const Token> text) {
  return static_cast<int>(text.size() + link::page_tokens - 1) / link::page_tokens;
}

template <class Stream>
Scores score(Stream& stream, const pack::Package& package, std::span<const Token> text, int chunk, bool with_hidden) {
  const Weights weights = load(package);
  const pack::TargetGeometry& g = weights.geometry;
  const int layers = static_cast<int>(g.layers.size());
  State state(state_geometry(g, nullptr, kv_format<Stream>, static_cast<int>(text.size())), 1, pages_for(text), 0);
  Scores scores{.rows = static_cast<int>(text.size()), .vocab_size = g.vocab_size, .hidden_size = g.hidden_size};
  if (with_hidden) scores.hidden.resize(layers + 1);
  const auto after_layer = [&](int layer, MatrixView<const float> x) {
    if (with_hidden && layer + 1 < layers) append(x, scores.hidden[layer + 1]);
  };
  run_text(stream, weights, state, text, chunk, after_layer, [&](const Passed& passed) {
    append(head(stream, weights, passed.normed), scores.logits);
    if (with_hidden) append(passed.normed, scores.hidden[layers]);
  });
  return scores;
}

// `text`: context positions, then the anchor.
template <class Stream>
DraftReport draft_report(Stream& stream, const pack::Package& package, std::span<const Token> text, int chunk) {
  const Weights weights = load(package);
  const dflash2::Weights draft = dflash2::load(package);
  const pack::DraftGeometry& g = draft.geometry;
  const auto context = text.first(text.size() - 1);
  const int hidden = g.hidden_size, taps = static_cast<int>(g.taps.size());
  State state(state_geometry(weights.geometry, &g, kv_format<Stream>, static_cast<int>(text.size())), 1,
              pages_for(text), 0);
  const auto ring = [&](int lane, int layer) { return state.ring(lane, layer); };

  std::vector<float> features(static_cast<std::size_t>(chunk) * taps * hidden);
  int position = 0;
  run_text(
      stream, weights, state, context, chunk,
      [&](int layer, MatrixView<const float> x) {
        for (int t = 0; t < taps; ++t) {
          if (g.taps[t] != layer) continue;
          for (int r = 0; r < x.rows; ++r) {
            std::copy_n(x.row(r), hidden, features.data() + (std::int64_t{r} * taps + t) * hidden);
          }
        }
      },
      [&](const Passed& passed) {
        const dflash2::ContextRows rows{0, 0, passed.x.rows, position};
        dflash2::commit_context(stream, draft, MatrixView<const float>(features.data(), rows.rows, taps * hidden),
                                dflash2::context_segments(draft, std::span(&rows, 1), ring));
        position += rows.rows;
      });

  stream.reset();
  const dflash2::Block block{0, text.back(), position};
  const MatrixView<float> h =
      dflash2::forward(stream, draft, weights.embedding, dflash2::block_rows(draft, std::span(&block, 1), ring));
  const int slots = g.block_size - 1, k = std::min(g.selector_top_k, weights.head.rows);
  const MatrixView<float> logits = stream.matrix(h.rows, weights.head.rows);
  const MatrixView<float> projections = stream.matrix(h.rows, g.selector_rank);
  const MatrixView<float> values = stream.matrix(slots, k), scores = stream.matrix(slots, k);
  const auto candidates = stream.arena().template matrix<Token>(slots, k);
  ops::linear(stream, h, weights.head, logits);
  ops::linear(stream, h, draft.selector_projection, projections);
  ops::top_k(stream, logits.slice_rows(1, slots), logits.cols, candidates, values);
  std::vector<ops::Proposal> proposals;
  const link::Sampling greedy{.temperature = 0};
  ops::selector_walk(draft.selector, candidates, values, projections.slice_rows(1, slots), text.back(), greedy,
                     position, proposals, scores);

  DraftReport report{.block = g.block_size, .vocab_size = logits.cols, .hidden_size = hidden, .candidates_per_slot = k};
  append(h, report.hidden);
  append(logits, report.logits);
  append(scores, report.scores);
  report.candidates.assign(candidates.data, candidates.data + slots * k);
  for (const ops::Proposal& proposal : proposals) report.path.push_back(proposal.token);
  return report;
}

}  // namespace splash::models::qwen3_5
