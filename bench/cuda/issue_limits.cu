#include "issue_limits.h"

#include <fmt/format.h>

#include <cstdint>

#include "backend/cuda/memory.h"
#include "backend/cuda/ptx.cuh"

namespace splash::bench {
namespace {

constexpr int warps = 16, unrolled = 8;
enum class Product { none, bf16, bytes };

__device__ __forceinline__ void multiply_bytes(int (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%8},{%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}

// What a warp does over and over: a product, `fmas` and `logics` operations that depend on neither it nor each other.
template <Product product, int fmas, int logics>
struct Work {
  float sums[unrolled][4] = {};
  int whole[unrolled][4] = {};
  float x[unrolled];
  std::uint32_t bits[unrolled], a[4], mask;
  float y;

  __device__ explicit Work(int seed) : mask(seed * 77), y(seed * 0.5f) {
    for (int i = 0; i < unrolled; ++i) x[i] = static_cast<float>(seed + i), bits[i] = seed * i;
    for (int i = 0; i < 4; ++i) a[i] = seed + i;
  }
  __device__ __forceinline__ void round() {
#pragma unroll
    for (int j = 0; j < unrolled; ++j) {
      if constexpr (product == Product::bf16) cuda::mma_bf16(sums[j], a[0], a[1], a[2], a[3], mask, mask);
      if constexpr (product == Product::bytes) multiply_bytes(whole[j], a, mask);
#pragma unroll
      for (int k = 0; k < fmas; ++k) asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(x[(j * fmas + k) % unrolled]) : "f"(y));
#pragma unroll
      for (int k = 0; k < logics; ++k)
        asm volatile("lop3.b32 %0, %0, %1, 0x43004300, 0xEA;" : "+r"(bits[(j * logics + k) % unrolled]) : "r"(mask));
    }
  }
  __device__ int result() const {
    int all = 0;
    for (int j = 0; j < unrolled; ++j)
      all += whole[j][0] + whole[j][1] + static_cast<int>(sums[j][0] + x[j]) + static_cast<int>(bits[j]);
    return all;
  }
};

template <Product product, int fmas, int logics>
__global__ void __launch_bounds__(warps * 32, 1) issue_kernel(int rounds, int seed, int* sink) {
  Work<product, fmas, logics> work(seed);
  for (int i = 0; i < rounds; ++i) work.round();
  sink[blockIdx.x * blockDim.x + threadIdx.x] = work.result();
}

// The last warp fetches; the others compute until it has done.
constexpr int stages = 4, tiles_per_stage = 64, stage_bytes = tiles_per_stage * 576, pieces = 16;
template <Product product, int fmas, int logics, bool beside>
__global__ void __launch_bounds__((warps + 1) * 32, 1)
    fetch_kernel(const std::uint8_t* from, int rounds, int seed, long long* cycles, int* sink) {
  extern __shared__ __align__(128) std::uint8_t memory[];
  __shared__ std::uint64_t barriers[stages];
  __shared__ volatile int done;
  if (threadIdx.x == 0) {
    for (std::uint64_t& barrier : barriers) cuda::barrier_init(cuda::shared_address(&barrier), 1);
    cuda::barrier_init_done();
    done = 0;
  }
  __syncthreads();
  const int lane = threadIdx.x % 32;
  if (threadIdx.x / 32 == warps) {
    const long long begun = clock64();
    for (int i = 0; i < rounds + stages; ++i) {
      const int stage = i % stages;
      const std::uint32_t barrier = cuda::shared_address(&barriers[stage]);
      if (i >= stages) cuda::barrier_wait(barrier, (i / stages - 1) & 1);
      if (i >= rounds) continue;
      if (lane == 0) cuda::barrier_expect(barrier, stage_bytes);
      __syncwarp();
      constexpr int piece = stage_bytes / pieces;
      if (lane < pieces) {
        cuda::bulk_copy(cuda::shared_address(memory + stage * stage_bytes + lane * piece),
                        from + (static_cast<std::int64_t>(blockIdx.x) * stages + stage) * stage_bytes + lane * piece, piece,
                        barrier);
      }
    }
    if (lane == 0) cycles[blockIdx.x] = clock64() - begun, done = 1;
    return;
  }
  if constexpr (beside) {
    Work<product, fmas, logics> work(seed);
    while (!done) work.round();
    sink[blockIdx.x * blockDim.x + threadIdx.x] = work.result();
  }
}

class Runs {
 public:
  explicit Runs(cuda::Stream& stream) : stream_(stream), blocks_(stream.facts().multiprocessors) {
    stream.reset();
    sink_ = stream.allocate<int>(static_cast<std::size_t>(blocks_) * (warps + 1) * 32);
    cycles_ = stream.allocate<long long>(blocks_);
    from_ = stream.allocate<std::uint8_t>(static_cast<std::size_t>(blocks_) * stages * stage_bytes);
    int khz = 0;
    stream.note(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, stream.facts().index), "clock");
    hertz_ = khz * 1e3;
    stream.note(cudaEventCreate(&begin_), "event");
    stream.note(cudaEventCreate(&end_), "event");
  }
  ~Runs() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Runs(const Runs&) = delete;
  Runs& operator=(const Runs&) = delete;

