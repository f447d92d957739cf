// Chooses an op's kernels: one constant table of function pointers per instruction set, defined in <op>_<isa>.cc.
#pragma once

#include "backend/cpu/isa.h"

namespace splash::cpu {

template <class Kernels>
const Kernels& kernels_for(Isa isa, const Kernels& scalar, const Kernels& avx2, const Kernels& avx512vnni) {
  switch (isa) {
    case Isa::avx512vnni: return avx512vnni;
    case Isa::avx2: return avx2;
    case Isa::scalar: break;
  }
  return scalar;
}

}  // namespace splash::cpu
