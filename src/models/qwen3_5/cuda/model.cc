#include "models/qwen3_5/cuda/model.h"

#include <algorithm>

#include "models/qwen3_5/open.h"

namespace splash::models::qwen3_5 {
namespace {

// Scratch memory of the largest pass, in bytes: the activations that footprint() counts, their bf16 panels, and what
// the kernels take beside them (packed queries, candidates, sums of squares).
std::int64_t scratch_bytes(const pack::Package& package, const model::Footprint& host, int max_prefill_rows) {
  const pack::TargetGeometry& g = package.target();
  const std::int64_t rows = std::max<std::int64_t>(max_prefill_rows, link::max_lanes * link::max_block);
  const std::int64_t attention_layers = std::count(g.layers.begin(), g.layers.end(), pack::Mixer::attention);
  const std::int64_t queries = attention_layers * rows * g.query_heads * g.head_dim * 2;
  const std::int64_t lists = (g.vocab_size + 8191) / 8192 * 8;
  const std::int64_t found =
      2 * std::int64_t{link::max_lanes} * link::max_block * lists * ops::most_candidates_cuda * 8;
  return (host.scratch_bytes - host.snapshot_bytes) * 8 / 5 + queries + found + (std::int64_t{64} << 20);
}

// Graphs, the context, partial sums.
constexpr std::int64_t fixed_bytes = std::int64_t{768} << 20;

}  // namespace

model::Footprint cuda_footprint(const pack::Package& package, int max_prefill_rows, int max_context) {
  model::Footprint out = footprint(package, ops::KvFormat::int8, max_prefill_rows, max_context);
  out.scratch_bytes = scratch_bytes(package, out, max_prefill_rows) + fixed_bytes + 2 * out.snapshot_bytes;  // what saves pass through
  return out;
}

Result<std::unique_ptr<CudaModel>> CudaModel::open(const cuda::DeviceFacts& device,
                                                   std::shared_ptr<const pack::Package> package, model::Facts facts) {
  SPLASH_TRY_STATUS(cuda_supports(*package, facts.max_context));
  std::unique_ptr<CudaModel> out(new CudaModel);
  CudaModel& m = *out;
  const model::Footprint host = footprint(*package, ops::KvFormat::int8, facts.max_prefill_rows, facts.max_context);
  SPLASH_TRY(m.stream_, cuda::Stream::open(
                            device, static_cast<std::size_t>(scratch_bytes(*package, host, facts.max_prefill_rows))));
  SPLASH_TRY(m.weights_, upload_weights(*m.stream_, *package));
  const std::vector<pack::SectionInfo> sections = package->sections();
  m.four_bit_ = std::ranges::any_of(sections, [](const pack::SectionInfo& section) { return section.kind == "q4"; });
  m.stream_->set_wide_passes_apart(m.four_bit_);  // pad_prefill
  const auto has = [&](pack::Component component, bool four_bit) {
    return std::ranges::any_of(sections, [&](const pack::SectionInfo& section) {
      return section.component == component &&
             (four_bit ? section.kind == "q4" : section.kind == "bf16" || section.kind == "f32");
    });
  };
  const bool mixed_draft = has(pack::Component::draft, true) && has(pack::Component::draft, false);
  m.stream_->set_folds_norms(!has(pack::Component::target, false) && !mixed_draft);
  const pack::DraftGeometry* draft = package->draft();
  facts.vocab_size = package->target().vocab_size;
  facts.has_draft = draft != nullptr;
  facts.block_rows = draft != nullptr ? std::min(draft->block_size, link::max_block) : 1;
  if (facts.sampling_limit <= 0) facts.sampling_limit = facts.vocab_size;
  SPLASH_CHECK(facts.sampling_limit <= facts.vocab_size && facts.max_context > 0);
  SPLASH_TRY(m.state_, CudaState::make(*m.stream_,
                                       state_geometry(package->target(), draft, ops::KvFormat::int8, facts.max_context),
                                       {.lanes = facts.lanes,
                                        .pages = facts.pages,
                                        .device_snapshots = facts.snapshots - facts.host_snapshots,
                                        .host_snapshots = facts.host_snapshots}));
  SPLASH_TRY(m.tables_, StepTables::make({.lanes = facts.lanes,
                                          .block = facts.block_rows,
                                          .prefill_rows = std::max(facts.max_prefill_rows, least_prefill_rows),
                                          .pages = facts.max_context / link::page_tokens + 2,
                                          .draft_layers = draft != nullptr ? draft->layers : 0,
                                          .mask_words = (facts.vocab_size + 31) / 32}));
  m.state_->use_mark(m.tables_.mark.until.device, m.tables_.mark.rest.device);
  m.stream_->note(cudaEventCreateWithFlags(&m.drafted_, cudaEventDisableTiming), "event");
  m.package_ = std::move(package);
  m.facts_ = std::move(facts);
  m.lanes_.resize(m.facts_.lanes);
  m.lengths_.resize(m.facts_.lanes);
  m.kept_.resize(m.facts_.lanes);
  m.snapshot_length_.resize(m.facts_.snapshots);
  SPLASH_TRY_STATUS(m.stream_->synchronise());
  return out;
}

CudaModel::~CudaModel() {
  if (drafted_) cudaEventDestroy(drafted_);
}

Status CudaModel::back_pages(int pages) {
  SPLASH_CHECK(pages <= facts_.pages);
  stream_->make_current();
  return state_->back_pages(pages);
}

void CudaModel::start_lane(int lane, const model::LaneSetup& setup) {
  stream_->make_current();
  lanes_[lane] = setup;
  lengths_[lane] = kept_[lane] = 0;
  state_->clear(lane);
}

void CudaModel::bring_to_rest(int lane) {
  state_->settle();
  if (kept_[lane] == 0) return;
  // One launch for all layers: one each, with its tables, keeps the host longer than most steps let it.
  ops::gdn(*stream_, weights_.target.gdn, {}, {}, state_->fold_tables(lane), {});
  state_->set_kept_zero(lane);
  kept_[lane] = 0;
}

void CudaModel::save(int lane, model::SnapshotId into) {
  stream_->make_current();
  bring_to_rest(lane);
  state_->save(lane, into);
  snapshot_length_[into] = lengths_[lane];
}

void CudaModel::restore(int lane, model::SnapshotId from) {
  stream_->make_current();
  state_->restore(lane, from);
  kept_[lane] = 0;
  lengths_[lane] = snapshot_length_[from];
}

void CudaModel::save_mark(model::SnapshotId into) {
  SPLASH_CHECK(mark_length_ > 0);
  stream_->make_current();
  state_->save_mark(into);
  snapshot_length_[into] = std::exchange(mark_length_, 0);
}

void CudaModel::copy_page(model::PageId from, model::PageId to) {
  stream_->make_current();
  state_->copy_page(from, to);
}

std::vector<float> CudaModel::state_at_rest(int lane) {
  bring_to_rest(lane);
  return state_->rest(lane);
}

}  // namespace splash::models::qwen3_5
