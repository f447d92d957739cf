#include "backend/cpu/isa.h"

#include <cpuid.h>

#include <array>
#include <cstdint>

namespace splash::cpu {

namespace {

constexpr std::array all_isas = {Isa::scalar, Isa::avx2, Isa::avx512vnni};

// XCR0, read with xgetbv: which register files the operating system saves on a context switch. A processor may have
// AVX-512 while the kernel or the hypervisor does not keep its registers; cpuid alone would then lead to SIGILL.
std::uint64_t saved_registers() {
  std::uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32 | low;
}

struct Features {
  bool avx2 = false;
  bool avx512vnni = false;
};

Features detect() {
  Features features;
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return features;
  constexpr std::uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
  constexpr std::uint32_t basic = fma | osxsave | avx | f16c;
  if ((c & basic) != basic) return features;
  const std::uint64_t xcr0 = saved_registers();
  constexpr std::uint64_t ymm = 0x6, zmm = 0xe6;  // SSE and AVX; and mask registers, upper zmm, zmm16..31
  if ((xcr0 & ymm) != ymm || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return features;
  constexpr std::uint32_t bmi1 = 1u << 3, avx2 = 1u << 5, bmi2 = 1u << 8;
  features.avx2 = (b & (bmi1 | avx2 | bmi2)) == (bmi1 | avx2 | bmi2);
  constexpr std::uint32_t f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31, vnni = 1u << 11;
  features.avx512vnni = features.avx2 && (b & (f | dq | bw | vl)) == (f | dq | bw | vl) && (c & vnni) != 0 &&
                        (xcr0 & zmm) == zmm;
  return features;
}

}  // namespace

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::scalar: return "scalar";
    case Isa::avx2: return "avx2";
    case Isa::avx512vnni: return "avx512vnni";
  }
  return "unknown";
}

bool supported(Isa isa) {
  static const Features features = detect();
  switch (isa) {
    case Isa::scalar: return true;
    case Isa::avx2: return features.avx2;
    case Isa::avx512vnni: return features.avx512vnni;
  }
  return false;
}

Result<Isa> choose_isa(std::string_view forced) {
  Isa best = Isa::scalar;
  std::string names;
  for (Isa isa : all_isas) {
    if (!supported(isa)) continue;
    best = isa;
    names.append(names.empty() ? "" : ", ").append(name_of(isa));
    if (forced == name_of(isa)) return isa;
  }
  if (forced.empty()) return best;
  return fail(ErrorKind::unsupported, "instruction set '{}' is not available: this machine can run {}", forced, names);
}

}  // namespace splash::cpu
