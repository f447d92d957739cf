#include "backend/cpu/roof_kernels.h"

namespace splash::cpu {
namespace {

using Words = std::uint64_t __attribute__((vector_size(16)));
using Shorts = std::int16_t __attribute__((vector_size(16)));

std::uint64_t read(const unsigned char* data, std::int64_t bytes) {
  Words sums[4] = {};
  for (std::int64_t at = 0; at < bytes; at += 64) {
    for (int part = 0; part < 4; ++part) sums[part] |= *reinterpret_cast<const Words*>(data + at + 16 * part);
  }
  const Words all = sums[0] | sums[1] | sums[2] | sums[3];
  return all[0] | all[1];
}

// Baseline SSE2: pmullw and paddw, eight 16-bit products an instruction.
std::int64_t multiply(std::int64_t rounds, std::uint64_t* result) {
  Shorts sums[6] = {}, a = {1, 2, 3, 4, 5, 6, 7, 8}, b = {8, 7, 6, 5, 4, 3, 2, 1};
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (Shorts& sum : sums) {
      __asm__ volatile("" : "+x"(a));
      sum += a * b;
    }
  }
  *result = 0;
  for (const Shorts& sum : sums) *result += static_cast<std::uint16_t>(sum[0]);
  return rounds * 6 * 8;
}

}  // namespace

constinit const RoofKernels roof_scalar = {read, multiply};

}  // namespace splash::cpu
