// Everything a model remembers between steps: pages of keys and values, and per lane the recurrent state with its tape
// and the draft's context. Index arithmetic only; ops write the numbers.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "models/blocks/gdn.h"
#include "ops/attention/kv.h"
#include "ops/draft/draft.h"
#include "ops/gdn/gdn.h"
#include "pack/geometry.h"

namespace splash::models::qwen3_5 {

struct StateGeometry {
  ops::KvGeometry kv;
  ops::GdnGeometry gdn;
  int gdn_layers = 0;
  std::vector<int> ring_capacity;  // per draft layer, in positions
  int ring_width = 0;              // floats of one position's keys (or values)

  // Floats of one lane. At rest: [gdn layer][state, conv], then [draft layer][keys, values]; beside it the tapes.
  std::int64_t gdn_floats() const;
  std::int64_t rest_floats() const;
  std::int64_t tape_floats() const;
};
// `draft` may be null.
StateGeometry state_geometry(const pack::TargetGeometry& target, const pack::DraftGeometry* draft, ops::KvFormat format,
                             int max_context);

struct Rows;

class State {
 public:
  State(StateGeometry geometry, int lanes, int pages, int snapshots);

  const ops::KvPool& pool() const { return pool_; }
  ops::GdnLane gdn(int lane, int layer);
  // A marked segment's lane must be at rest.
  GdnTurns gdn_segments(const Rows& rows, int layer);
  ops::DraftRing ring(int lane, int draft_layer);
  int& kept(int lane) { return lanes_[lane].kept; }

  // Zero recurrent state, no kept rows. The draft's ring is not touched: it is only read below the committed length.
  void clear(int lane);
  // The lane must be at rest (kept == 0).
  void save(int lane, int snapshot);
  void restore(int lane, int snapshot);
  // The mark: a state at rest that a pass leaves aside, layer by layer.
  void mark_ring(int lane, int draft_layer);
  void save_mark(int snapshot);
  void copy_page(int from, int to);

  const StateGeometry& geometry() const { return geometry_; }
  std::span<const float> rest(int lane) const;

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  using Memory = std::unique_ptr<std::byte, Free>;
  // Uninitialised, 64-byte aligned; the operating system gives pages when they are first written.
  static Memory allocate(std::int64_t bytes);

  struct Lane {
    Memory rest, tape;
    int kept = 0;
  };
  StateGeometry geometry_;
  Memory pages_;
  ops::KvPool pool_;
  std::vector<Lane> lanes_;
  std::vector<Memory> snapshots_;
  Memory mark_;
};

}  // namespace splash::models::qwen3_5
