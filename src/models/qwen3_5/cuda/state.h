// What a model on the GPU remembers between steps: pages, lanes and snapshots in device memory, the last of these in host memory.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "backend/cuda/driver_memory.h"
#include "backend/cuda/host_pinner.h"
#include "backend/cuda/memory.h"
#include "backend/cuda/stream.h"
#include "models/qwen3_5/forward.h"
#include "ops/gdn/gdn_cuda.h"

namespace splash::models::qwen3_5 {

class CudaState {
 public:
  struct Sizes {
    int lanes = 0;
    int pages = 0;
    int device_snapshots = 0;  // these have the first numbers
    int host_snapshots = 0;
  };
  static Result<std::unique_ptr<CudaState>> make(cuda::Stream& stream, StateGeometry geometry, const Sizes& sizes);
  ~CudaState();

  const ops::KvPool& pool() const { return pool_; }
  // Memory for pages [0, pages), zero; `pages` of the pool at most.
  Status back_pages(int pages);
  int backed_pages() const { return backed_pages_; }
  ops::DraftRing ring(int lane, int draft_layer) const;
  int* kept() const { return kept_; }  // [lanes], device: rows on a lane's tape that count

  // The recurrent layers find the next pass's segments here; its lane numbers index the lanes of this state.
  void use(const ops::SegmentEntry* table) { segments_ = table; }
  void use_mark(const ops::SegmentEntry* until, const ops::SegmentEntry* rest) { until_ = until, rest_ = rest; }
  ops::GdnTables gdn_segments(const Rows& rows, int layer);
  ops::GdnLane gdn(int lane, int layer) const;
  // For one pass without rows over all layers of a lane: each is a segment.
  ops::GdnTables fold_tables(int lane) const;

  // All in stream order; nothing waits. Errors show at the stream's next synchronise.
  void clear(int lane);
  void set_kept_zero(int lane);
  // The lane must be at rest. A copy to the host runs beside the steps that follow. Waits only for host memory (Staging).
  void save(int lane, int snapshot);
  // The mark: what a pass leaves aside, layer by layer, in the buffer that saves pass through.
  void begin_mark();
  void mark_ring(int lane, int draft_layer);
  void save_mark(int snapshot);
  // Takes host memory now for those of the first snapshots that lie there, so many bytes of both memories together.
  void prepare_snapshots(std::int64_t most_bytes);
  // Sends saved states to their snapshots whose memory was not ready before. Never waits.
  void send_waiting();
  // From the host the copy comes in parts, layer after layer, and a pass that follows waits for each where it needs it
  // (gdn_segments): all but the first arrive beside it. Everybody else owes settle() before the lane is touched.
  void restore(int lane, int snapshot);
  void settle();
  void copy_page(int from, int to);

  const StateGeometry& geometry() const { return geometry_; }
  // A lane's state at rest, brought to the host; for tests.
  std::vector<float> rest(int lane) const;

 private:
  CudaState(cuda::Stream& stream, StateGeometry geometry) : stream_(stream), geometry_(std::move(geometry)) {}
  float* rest_of(int lane) const;
  float* tape_of(int lane) const;
  // What saves go into. A snapshot of the device's takes the buffer itself and leaves its own behind. One of the host's passes
  // through: its state stays here until its memory is ready (places_ahead.h); only who needs the buffer for the next one waits
  // for that.
  struct Staging {
    std::byte* data = nullptr;
    cudaEvent_t staged = nullptr;  // all of the state is in it
    cudaEvent_t copied = nullptr;  // to the host
    int snapshot = -1;             // whose state is in it
    bool waiting = false;          // not yet on its way to the host
  };
  Staging& staging() { return staging_[turn_]; }
  float* mark_of(const float* in_rest, int lane) {
    return reinterpret_cast<float*>(staging().data) + (in_rest - rest_of(lane));
  }
  bool on_device(int snapshot) const { return snapshot < device_snapshots(); }
  int device_snapshots() const { return static_cast<int>(device_places_.size()); }
  int host_place(int snapshot) const { return snapshot - device_snapshots(); }
  void file_staged(int snapshot);
  void send(Staging& staging, std::byte* to);
  std::size_t rest_bytes() const { return static_cast<std::size_t>(geometry_.rest_floats()) * sizeof(float); }

  cuda::Stream& stream_;
  StateGeometry geometry_;
  int lanes_ = 0;
  GrowingMemory pages_;
  int backed_pages_ = 0;
  cuda::DeviceBuffer rests_, tapes_, kept_memory_, gdn_lanes_, folds_, saved_;
  ops::KvPool pool_;
  int* kept_ = nullptr;
  const ops::SegmentEntry *segments_ = nullptr, *until_ = nullptr, *rest_ = nullptr;
  std::vector<std::byte*> device_places_;     // by snapshot, in saved_; the staging buffers are the rest of it
  std::unique_ptr<PlacesAhead> host_places_;  // by the snapshots behind those
  int places_ahead_ = 0;
  cudaStream_t copies_ = nullptr;  // from the staging buffer to the host
  // Two, in turns: the end of a reply and the mark of the next turn's prompt often follow each other sooner than a copy.
  std::array<Staging, 2> staging_;
  std::size_t turn_ = 0;
  static constexpr int layers_of_a_part = 8;
  cudaEvent_t cleared_ = nullptr;
  std::vector<cudaEvent_t> parts_;  // of a restore: the layers' parts, then the draft's rings
  std::size_t parts_awaited_ = 0;   // of the restore under way, by the main stream
};

}  // namespace splash::models::qwen3_5
