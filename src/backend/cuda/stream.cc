#include "backend/cuda/stream.h"

#include <cstdlib>
#include <cstring>

#include "base/check.h"

namespace splash::cuda {
namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t staging_bytes = std::size_t{4} << 20;
constexpr std::size_t bytes_of_parts = std::size_t{9} << 20;    // linear of few rows: 132 blocks x 64 KB
constexpr std::size_t exchanged_bytes = std::size_t{16} << 20;  // linear: 132 blocks x 8 strips x 64 rows x 8 bytes

}  // namespace

Recording::~Recording() {
  if (graph_) cudaGraphExecDestroy(graph_);
}

Result<std::unique_ptr<Stream>> Stream::open(const DeviceFacts& device, std::size_t scratch_bytes) {
  SPLASH_TRY_STATUS(supported(device));
  std::unique_ptr<Stream> stream(new Stream);
  stream->facts_ = device;
  stream->portable_ = kernels_for(device) == Kernels::portable;
  stream->each_ = std::getenv("SPLASH_CUDA_EACH") != nullptr;
  cudaError_t error = cudaSetDevice(device.index);
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&stream->stream_, cudaStreamNonBlocking);
  if (error != cudaSuccess) {
    return fail(ErrorKind::io, "could not open {}: {}", describe(device), cudaGetErrorString(error));
  }
  SPLASH_TRY(stream->scratch_, DeviceBuffer::allocate(scratch_bytes));
  SPLASH_TRY(stream->partials_, DeviceBuffer::allocate(partials_bytes()));
  SPLASH_TRY(stream->parts_, DeviceBuffer::allocate(bytes_of_parts));
  stream->note(cudaMemsetAsync(stream->parts_.data(), 0xff, bytes_of_parts, stream->stream_), "parts");
  SPLASH_TRY(stream->exchange_, DeviceBuffer::allocate(exchanged_bytes));
  stream->note(cudaMemsetAsync(stream->exchange_.data(), 0, exchanged_bytes, stream->stream_), "exchange");
  SPLASH_TRY(stream->staging_, PinnedBuffer::allocate(staging_bytes));
  SPLASH_TRY_STATUS(stream->synchronise());
  return stream;
}

Stream::~Stream() {
  if (stream_) {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
}

std::byte* Stream::scratch(std::size_t bytes) {
  bytes = (bytes + alignment - 1) / alignment * alignment;
  SPLASH_CHECK(used_ + bytes <= scratch_.bytes(), "scratch of {} bytes is too small: {} used, {} wanted",
               scratch_.bytes(), used_, bytes);
  std::byte* data = scratch_.data() + used_;
  used_ += bytes;
  return data;
}

MatrixView<float> Stream::matrix(int rows, int cols) {
  return {allocate<float>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols)), rows, cols};
}

void Stream::reset() {
  used_ = 0;
  shadows_.clear();
  bindings_.clear();
}

const void* Stream::bound(const void* host) const {
  for (const Binding& binding : bindings_) {
    if (binding.host == host) return binding.device;
  }
  return nullptr;
}

Panel Stream::panel_to_fill(MatrixView<const float> matrix) {
  forget_panels(matrix);
  if (matrix.cols % Panel::group != 0 || matrix.rows == 0) return {};
  for (Shadow& shadow : shadows_) {
    if (shadow.begin == matrix.data && shadow.rows == matrix.rows && shadow.cols == matrix.cols) {
      shadow.filled = true;
      shadow.panel.squares = nullptr;
      return shadow.panel;
    }
  }
  Panel panel{nullptr, matrix.rows, matrix.cols, panel_row_tile(matrix.rows),
              !portable_ && matrix.rows <= Panel::most_rows_with_sums};
  panel.data = scratch(static_cast<std::size_t>(panel.bytes()));
  const float* end = matrix.row(matrix.rows - 1) + matrix.cols;
  shadows_.push_back({matrix.data, end, matrix.rows, matrix.cols, true, panel});
  return panel;
}

