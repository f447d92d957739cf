// Owners of device and pinned host memory.
#pragma once

#include <cstddef>
#include <utility>

#include "base/result.h"

namespace splash::cuda {

enum class MemoryKind { device, pinned };

// Bytes that are freed with their owner. A failed allocation is an error that names the size and what is free.
template <MemoryKind kind>
class Buffer {
 public:
  static Result<Buffer> allocate(std::size_t bytes);
  Buffer() = default;
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

using DeviceBuffer = Buffer<MemoryKind::device>;
using PinnedBuffer = Buffer<MemoryKind::pinned>;

}  // namespace splash::cuda
