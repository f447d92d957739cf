// What this machine can do at most, measured now: every speed is reported as a share of it.
#pragma once

#include "backend/cpu/isa.h"
#include "base/thread_pool.h"

namespace splash::cpu {

struct Roof {
  double read_gb_s = 0;      // streaming read of an array far larger than the caches, all threads (10^9 bytes)
  double int8_gmac_s = 0;    // 8-bit multiply-accumulate in registers, all threads (10^9 products)
};

// About half a second. Each number is the best of several short rounds: neighbours on the host only ever slow it down.
Roof measure_roof(ThreadPool& pool, Isa isa);

}  // namespace splash::cpu
