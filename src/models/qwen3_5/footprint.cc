#include "models/qwen3_5/open.h"

namespace splash::models::qwen3_5 {

// Floats of one row's activations in a pass: what forward.h and dflash2/forward.h allocate.
namespace {

std::int64_t target_row_floats(const pack::TargetGeometry& g, std::size_t taps) {
  const std::int64_t h = g.hidden_size;
  const std::int64_t gdn = g.conv_channels() + 2 * std::int64_t{g.value_heads} * g.value_dim + 2 * g.value_heads;
  const std::int64_t attention = (3 * std::int64_t{g.query_heads} + 2 * g.kv_heads) * g.head_dim;
  return 2 * h + gdn + attention + 2 * std::int64_t{g.intermediate_size} + 2 * static_cast<std::int64_t>(taps) * h;
}

std::int64_t context_row_floats(const pack::DraftGeometry& g) {
  return 2 * std::int64_t{g.hidden_size} + 2 * std::int64_t{g.kv_heads} * g.head_dim;
}

std::int64_t block_row_floats(const pack::DraftGeometry& g) {
  return 6 * std::int64_t{g.hidden_size} + 8 * g.conv_groups() + 2 * std::int64_t{g.intermediate_size} +
         2 * (std::int64_t{g.query_heads} + g.kv_heads) * g.head_dim;
}

}  // namespace

model::Footprint footprint(const pack::Package& package, ops::KvFormat format, int max_prefill_rows, int max_context) {
  const pack::TargetGeometry& target = package.target();
  const pack::DraftGeometry* draft = package.draft();
  const StateGeometry state = state_geometry(target, draft, format, max_context);
  constexpr auto float_bytes = std::int64_t{sizeof(float)};

  model::Footprint footprint;
  for (const pack::SectionInfo& section : package.sections()) footprint.weights_bytes += section.bytes;
  footprint.page_bytes = state.kv.page_bytes();
  footprint.snapshot_bytes = state.rest_floats() * float_bytes;
  footprint.lane_bytes = footprint.snapshot_bytes + state.tape_floats() * float_bytes;

  const std::int64_t block = draft != nullptr ? draft->block_size : 1, decode_rows = link::max_lanes * block;
  std::int64_t floats = (max_prefill_rows + decode_rows) * target_row_floats(target, draft ? draft->taps.size() : 0);
  // Logits and head input of a verify pass, and of the draft.
  floats += (link::max_lanes + decode_rows) * (std::int64_t{target.vocab_size} + 2 * target.hidden_size);
  if (draft != nullptr) {
    floats += (max_prefill_rows + decode_rows) * context_row_floats(*draft);
    floats += decode_rows * 2 * draft->layers * draft->kv_heads * draft->head_dim;  // keys and values of all layers at once
    floats += decode_rows * (block_row_floats(*draft) + std::int64_t{target.vocab_size} + target.hidden_size);
  }
  footprint.scratch_bytes = floats * float_bytes + footprint.snapshot_bytes;  // and the mark's state
  return footprint;
}

}  // namespace splash::models::qwen3_5
