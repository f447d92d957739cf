// The CPU device: a worker pool and an ISA. Ops run when they are called, each split over the pool with fixed parts
// (docs/decisions: why nothing is recorded on the CPU).
#pragma once

#include <memory>
#include <vector>

#include "backend/arena.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/rope_table.h"
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

  // Scratch of one op call, emptied by the next op that asks: a step of 64 layers reuses the same lines of cache.
  Arena& op_scratch() {
    op_scratch_.reset();
    return op_scratch_;
  }
  const RopeTable& rope(double theta, int rotary_dim) {
    for (const auto& table : ropes_) {
      if (table->is_for(theta, rotary_dim)) return *table;
    }
    return *ropes_.emplace_back(std::make_unique<RopeTable>(theta, rotary_dim));
  }

 private:
  ThreadPool pool_;
  Isa isa_;
  Arena arena_;
  Arena op_scratch_;
  std::vector<std::unique_ptr<RopeTable>> ropes_;  // the target's and the draft's
};

}  // namespace splash::cpu
