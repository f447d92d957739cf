// Picks rows of a matrix, in the order given, into a dense one.
#pragma once

#include <algorithm>
#include <span>

#include "base/matrix.h"

namespace splash::models {

template <class Stream>
MatrixView<float> gather_rows(Stream& stream, MatrixView<const float> from, std::span<const int> rows) {
  const MatrixView<float> out = stream.matrix(static_cast<int>(rows.size()), from.cols);
  for (int r = 0; r < out.rows; ++r) std::copy_n(from.row(rows[r]), from.cols, out.row(r));
  return out;
}

}  // namespace splash::models
