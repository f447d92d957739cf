// Counter-based random numbers (Philox 4x32-10, Salmon et al., SC 2011): a number is a pure function of
// (seed, position, purpose), so it does not depend on lanes, batching, chunk cuts or restarts. constexpr also lets
// device code call it.
//
// Why one uniform per (position, purpose) is enough for speculative sampling: a position's uniforms decide the output
// only in the step that finally chooses its token. Earlier steps that drafted the same position were cut off before it
// by a rejection that does not depend on them.
#pragma once

#include <array>
#include <cstdint>

namespace splash {

enum class Purpose : std::uint32_t { draft = 0, accept = 1, residual = 2, plain = 3, test = 100 };

constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// Uniform in [0, 1) with 53 random bits.
constexpr double uniform(std::uint64_t seed, std::uint64_t position, Purpose purpose) {
  const auto word = philox4x32({static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32),
                                static_cast<std::uint32_t>(purpose), 0},
                               {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const std::uint64_t bits = (std::uint64_t{word[0]} << 32 | word[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace splash