  template <Product product, int fmas, int logics>
  void issue(std::vector<Limit>& limits) {
    constexpr int rounds = 10000;
    float ms = 0;
    for (int i = 0; i < 2; ++i) {  // the second is warm
      stream_.note(cudaEventRecord(begin_, stream_.native()), "event");
      issue_kernel<product, fmas, logics><<<blocks_, warps * 32, 0, stream_.native()>>>(rounds, 1, sink_);
      stream_.note(cudaEventRecord(end_, stream_.native()), "event");
      stream_.note(cudaEventSynchronize(end_), "event");
      stream_.note(cudaEventElapsedTime(&ms, begin_, end_), "event");
    }
    limits.push_back({name<product, fmas, logics>(), ms * 1e-3 * hertz_ / (double{rounds} * unrolled * warps / 4)});
  }
  template <Product product, int fmas, int logics, bool beside>
  void fetch(std::vector<Limit>& limits) {
    constexpr int rounds = 500, shared = stages * stage_bytes;
    auto* kernel = fetch_kernel<product, fmas, logics, beside>;
    stream_.note(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "shared memory");
    std::vector<long long> cycles(blocks_);
    for (int i = 0; i < 2; ++i) {
      kernel<<<blocks_, (warps + 1) * 32, shared, stream_.native()>>>(from_, rounds, 1, cycles_, sink_);
      stream_.note(cudaMemcpyAsync(cycles.data(), cycles_, cycles.size() * sizeof cycles[0], cudaMemcpyDeviceToHost,
                                   stream_.native()),
                   "copy");
      stream_.note(cudaStreamSynchronize(stream_.native()), "fetch");
    }
    double all = 0;
    for (const long long one : cycles) all += static_cast<double>(one);
    limits.push_back({beside ? "fetching beside " + name<product, fmas, logics>() : "fetching alone",
                      all / blocks_ / rounds / tiles_per_stage});
  }

 private:
  template <Product product, int fmas, int logics>
  static std::string name() {
    return fmt::format("{}, {} fma, {} lop3",
                       product == Product::none ? "no product" : product == Product::bf16 ? "bf16 m16n8k16" : "bytes m16n8k32",
                       fmas, logics);
  }

  cuda::Stream& stream_;
  const int blocks_;
  double hertz_ = 0;
  int* sink_ = nullptr;
  long long* cycles_ = nullptr;
  std::uint8_t* from_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

std::vector<Limit> products_and_issue(cuda::Stream& stream) {
  std::vector<Limit> limits;
  Runs runs(stream);
  runs.issue<Product::none, 8, 0>(limits);
  runs.issue<Product::none, 0, 8>(limits);
  runs.issue<Product::none, 4, 4>(limits);
  runs.issue<Product::bf16, 0, 0>(limits);
  runs.issue<Product::bf16, 4, 0>(limits);
  runs.issue<Product::bf16, 8, 0>(limits);
  runs.issue<Product::bf16, 4, 4>(limits);
  runs.issue<Product::bytes, 0, 0>(limits);
  runs.issue<Product::bytes, 4, 0>(limits);
  runs.issue<Product::bytes, 8, 0>(limits);
  runs.issue<Product::bytes, 4, 4>(limits);
  return limits;
}

std::vector<Limit> fetching_beside_others(cuda::Stream& stream) {
  std::vector<Limit> limits;
  if (stream.portable()) return limits;
  Runs runs(stream);
  runs.fetch<Product::none, 0, 0, false>(limits);
  runs.fetch<Product::bytes, 0, 0, true>(limits);
  runs.fetch<Product::bytes, 8, 0, true>(limits);
  runs.fetch<Product::none, 8, 0, true>(limits);
  return limits;
}

}  // namespace splash::bench
