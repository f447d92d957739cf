// The CUDA device as ops see it. Ops enqueue kernels; record() turns what a function enqueues into one graph that
// replay() starts with a single call. A recording holds shapes and addresses; everything that changes from step to step
// (tokens, positions, page tables, kept counts) lies in device memory that is written before a replay.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <memory>
#include <vector>

#include "backend/cuda/facts.h"
#include "backend/cuda/memory.h"
#include "backend/cuda/panel.h"
#include "base/matrix.h"
#include "base/pause.h"
#include "base/result.h"

namespace splash::cuda {

// One recorded step.
class Recording {
 public:
  Recording() = default;
  Recording(Recording&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)), nodes_(other.nodes_) {}
  Recording& operator=(Recording&& other) noexcept {
    std::swap(graph_, other.graph_);
    std::swap(nodes_, other.nodes_);
    return *this;
  }
  ~Recording();
  std::size_t nodes() const { return nodes_; }

 private:
  friend class Stream;
  cudaGraphExec_t graph_ = nullptr;
  std::size_t nodes_ = 0;
};

class Stream {
 public:
  // scratch_bytes: activations, panels and partial sums of the largest step, taken once.
  static Result<std::unique_ptr<Stream>> open(const DeviceFacts& device, std::size_t scratch_bytes);
  ~Stream();

  const DeviceFacts& facts() const { return facts_; }
  // Whether this device takes the portable kernels (facts.h). They have one order of sums for every width (decision
  // 0015), so what ops do differently by width on Hopper they do not do here.
  bool portable() const { return portable_; }
  cudaStream_t native() const { return stream_; }
  // The calling thread's device becomes this one: a thread that did not open the stream owes this before it enqueues.
  void make_current() { note(cudaSetDevice(facts_.index), "set device"); }

  // Scratch: uninitialised device memory, valid until reset(). Running out is a programmer's error (the plan knows).
  MatrixView<float> matrix(int rows, int cols);
  template <class T>
  T* allocate(std::size_t count) {
    return reinterpret_cast<T*>(scratch(count * sizeof(T)));
  }
  void reset();
  std::size_t scratch_used_bytes() const { return used_; }

  // The bf16 shadow of a matrix (panel.h). A producer asks for it, fills it and so saves the linear behind it a pass;
  // a kernel that overwrites a matrix without it must call forget_panels.
  Panel panel_to_fill(MatrixView<const float> matrix);
  void set_panel(MatrixView<const float> matrix, const Panel& panel);  // replaces what panel_to_fill gave
  const Panel* panel_of(MatrixView<const float> matrix) const;
  void forget_panels(MatrixView<const float> matrix);

  // Whether norms may be made inside of linears (linear_add_norm), and floats of matrices that linears alone read stay
  // unwritten where there is a panel. Not where one of their readers has weights of a kind that takes floats.
  void set_folds_norms(bool folds) { folds_norms_ = folds; }
  bool folds_norms() const { return folds_norms_ && !portable_; }
  bool writes_floats(const Panel& panel) const { return !folds_norms() || !panel.data; }

  // Whether passes of wide_pass_rows and more may add up in another order than narrower ones: where every prompt is
  // read by such passes alone (0008).
  void set_wide_passes_apart(bool apart) { wide_passes_apart_ = apart; }
  bool wide_passes_apart() const { return wide_passes_apart_ && !portable_; }

  // Sums that the blocks of a linear of few rows hand to each other; all bits set between launches (q4_absent).
  uint4* parts() const { return parts_.as<uint4>(); }
  std::size_t parts_bytes() const { return parts_.bytes(); }
  // Words that the blocks of a launch hand to each other, each with a flag; zero between launches.
  uint4* exchange() const { return exchange_.as<uint4>(); }
  std::size_t exchange_bytes() const { return exchange_.bytes(); }
  // Partial sums of one kernel at a time. Attention: 240 chunks of 4 heads x 48 query rows x 256 in fp16 for each of 8
  // lanes, on portable devices 120 in float; linear: a few MB. Who can't do with less asks before (cuda_supports).
  float* partials() const { return partials_.as<float>(); }
  static constexpr std::size_t partials_bytes() { return std::size_t{192} << 20; }

  // Small tables (segments, lanes, tokens) from host to device, copied in stream order into scratch. Not while
  // recording: a recorded op finds its tables through bind(), whose device memory is rewritten before each replay.
  template <class T>
  const T* upload(const T* values, std::size_t count) {
    return reinterpret_cast<const T*>(upload_bytes(values, count * sizeof(T)));
  }
  // From now until reset(), an op that is handed the host table `host` reads `device` instead. The host table must live
  // until then: another one at its address would be taken for it.
  void bind(const void* host, const void* device) { bindings_.push_back({host, device}); }
  const void* bound(const void* host) const;
  template <class T>
  const T* table(const T* values, std::size_t count) {
    if (const void* device = bound(values)) return static_cast<const T*>(device);
    return upload(values, count);
  }

  template <class Body>
  Result<Recording> record(Body&& body) {
    begin_record();
    body();
    return end_record();
  }
  void replay(const Recording& recording);

  // The first error of any call or kernel since the last synchronise; ops report theirs with note().
  void note(cudaError_t error, const char* what);
  Status synchronise();
  // Waits until `arrived()` holds, for what kernels write into pinned memory before the stream is done. An error of the
  // stream, or its end without an arrival, ends the wait.
  template <class Arrived>
  Status wait_until(Arrived&& arrived) {
    for (int look = 1; !arrived(); ++look) {
      if (look % looks_per_query == 0 && !running()) {
        if (arrived()) break;
        note(cudaErrorUnknown, "a step without results");
        return synchronise();
      }
      pause_cpu();
    }
    return error_ == cudaSuccess ? Status{} : synchronise();
  }
  // With SPLASH_CUDA_EACH set, every launch is followed by a synchronise that names the kernel at fault.
  void after_launch(const char* kernel);

 private:
  // A look at pinned memory costs nanoseconds, asking the driver about a microsecond.
  static constexpr int looks_per_query = 512;
  bool running();

  Stream() = default;
  std::byte* scratch(std::size_t bytes);
  const std::byte* upload_bytes(const void* values, std::size_t bytes);
  void begin_record();
  Result<Recording> end_record();

  struct Shadow {
    const float* begin = nullptr;
    const float* end = nullptr;
    int rows = 0;
    int cols = 0;
    bool filled = false;  // else only the memory is kept, for the next producer of the same matrix
    Panel panel;
  };
  struct Binding {
    const void* host = nullptr;
    const void* device = nullptr;
  };

  DeviceFacts facts_;
  cudaStream_t stream_ = nullptr;
  DeviceBuffer scratch_, parts_, exchange_, partials_;
  PinnedBuffer staging_;
  std::size_t used_ = 0, staged_ = 0;
  std::vector<Shadow> shadows_;
  std::vector<Binding> bindings_;
  cudaError_t error_ = cudaSuccess;
  const char* error_site_ = "";
  bool portable_ = false;
  bool recording_ = false;
  bool each_ = false;
  bool folds_norms_ = true;
  bool wide_passes_apart_ = true;
};

}  // namespace splash::cuda
