// What a thread says while it spins: it waits for another one, so it may leave the core's other hardware thread the work.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace splash {

inline void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace splash