void Stream::set_panel(MatrixView<const float> matrix, const Panel& panel) {
  for (Shadow& shadow : shadows_) {
    if (shadow.filled && shadow.begin == matrix.data && shadow.rows == matrix.rows) shadow.panel = panel;
  }
}

const Panel* Stream::panel_of(MatrixView<const float> matrix) const {
  for (const Shadow& shadow : shadows_) {
    if (shadow.filled && shadow.begin == matrix.data && shadow.rows == matrix.rows && shadow.cols == matrix.cols) {
      return &shadow.panel;
    }
  }
  return nullptr;
}

void Stream::forget_panels(MatrixView<const float> matrix) {
  if (matrix.rows == 0) return;
  const float* begin = matrix.data;
  const float* end = matrix.row(matrix.rows - 1) + matrix.cols;
  for (Shadow& shadow : shadows_) {
    if (shadow.begin < end && begin < shadow.end) shadow.filled = false;
  }
}

const std::byte* Stream::upload_bytes(const void* values, std::size_t bytes) {
  SPLASH_CHECK(bytes <= staging_.bytes());
  SPLASH_CHECK(!recording_, "a recorded op was handed a table that is not bound to device memory");
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  if (staged_ + rounded > staging_.bytes()) {
    // The ring of staged tables wrapped: the copies out of it must be done.
    note(cudaStreamSynchronize(stream_), "upload");
    staged_ = 0;
  }
  std::byte* from = staging_.data() + staged_;
  staged_ += rounded;
  std::memcpy(from, values, bytes);
  std::byte* to = scratch(bytes);
  note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "upload");
  return to;
}

void Stream::begin_record() {
  SPLASH_CHECK(!recording_, "a recording inside a recording");
  note(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "begin capture");
  recording_ = true;
}

Result<Recording> Stream::end_record() {
  recording_ = false;
  cudaGraph_t graph = nullptr;
  note(cudaStreamEndCapture(stream_, &graph), "end capture");
  Recording recording;
  if (graph) {
    note(cudaGraphGetNodes(graph, nullptr, &recording.nodes_), "graph nodes");
    note(cudaGraphInstantiate(&recording.graph_, graph, 0), "instantiate graph");
    cudaGraphDestroy(graph);
  }
  SPLASH_TRY_STATUS(synchronise());
  return recording;
}

void Stream::replay(const Recording& recording) { note(cudaGraphLaunch(recording.graph_, stream_), "replay"); }

void Stream::note(cudaError_t error, const char* what) {
  if (error == cudaSuccess || error_ != cudaSuccess) return;
  error_ = error;
  error_site_ = what;
}

Status Stream::synchronise() {
  note(cudaStreamSynchronize(stream_), "synchronise");
  note(cudaGetLastError(), "synchronise");
  if (error_ == cudaSuccess) return {};
  const cudaError_t error = error_;
  error_ = cudaSuccess;
  // A fault that stays takes every later call with it.
  const cudaError_t now = cudaStreamQuery(stream_);
  if (now != cudaSuccess && now != cudaErrorNotReady) {
    return fail(ErrorKind::lost,
                "the GPU has stopped answering ({} in {}): start the server again; nvidia-smi and dmesg tell more, "
                "--backend cpu serves without it",
                cudaGetErrorName(error), error_site_);
  }
  return fail(ErrorKind::internal, "CUDA failed in {}: {} ({})", error_site_, cudaGetErrorString(error),
              cudaGetErrorName(error));
}

bool Stream::running() {
  const cudaError_t state = cudaStreamQuery(stream_);
  if (state == cudaErrorNotReady) return true;
  note(state, "step");
  return false;
}

void Stream::after_launch(const char* kernel) {
  note(cudaGetLastError(), kernel);
  if (each_ && !recording_) note(cudaStreamSynchronize(stream_), kernel);
}

}  // namespace splash::cuda
