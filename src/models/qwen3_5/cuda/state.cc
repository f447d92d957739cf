#include "models/qwen3_5/cuda/state.h"

namespace splash::models::qwen3_5 {
namespace {

std::int64_t whole_lines(std::int64_t floats) { return (floats + 15) / 16 * 16; }
std::int64_t aligned(std::int64_t floats) { return (floats + 63) / 64 * 64; }  // 256 bytes

}  // namespace

Result<std::unique_ptr<CudaState>> CudaState::make(cuda::Stream& stream, StateGeometry geometry,
                                                   const Sizes& sizes) {
  std::unique_ptr<CudaState> state(new CudaState(stream, std::move(geometry)));
  CudaState& s = *state;
  const auto take = [](std::int64_t bytes) { return cuda::DeviceBuffer::allocate(static_cast<std::size_t>(bytes)); };
  const StateGeometry& g = s.geometry_;
  const int lanes = s.lanes_ = sizes.lanes;
  SPLASH_TRY(auto mapper, cuda::device_mapper(stream.facts().index));
  SPLASH_TRY(s.pages_, GrowingMemory::reserve(std::move(mapper), static_cast<std::size_t>(std::max<std::int64_t>(
                                                                     sizes.pages * g.kv.page_bytes(), 256))));
  SPLASH_TRY(s.rests_, take(lanes * aligned(g.rest_floats()) * 4));
  SPLASH_TRY(s.tapes_, take(std::max<std::int64_t>(lanes * aligned(g.tape_floats()) * 4, 256)));
  SPLASH_TRY(s.kept_memory_, take(lanes * 4));
  SPLASH_TRY(s.gdn_lanes_,
             take(std::max<std::int64_t>(g.gdn_layers * lanes * std::int64_t{sizeof(ops::GdnLane)}, 256)));
  SPLASH_TRY(s.folds_,
             take(std::max<std::int64_t>(g.gdn_layers * lanes * std::int64_t{sizeof(ops::SegmentEntry)}, 256)));
  const std::int64_t stride = aligned(g.rest_floats()) * 4;
  SPLASH_TRY(s.saved_, take((std::ssize(s.staging_) + sizes.device_snapshots) * stride));
  std::byte* saved = s.saved_.data();
  for (Staging& staging : s.staging_) staging.data = std::exchange(saved, saved + stride);
  for (int i = 0; i < sizes.device_snapshots; ++i) s.device_places_.push_back(saved + i * stride);
  s.pool_ = {g.kv, s.pages_.data()};
  s.kept_ = s.kept_memory_.as<int>();
  // A turn of a conversation takes two, before its prompt's end and at the reply's; the shortest follow each other every 45 ms,
  // in which about one gets ready.
  s.places_ahead_ = static_cast<int>(
      std::clamp<std::size_t>((std::size_t{2} << 30) / s.rest_bytes(), 2, std::max(sizes.host_snapshots, 2)));
  SPLASH_TRY(s.host_places_, PlacesAhead::reserve(cuda::host_pinner(stream.facts().index),
                                                  {.place_bytes = s.rest_bytes(),
                                                   .places = sizes.host_snapshots,
                                                   .ahead = s.places_ahead_}));
  stream.note(cudaStreamCreateWithFlags(&s.copies_, cudaStreamNonBlocking), "copy stream");
  stream.note(cudaEventCreateWithFlags(&s.cleared_, cudaEventDisableTiming), "event");
  for (Staging& staging : s.staging_) {
    stream.note(cudaEventCreateWithFlags(&staging.staged, cudaEventDisableTiming), "event");
    stream.note(cudaEventCreateWithFlags(&staging.copied, cudaEventDisableTiming), "event");
    stream.note(cudaEventRecord(staging.copied, s.copies_), "event");
  }
  s.parts_.resize((g.gdn_layers + layers_of_a_part - 1) / layers_of_a_part + 1);
  for (cudaEvent_t& part : s.parts_) stream.note(cudaEventCreateWithFlags(&part, cudaEventDisableTiming), "event");
  s.parts_awaited_ = s.parts_.size();
  stream.note(cudaMemsetAsync(s.rests_.data(), 0, s.rests_.bytes(), stream.native()), "clear lanes");
  stream.note(cudaMemsetAsync(s.kept_memory_.data(), 0, s.kept_memory_.bytes(), stream.native()), "clear kept");
  std::vector<ops::GdnLane> table;
  for (int layer = 0; layer < g.gdn_layers; ++layer) {
    for (int lane = 0; lane < lanes; ++lane) table.push_back(s.gdn(lane, layer));
  }
  stream.note(cudaMemcpyAsync(s.gdn_lanes_.data(), table.data(), table.size() * sizeof(table[0]),
                              cudaMemcpyHostToDevice, stream.native()),
              "lane table");
  std::vector<ops::SegmentEntry> folds;
  for (int lane = 0; lane < lanes; ++lane) {
    for (int layer = 0; layer < g.gdn_layers; ++layer) {
      folds.push_back({layer * lanes + lane, 0, 0, 0, static_cast<int>(ops::GdnMode::verify), 0, nullptr});
    }
  }
  stream.note(cudaMemcpyAsync(s.folds_.data(), folds.data(), folds.size() * sizeof(folds[0]), cudaMemcpyHostToDevice,
                              stream.native()),
              "fold table");
  SPLASH_TRY_STATUS(stream.synchronise());
  return state;
}

// Rows of a page that nobody wrote are read beside written ones and weigh nothing: they only have to be finite.
Status CudaState::back_pages(int pages) {
  if (pages <= backed_pages_) return {};
  SPLASH_TRY(const std::span<std::byte> fresh,
             pages_.grow_to(static_cast<std::size_t>(pages) * static_cast<std::size_t>(geometry_.kv.page_bytes())));
  if (!fresh.empty()) {
    stream_.note(cudaMemsetAsync(fresh.data(), 0, fresh.size(), stream_.native()), "clear pages");
  }
  backed_pages_ = pages;
  return {};
}

CudaState::~CudaState() {
  if (copies_) {
    cudaStreamSynchronize(copies_);
    cudaStreamDestroy(copies_);
  }
  for (const Staging& staging : staging_) {
    if (staging.staged) cudaEventDestroy(staging.staged);
    if (staging.copied) cudaEventDestroy(staging.copied);
  }
  if (cleared_) cudaEventDestroy(cleared_);
  for (const cudaEvent_t part : parts_) {
    if (part) cudaEventDestroy(part);
  }
}

float* CudaState::rest_of(int lane) const { return rests_.as<float>() + lane * aligned(geometry_.rest_floats()); }
float* CudaState::tape_of(int lane) const { return tapes_.as<float>() + lane * aligned(geometry_.tape_floats()); }

ops::GdnLane CudaState::gdn(int lane, int layer) const {
  float* state = rest_of(lane) + layer * geometry_.gdn_floats();
  return {state, state + whole_lines(geometry_.gdn.state_floats()),
          tape_of(lane) + layer * whole_lines(link::max_block * geometry_.gdn.tape_row_floats()), kept_ + lane};
}

ops::GdnTables CudaState::gdn_segments(const Rows& rows, int layer) {
  while (parts_awaited_ + 1 < parts_.size() && static_cast<int>(parts_awaited_) * layers_of_a_part <= layer) {
    stream_.note(cudaStreamWaitEvent(stream_.native(), parts_[parts_awaited_++], 0), "restore");
  }
  int longest = 0;
  for (const ops::Segment& segment : rows.segments) longest = std::max(longest, segment.rows);
  if (std::ranges::any_of(rows.modes, [](ops::GdnMode mode) { return mode != ops::GdnMode::commit; })) longest = 0;
  ops::GdnTables tables{segments_, static_cast<int>(rows.segments.size()),
                        gdn_lanes_.as<ops::GdnLane>() + layer * lanes_, longest};
  if (rows.marked >= 0) {
    const int lane = rows.segments[rows.marked].lane;
    const float* from = gdn(lane, layer).state;
    tables.mark = {until_, rest_, from, mark_of(from, lane), static_cast<std::size_t>(geometry_.gdn_floats()) * 4};
  }
  return tables;
}

ops::GdnTables CudaState::fold_tables(int lane) const {
  return {.segments = folds_.as<ops::SegmentEntry>() + lane * geometry_.gdn_layers,
          .segment_count = geometry_.gdn_layers,
          .lanes = gdn_lanes_.as<ops::GdnLane>()};
}

ops::DraftRing CudaState::ring(int lane, int draft_layer) const {
  float* keys = rest_of(lane) + geometry_.gdn_layers * geometry_.gdn_floats();
  const auto part = [&](int layer) {
    return whole_lines(std::int64_t{geometry_.ring_capacity[layer]} * geometry_.ring_width);
  };
  for (int i = 0; i < draft_layer; ++i) keys += 2 * part(i);
  return {keys, keys + part(draft_layer), geometry_.ring_capacity[draft_layer]};
}

void CudaState::clear(int lane) {
  settle();
  const std::int64_t bytes = geometry_.gdn_layers * geometry_.gdn_floats() * 4;
  stream_.note(cudaMemsetAsync(rest_of(lane), 0, static_cast<std::size_t>(bytes), stream_.native()), "clear lane");
  set_kept_zero(lane);
}

void CudaState::set_kept_zero(int lane) {
  stream_.note(cudaMemsetAsync(kept_ + lane, 0, sizeof(int), stream_.native()), "clear kept");
}

void CudaState::prepare_snapshots(std::int64_t most_bytes) {
  const int first = static_cast<int>(static_cast<std::size_t>(most_bytes) / rest_bytes());
  host_places_->prepare(std::max(host_place(first), 0));
}

void CudaState::save(int lane, int snapshot) {
  settle();
  begin_mark();
  stream_.note(cudaMemcpyAsync(staging().data, rest_of(lane), rest_bytes(), cudaMemcpyDeviceToDevice, stream_.native()),
               "save");
  file_staged(snapshot);
}

void CudaState::begin_mark() {
  turn_ = (turn_ + 1) % staging_.size();
  if (staging().waiting) send(staging(), host_places_->wait_for(host_place(staging().snapshot)));
  staging().snapshot = -1;
  stream_.note(cudaStreamWaitEvent(stream_.native(), staging().copied, 0), "save");  // the buffer is free
}

void CudaState::mark_ring(int lane, int draft_layer) {
  settle();
  const ops::DraftRing from = ring(lane, draft_layer);
  const std::int64_t floats = 2 * whole_lines(std::int64_t{from.capacity} * geometry_.ring_width);
  stream_.note(cudaMemcpyAsync(mark_of(from.keys, lane), from.keys, static_cast<std::size_t>(floats) * 4,
                               cudaMemcpyDeviceToDevice, stream_.native()),
               "mark");
}

void CudaState::save_mark(int snapshot) { file_staged(snapshot); }

void CudaState::file_staged(int snapshot) {
  host_places_->expect(host_place(snapshot) + 1 + places_ahead_);
  if (on_device(snapshot)) {
    std::swap(staging().data, device_places_[snapshot]);
    return;
  }
  for (Staging& any : staging_) {
    if (any.snapshot != snapshot) continue;
    any.snapshot = -1;  // what the snapshot held before
    any.waiting = false;
  }
  stream_.note(cudaEventRecord(staging().staged, stream_.native()), "save");
  staging().snapshot = snapshot;
  staging().waiting = true;
  send_waiting();
}

void CudaState::send_waiting() {
  for (Staging& any : staging_) {
    if (!any.waiting) continue;
    if (std::byte* to = host_places_->find(host_place(any.snapshot))) send(any, to);
  }
}

void CudaState::send(Staging& staging, std::byte* to) {
  stream_.note(cudaStreamWaitEvent(copies_, staging.staged, 0), "save");
  host_places_->in_pieces(0, rest_bytes(), [&](std::size_t at, std::size_t bytes) {
    stream_.note(cudaMemcpyAsync(to + at, staging.data + at, bytes, cudaMemcpyDeviceToHost, copies_), "save");
  });
  stream_.note(cudaEventRecord(staging.copied, copies_), "save");
  staging.waiting = false;
}

void CudaState::restore(int lane, int snapshot) {
  settle();
  set_kept_zero(lane);
  const std::byte* near = on_device(snapshot) ? device_places_[snapshot] : nullptr;
  // The next turn of a conversation often comes while its snapshot is still on its way.
  for (const Staging& staging : staging_) {
    if (staging.snapshot == snapshot) near = staging.data;
  }
  if (near != nullptr) {
    stream_.note(cudaMemcpyAsync(rest_of(lane), near, rest_bytes(), cudaMemcpyDeviceToDevice, stream_.native()), "restore");
    return;
  }
  // Behind what the main stream has done with the lane, and behind every save, which this stream brought (one that waits for
  // its memory is still in its staging buffer).
  const std::byte* from = host_places_->wait_for(host_place(snapshot));
  stream_.note(cudaEventRecord(cleared_, stream_.native()), "restore");
  stream_.note(cudaStreamWaitEvent(copies_, cleared_, 0), "restore");
  auto* to = reinterpret_cast<std::byte*>(rest_of(lane));
  std::size_t done = 0;
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    const bool rings = part + 1 == parts_.size();
    const int layers = std::min(static_cast<int>(part + 1) * layers_of_a_part, geometry_.gdn_layers);
    const std::size_t until = rings ? rest_bytes() : static_cast<std::size_t>(layers * geometry_.gdn_floats()) * sizeof(float);
    host_places_->in_pieces(done, until, [&](std::size_t at, std::size_t bytes) {
      stream_.note(cudaMemcpyAsync(to + at, from + at, bytes, cudaMemcpyHostToDevice, copies_), "restore");
    });
    done = until;
    stream_.note(cudaEventRecord(parts_[part], copies_), "restore");
  }
  parts_awaited_ = 0;
}

void CudaState::settle() {
  if (parts_awaited_ == parts_.size()) return;
  parts_awaited_ = parts_.size();
  stream_.note(cudaStreamWaitEvent(stream_.native(), parts_.back(), 0), "restore");
}

void CudaState::copy_page(int from, int to) {
  stream_.note(cudaMemcpyAsync(pool_.at(to, 0), pool_.at(from, 0), static_cast<std::size_t>(geometry_.kv.page_bytes()),
                               cudaMemcpyDeviceToDevice, stream_.native()),
               "copy page");
}

std::vector<float> CudaState::rest(int lane) const {
  std::vector<float> values(static_cast<std::size_t>(geometry_.rest_floats()));
  stream_.note(cudaMemcpyAsync(values.data(), rest_of(lane), rest_bytes(), cudaMemcpyDeviceToHost, stream_.native()),
               "state at rest");
  const Status status = stream_.synchronise();
  SPLASH_CHECK(status.has_value(), "{}", status.error().message);
  return values;
}

}  // namespace splash::models::qwen3_5
