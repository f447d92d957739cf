// A block of pinned host memory and its twin on the device: tables that the host writes before a step and kernels read
// at fixed addresses.
#pragma once

#include <cstring>

#include "backend/cuda/memory.h"
#include "backend/cuda/stream.h"
#include "base/check.h"

namespace splash::cuda {

template <class T>
struct TwinTable {
  T* host = nullptr;
  T* device = nullptr;
  std::size_t count = 0;
};

// `to` becomes `from`: by a kernel, because a copy node of a recorded step would wait for the kernel before it to end
// before it starts, and the kernel behind it likewise. Columns and strides are multiples of four.
void copy(Stream& stream, MatrixView<const float> from, MatrixView<float> to);

// Copies `bytes`, a multiple of 16, from pinned host memory (twin.cu).
void fetch_bytes(Stream& stream, const void* host, void* device, std::size_t bytes);

class Twin {
 public:
  static Result<Twin> allocate(std::size_t bytes) {
    Twin twin;
    SPLASH_TRY(twin.host_, PinnedBuffer::allocate(bytes));
    SPLASH_TRY(twin.device_, DeviceBuffer::allocate(bytes));
    std::memset(twin.host_.data(), 0, bytes);
    return twin;
  }
  // A part of both, aligned to 256 bytes. Asking for more than was allocated is a programmer's error.
  template <class T>
  TwinTable<T> add(std::size_t count) {
    const std::size_t bytes = (count * sizeof(T) + 255) / 256 * 256;
    SPLASH_CHECK(used_ + bytes <= host_.bytes(), "a twin of {} bytes is too small", host_.bytes());
    TwinTable<T> table{reinterpret_cast<T*>(host_.data() + used_), reinterpret_cast<T*>(device_.data() + used_), count};
    used_ += bytes;
    return table;
  }
  // Everything, in stream order. The host side may be written again once the stream has passed it.
  void upload(Stream& stream) const {
    stream.note(cudaMemcpyAsync(device_.data(), host_.data(), used_, cudaMemcpyHostToDevice, stream.native()),
                "tables");
  }
  // The same by a kernel of the stream, which reads the host's memory itself: part of a recording, and sooner there than
  // a copy. For a few KB.
  void fetch(Stream& stream) const { fetch_bytes(stream, host_.data(), device_.data(), used_); }
  std::size_t bytes() const { return host_.bytes(); }

 private:
  PinnedBuffer host_;
  DeviceBuffer device_;
  std::size_t used_ = 0;
};

// Part of a table, in stream order.
template <class T>
void upload(Stream& stream, const TwinTable<T>& table, std::size_t first, std::size_t count) {
  stream.note(cudaMemcpyAsync(table.device + first, table.host + first, count * sizeof(T), cudaMemcpyHostToDevice,
                              stream.native()),
              "table");
}
template <class T>
void download(Stream& stream, const TwinTable<T>& table, std::size_t first, std::size_t count) {
  stream.note(cudaMemcpyAsync(table.host + first, table.device + first, count * sizeof(T), cudaMemcpyDeviceToHost,
                              stream.native()),
              "table");
}

}  // namespace splash::cuda
