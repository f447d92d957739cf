// A view of a row-major matrix: rows x cols elements, row r starting at data + r * stride.
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

#include "base/check.h"

namespace splash {

template <class T>
struct MatrixView {
  T* data = nullptr;
  int rows = 0;
  int cols = 0;
  std::ptrdiff_t stride = 0;  // elements between rows, >= cols

  MatrixView() = default;
  MatrixView(T* data_, int rows_, int cols_) : data(data_), rows(rows_), cols(cols_), stride(cols_) {}
  MatrixView(T* data_, int rows_, int cols_, std::ptrdiff_t stride_)
      : data(data_), rows(rows_), cols(cols_), stride(stride_) {}
  template <class U>
    requires(std::is_same_v<T, const U>)
  MatrixView(MatrixView<U> other) : data(other.data), rows(other.rows), cols(other.cols), stride(other.stride) {}

  T* row(int r) const { return data + r * stride; }
  std::span<T> row_span(int r) const { return {row(r), static_cast<std::size_t>(cols)}; }
  // Rows [first, first + count).
  MatrixView slice_rows(int first, int count) const {
    SPLASH_CHECK(first >= 0 && count >= 0 && first + count <= rows);
    return {row(first), count, cols, stride};
  }
  // Columns [first, first + count).
  MatrixView slice_cols(int first, int count) const {
    SPLASH_CHECK(first >= 0 && count >= 0 && first + count <= cols);
    return {data + first, rows, count, stride};
  }
};

}  // namespace splash
