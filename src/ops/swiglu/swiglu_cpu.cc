#include "backend/cpu/dispatch.h"
#include "ops/swiglu/swiglu.h"
#include "ops/swiglu/swiglu_kernels.h"

namespace splash::ops {

void swiglu(cpu::Stream& stream, MatrixView<const float> gate, MatrixView<const float> up, MatrixView<float> out) {
  SPLASH_CHECK(gate.rows == up.rows && gate.cols == up.cols && out.rows == gate.rows && out.cols == gate.cols);
  const SwigluKernels& kernels = cpu::kernels_for(stream.isa(), swiglu_scalar, swiglu_avx2, swiglu_avx512vnni);
  // Parts are columns, so that one row of 17,408 is shared too; 64 floats are whole cache lines and whole vectors, which
  // keeps an element's bits the same wherever a part begins.
  const auto part = [&](int first, int last) {
    for (int row = 0; row < gate.rows; ++row) {
      kernels.swiglu(gate.row(row) + first, up.row(row) + first, last - first, out.row(row) + first);
    }
  };
  if (gate.rows * static_cast<std::int64_t>(gate.cols) < 8192) {
    part(0, gate.cols);
  } else {
    stream.pool().split(gate.cols, 64, part);
  }
}

}  // namespace splash::ops
