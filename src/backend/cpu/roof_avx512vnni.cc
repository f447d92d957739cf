#include <immintrin.h>

#include "backend/cpu/roof_kernels.h"

namespace splash::cpu {
namespace {

std::uint64_t read(const unsigned char* data, std::int64_t bytes) {
  __m512i sums[4] = {};
  for (std::int64_t at = 0; at < bytes; at += 256) {
#pragma GCC unroll 4
    for (int part = 0; part < 4; ++part) {
      _mm_prefetch(reinterpret_cast<const char*>(data + at + 4096 + 64 * part), _MM_HINT_T0);
      sums[part] = _mm512_or_si512(sums[part], _mm512_load_si512(data + at + 64 * part));
    }
  }
  const __m512i all = _mm512_or_si512(_mm512_or_si512(sums[0], sums[1]), _mm512_or_si512(sums[2], sums[3]));
  return static_cast<std::uint64_t>(_mm512_reduce_add_epi64(all));
}

std::int64_t multiply(std::int64_t rounds, std::uint64_t* result) {
  __m512i sums[12] = {};
  const __m512i a = _mm512_set1_epi8(static_cast<char>(rounds & 15)), b = _mm512_set1_epi8(1);
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int part = 0; part < 12; ++part) sums[part] = _mm512_dpbusd_epi32(sums[part], a, b);
  }
  __m512i all = sums[0];
  for (int part = 1; part < 12; ++part) all = _mm512_add_epi32(all, sums[part]);
  *result = static_cast<std::uint64_t>(_mm512_reduce_add_epi32(all));
  return rounds * 12 * 64;
}

}  // namespace

constinit const RoofKernels roof_avx512vnni = {read, multiply};

}  // namespace splash::cpu
