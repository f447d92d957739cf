// Scratch memory of one step: bump allocation, 64-byte aligned, given back all at once.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "base/matrix.h"

namespace splash {

class Arena {
 public:
  // Uninitialised, valid until reset().
  template <class T>
  T* allocate(std::size_t count) {
    return static_cast<T*>(raw(count * sizeof(T)));
  }
  template <class T>
  MatrixView<T> matrix(int rows, int cols) {
    return {allocate<T>(static_cast<std::size_t>(rows) * cols), rows, cols};
  }
  // Keeps the memory. After a step that needed several blocks, one block of their total size replaces them.
  void reset() {
    if (blocks_.size() > 1) {
      std::size_t total = 0;
      for (const Block& block : blocks_) total += block.size;
      blocks_.clear();
      add_block(total);
    }
    used_ = 0;
  }

 private:
  static constexpr std::size_t alignment = 64;
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{alignment}); }
  };
  struct Block {
    std::unique_ptr<std::byte, Free> data;
    std::size_t size = 0;
  };

  void* raw(std::size_t bytes) {
    bytes = (bytes + alignment - 1) / alignment * alignment;
    if (blocks_.empty() || used_ + bytes > blocks_.back().size) {
      add_block(bytes > (std::size_t{1} << 20) ? bytes : std::size_t{1} << 20);
      used_ = 0;
    }
    std::byte* p = blocks_.back().data.get() + used_;
    used_ += bytes;
    return p;
  }
  void add_block(std::size_t size) {
    blocks_.push_back({std::unique_ptr<std::byte, Free>(
                           static_cast<std::byte*>(::operator new(size, std::align_val_t{alignment}))),
                       size});
  }

  std::vector<Block> blocks_;
  std::size_t used_ = 0;
};

}  // namespace splash
