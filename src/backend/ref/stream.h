// The scalar truth: one thread, float32, written to be read. Ops run when they are called.
#pragma once

#include "backend/arena.h"

namespace splash::ref {

class Stream {
 public:
  MatrixView<float> matrix(int rows, int cols) { return arena_.matrix<float>(rows, cols); }
  Arena& arena() { return arena_; }
  void reset() { arena_.reset(); }

 private:
  Arena arena_;
};

}  // namespace splash::ref
