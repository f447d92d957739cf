#include "models/qwen3_5/state.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/check.h"
#include "models/dflash2/weights.h"
#include "models/qwen3_5/forward.h"
#include "models/qwen3_5/weights.h"

namespace splash::models::qwen3_5 {

namespace {

// Parts start at 64-byte lines.
std::int64_t whole_lines(std::int64_t floats) { return (floats + 15) / 16 * 16; }

float* floats(const auto& memory) { return reinterpret_cast<float*>(memory.get()); }

}  // namespace

std::int64_t StateGeometry::gdn_floats() const {
  return whole_lines(gdn.state_floats()) + whole_lines(gdn.conv_floats());
}

std::int64_t StateGeometry::rest_floats() const {
  std::int64_t total = gdn_layers * gdn_floats();
  for (const int capacity : ring_capacity) total += 2 * whole_lines(std::int64_t{capacity} * ring_width);
  return total;
}

std::int64_t StateGeometry::tape_floats() const {
  return gdn_layers * whole_lines(link::max_block * gdn.tape_row_floats());
}

StateGeometry state_geometry(const pack::TargetGeometry& target, const pack::DraftGeometry* draft, ops::KvFormat format,
                             int max_context) {
  StateGeometry geometry;
  const auto attention_layers = std::count(target.layers.begin(), target.layers.end(), pack::Mixer::attention);
  geometry.kv = {format, static_cast<int>(attention_layers), target.kv_heads, target.head_dim};
  geometry.gdn = gdn_geometry(target);
  geometry.gdn_layers = static_cast<int>(target.layers.size()) - static_cast<int>(attention_layers);
  if (draft != nullptr) {
    geometry.ring_width = draft->kv_heads * draft->head_dim;
    for (int i = 0; i < draft->layers; ++i) {
      geometry.ring_capacity.push_back(dflash2::ring_capacity(*draft, i, max_context));
    }
  }
  return geometry;
}

void State::Free::operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{64}); }

State::Memory State::allocate(std::int64_t bytes) {
  return Memory(static_cast<std::byte*>(::operator new(static_cast<std::size_t>(bytes), std::align_val_t{64})));
}

State::State(StateGeometry geometry, int lanes, int pages, int snapshots) : geometry_(std::move(geometry)) {
  pages_ = allocate(pages * geometry_.kv.page_bytes());
  pool_ = {geometry_.kv, pages_.get()};
  lanes_.resize(lanes);
  for (int i = 0; i < lanes; ++i) {
    lanes_[i].rest = allocate(geometry_.rest_floats() * std::int64_t{sizeof(float)});
    lanes_[i].tape = allocate(geometry_.tape_floats() * std::int64_t{sizeof(float)});
    clear(i);
  }
  for (int i = 0; i < snapshots; ++i) {
    snapshots_.push_back(allocate(geometry_.rest_floats() * std::int64_t{sizeof(float)}));
  }
  if (snapshots > 0) mark_ = allocate(geometry_.rest_floats() * std::int64_t{sizeof(float)});
}

ops::GdnLane State::gdn(int lane, int layer) {
  float* state = floats(lanes_[lane].rest) + layer * geometry_.gdn_floats();
  return {state, state + whole_lines(geometry_.gdn.state_floats()),
          floats(lanes_[lane].tape) + layer * whole_lines(link::max_block * geometry_.gdn.tape_row_floats()),
          &lanes_[lane].kept};
}

GdnTurns State::gdn_segments(const Rows& rows, int layer) {
  GdnTurns turns;
  for (std::size_t i = 0; i < rows.segments.size(); ++i) {
    turns.first.push_back({rows.segments[i], gdn(rows.segments[i].lane, layer), rows.modes[i]});
  }
  if (rows.marked < 0) return turns;
  ops::GdnSegment& until = turns.first[rows.marked];
  SPLASH_CHECK(*until.lane.kept == 0 && mark_ != nullptr);
  ops::GdnSegment after = until;
  until.segment.rows = rows.mark;
  after.segment.first_row += rows.mark;
  after.segment.position += rows.mark;
  after.segment.rows -= rows.mark;
  turns.rest.push_back(after);
  turns.from = {until.lane.state, static_cast<std::size_t>(geometry_.gdn_floats())};
  turns.to = floats(mark_) + layer * geometry_.gdn_floats();
  return turns;
}

ops::DraftRing State::ring(int lane, int draft_layer) {
  float* keys = floats(lanes_[lane].rest) + geometry_.gdn_layers * geometry_.gdn_floats();
  const auto part = [&](int layer) {
    return whole_lines(std::int64_t{geometry_.ring_capacity[layer]} * geometry_.ring_width);
  };
  for (int i = 0; i < draft_layer; ++i) keys += 2 * part(i);
  return {keys, keys + part(draft_layer), geometry_.ring_capacity[draft_layer]};
}

void State::clear(int lane) {
  std::fill_n(floats(lanes_[lane].rest), geometry_.gdn_layers * geometry_.gdn_floats(), 0.0f);
  lanes_[lane].kept = 0;
}

void State::save(int lane, int snapshot) {
  SPLASH_CHECK(lanes_[lane].kept == 0, "a lane is saved at rest");
  std::memcpy(snapshots_[snapshot].get(), lanes_[lane].rest.get(),
              static_cast<std::size_t>(geometry_.rest_floats()) * sizeof(float));
}

void State::mark_ring(int lane, int draft_layer) {
  const ops::DraftRing from = ring(lane, draft_layer);
  const std::int64_t part = whole_lines(std::int64_t{from.capacity} * geometry_.ring_width);
  std::copy_n(from.keys, 2 * part, floats(mark_) + (from.keys - floats(lanes_[lane].rest)));
}

void State::save_mark(int snapshot) { std::swap(snapshots_[snapshot], mark_); }

void State::restore(int lane, int snapshot) {
  std::memcpy(lanes_[lane].rest.get(), snapshots_[snapshot].get(),
              static_cast<std::size_t>(geometry_.rest_floats()) * sizeof(float));
  lanes_[lane].kept = 0;
}

void State::copy_page(int from, int to) {
  std::memcpy(pages_.get() + to * geometry_.kv.page_bytes(), pages_.get() + from * geometry_.kv.page_bytes(),
              static_cast<std::size_t>(geometry_.kv.page_bytes()));
}

std::span<const float> State::rest(int lane) const {
  return {floats(lanes_[lane].rest), static_cast<std::size_t>(geometry_.rest_floats())};
}

}  // namespace splash::models::qwen3_5
