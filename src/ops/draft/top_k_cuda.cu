#include "backend/cuda/launch.h"
#include "backend/cuda/lines.cuh"
#include "ops/draft/draft_cuda.h"

namespace splash::ops {
namespace {

constexpr int parts = 32;
constexpr int threads = 256;
constexpr int most = 32;  // k

// Larger value first, then the lower id, as one unsigned number; NaN ranks as -infinity. Zero is below every entry.
__device__ __forceinline__ unsigned long long rank_of(float value, int id) {
  if (isnan(value)) value = -INFINITY;
  if (value == 0) value = 0;  // -0 and 0 are a tie
  std::uint32_t bits = __float_as_uint(value);
  bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(bits) << 32 | static_cast<std::uint32_t>(~id);
}
__device__ __forceinline__ float value_of(unsigned long long rank) {
  const std::uint32_t bits = static_cast<std::uint32_t>(rank >> 32);
  return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}
__device__ __forceinline__ int id_of(unsigned long long rank) { return static_cast<int>(~static_cast<std::uint32_t>(rank)); }

// Largest over the block below `bound`; each thread offers its own best.
__device__ __forceinline__ unsigned long long block_max(unsigned long long best, unsigned long long* scratch) {
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1) {
    const unsigned long long other = __shfl_xor_sync(0xffffffffu, best, distance);
    best = other > best ? other : best;
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = best;
  __syncthreads();
  best = scratch[0];
#pragma unroll
  for (int warp = 1; warp < threads / 32; ++warp) best = scratch[warp] > best ? scratch[warp] : best;
  __syncthreads();
  return best;
}

// k rounds: each finds the largest entry below the last one found. A thread rescans its entries only after it has won.
template <class Entry>
__device__ __forceinline__ void select(int count, int k, Entry entry, unsigned long long* scratch, unsigned long long* out) {
  auto scan = [&](unsigned long long bound) {
    unsigned long long best = 0;
    for (int i = threadIdx.x; i < count; i += threads) {
      const unsigned long long rank = entry(i);
      if (rank < bound && rank > best) best = rank;
    }
    return best;
  };
  unsigned long long mine = scan(~0ull);
  for (int round = 0; round < k; ++round) {
    const unsigned long long best = block_max(mine, scratch);
    if (threadIdx.x == 0) out[round] = best;
    if (best != 0 && mine == best) mine = scan(best);
  }
}

// Grid: parts x rows.
__global__ void __launch_bounds__(threads) top_k_parts(MatrixView<const float> logits, int limit, int k, unsigned long long* found) {
  extern __shared__ float held[];
  __shared__ unsigned long long scratch[threads / 32];
  cuda::begin_kernel();
  const int each = (limit + parts - 1) / parts, begin = blockIdx.x * each, count = max(0, min(each, limit - begin));
  const float* row = cuda::row_of(logits, blockIdx.y) + begin;
  for (int i = threadIdx.x; i < count; i += threads) held[i] = row[i];
  __syncthreads();
  select(count, k, [&](int i) { return rank_of(held[i], begin + i); }, scratch,
         found + (static_cast<std::int64_t>(blockIdx.y) * parts + blockIdx.x) * most);
}

__global__ void __launch_bounds__(threads) top_k_merge(const unsigned long long* found, int k, MatrixView<Token> tokens,
                                                       MatrixView<float> values) {
  __shared__ unsigned long long scratch[threads / 32], result[most];
  cuda::begin_kernel();
  const unsigned long long* candidates = found + static_cast<std::int64_t>(blockIdx.x) * parts * most;
  select(parts * k, k, [&](int i) { return candidates[i / k * most + i % k]; }, scratch, result);
  __syncthreads();
  if (threadIdx.x < k) {
    cuda::row_of(tokens, blockIdx.x)[threadIdx.x] = id_of(result[threadIdx.x]);
    cuda::row_of(values, blockIdx.x)[threadIdx.x] = value_of(result[threadIdx.x]);
  }
}

}  // namespace

void top_k(cuda::Stream& stream, MatrixView<const float> logits, int limit, MatrixView<Token> tokens,
           MatrixView<float> values) {
  const int k = tokens.cols;
  SPLASH_CHECK(k >= 1 && k <= most && k <= limit && limit <= logits.cols && values.cols == k);
  auto* found = stream.allocate<unsigned long long>(static_cast<std::size_t>(logits.rows) * parts * most);
  const std::size_t bytes = static_cast<std::size_t>((limit + parts - 1) / parts) * sizeof(float);
  cuda::allow_shared(stream, top_k_parts, bytes);
  cuda::launch(stream, "top_k parts", {dim3(parts, logits.rows), dim3(threads), bytes}, top_k_parts, logits, limit, k, found);
  cuda::launch(stream, "top_k merge", {dim3(logits.rows), dim3(threads)}, top_k_merge, static_cast<const unsigned long long*>(found), k,
               tokens, values);
}

}  // namespace splash::ops
