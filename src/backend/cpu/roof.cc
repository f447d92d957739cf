#include "backend/cpu/roof.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "backend/cpu/dispatch.h"
#include "backend/cpu/roof_kernels.h"
#include "base/check.h"

namespace splash::cpu {

namespace {

double seconds_of(ThreadPool& pool, auto&& body) {
  const auto begin = std::chrono::steady_clock::now();
  pool.run(body);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

Roof measure_roof(ThreadPool& pool, Isa isa) {
  const RoofKernels& kernels = kernels_for(isa, roof_scalar, roof_avx2, roof_avx512vnni);
  const int threads = pool.threads();
  // 512 MiB is several times any last-level cache that a handful of cores shares.
  const std::int64_t part = (std::int64_t{512} << 20) / threads / 4096 * 4096;
  const std::int64_t bytes = part * threads;
  void* memory = mmap(nullptr, static_cast<std::size_t>(bytes) + 8192, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  SPLASH_CHECK(memory != MAP_FAILED, "no memory to measure the read roof");
  madvise(memory, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  auto* data = static_cast<unsigned char*>(memory);
  pool.run([&](int thread) { std::memset(data + thread * part, thread + 1, static_cast<std::size_t>(part)); });

  std::atomic<std::uint64_t> sink = 0;
  std::atomic<std::int64_t> products = 0;
  Roof roof;
  for (int round = 0; round < 6; ++round) {
    const double read_s = seconds_of(pool, [&](int thread) { sink += kernels.read(data + thread * part, part); });
    roof.read_gb_s = std::max(roof.read_gb_s, static_cast<double>(bytes) / read_s * 1e-9);
    products = 0;
    const double multiply_s = seconds_of(pool, [&](int) {
      std::uint64_t result = 0;
      products += kernels.multiply(2'000'000, &result);
      sink += result;
    });
    roof.int8_gmac_s = std::max(roof.int8_gmac_s, static_cast<double>(products) / multiply_s * 1e-9);
  }
  munmap(memory, static_cast<std::size_t>(bytes) + 8192);
  return roof;
}

}  // namespace splash::cpu
