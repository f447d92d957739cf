#include <cmath>

#include "ops/norm/norm.h"

namespace splash::ops {

void rms_norm(ref::Stream&, MatrixView<const float> x, std::span<const float> gain, float eps, MatrixView<float> out) {
  SPLASH_CHECK(x.rows == out.rows && x.cols == out.cols && static_cast<int>(gain.size()) == x.cols);
  for (int r = 0; r < x.rows; ++r) {
    double squares = 0;
    for (int i = 0; i < x.cols; ++i) squares += double{x.row(r)[i]} * x.row(r)[i];
    const double scale = 1.0 / std::sqrt(squares / x.cols + double{eps});
    for (int i = 0; i < x.cols; ++i) out.row(r)[i] = static_cast<float>(x.row(r)[i] * scale * gain[i]);
  }
}

}  // namespace splash::ops
