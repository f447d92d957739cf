#include <immintrin.h>

#include "backend/cpu/roof_kernels.h"

namespace splash::cpu {
namespace {

std::uint64_t read(const unsigned char* data, std::int64_t bytes) {
  __m256i sums[4] = {};
  for (std::int64_t at = 0; at < bytes; at += 128) {
    _mm_prefetch(reinterpret_cast<const char*>(data + at + 2048), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(data + at + 2112), _MM_HINT_T0);
#pragma GCC unroll 4
    for (int part = 0; part < 4; ++part) {
      sums[part] = _mm256_or_si256(sums[part], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + at + 32 * part)));
    }
  }
  const __m256i all = _mm256_or_si256(_mm256_or_si256(sums[0], sums[1]), _mm256_or_si256(sums[2], sums[3]));
  return static_cast<std::uint64_t>(_mm256_extract_epi64(all, 0) | _mm256_extract_epi64(all, 3));
}

// vpmaddubsw with 16-bit sums: 32 products an instruction and one addition, what the q4 kernel is made of.
std::int64_t multiply(std::int64_t rounds, std::uint64_t* result) {
  __m256i sums[8] = {}, a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(1);
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 8
    for (int part = 0; part < 8; ++part) {
      __asm__ volatile("" : "+x"(a));  // keeps the product inside the loop
      sums[part] = _mm256_add_epi16(sums[part], _mm256_maddubs_epi16(a, b));
    }
  }
  __m256i all = sums[0];
  for (int part = 1; part < 8; ++part) all = _mm256_add_epi16(all, sums[part]);
  *result = static_cast<std::uint64_t>(_mm256_extract_epi64(all, 0));
  return rounds * 8 * 32;
}

}  // namespace

constinit const RoofKernels roof_avx2 = {read, multiply};

}  // namespace splash::cpu
