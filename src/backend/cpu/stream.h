// The CPU device: a worker pool and an ISA. Ops run when they are called, each split over the pool with fixed parts
// (docs/decisions: why nothing is recorded on the CPU).
#pragma once

#include "backend/arena.h"
#include "backend/cpu/isa.h"
#include "base/thread_pool.h"

namespace splash::cpu {

class Stream {
 public:
  Stream(int threads, Isa isa) : pool_(threads), isa_(isa) {}
  MatrixView<float> matrix(int rows, int cols) { return arena_.matrix<float>(rows, cols); }
  Arena& arena() { return arena_; }
  ThreadPool& pool() { return pool_; }
  Isa isa() const { return isa_; }
  void reset() { arena_.reset(); }

 private:
  ThreadPool pool_;
  Isa isa_;
  Arena arena_;
};

}  // namespace splash::cpu
