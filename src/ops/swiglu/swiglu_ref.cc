#include <cmath>

#include "ops/swiglu/swiglu.h"

namespace splash::ops {

void swiglu(ref::Stream&, MatrixView<const float> gate, MatrixView<const float> up, MatrixView<float> out) {
  SPLASH_CHECK(gate.rows == up.rows && gate.cols == up.cols && out.rows == gate.rows && out.cols == gate.cols);
  for (int r = 0; r < gate.rows; ++r) {
    for (int i = 0; i < gate.cols; ++i) {
      const double g = gate.row(r)[i];
      out.row(r)[i] = static_cast<float>(g / (1.0 + std::exp(-g)) * up.row(r)[i]);
    }
  }
}

}  // namespace splash::ops
