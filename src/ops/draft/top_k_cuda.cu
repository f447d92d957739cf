#include "backend/cuda/launch.h"
#include "backend/cuda/lines.cuh"
#include "ops/draft/draft_cuda.h"
#include "ops/draft/top_k_portable_cuda.h"
#include "ops/order_key.cuh"

// A cluster of eight blocks per row, a thread up to 32 entries in registers: the row is read once, and two lower bounds
// leave almost nothing to sort. The k-th largest of a block's 32 warp maxima is one (at least k entries reach it, of random
// logits about 1.4 k do); those that do are ranked by counting. The first block ranks the finds of all eight.
// Bytes: the row once (1 MB of 248,320 logits, out of the L2 behind the head).

namespace splash::ops {
namespace {

constexpr int blocks = 8;  // of a cluster
constexpr int warps = 32;
constexpr int threads = warps * 32;
constexpr int each = 32;  // entries of a thread, at most
constexpr int most = 32;  // k
constexpr int most_entries = blocks * threads * each;

// Value and id in one number: no two entries of a row are equal, the larger one ranks first (ties: the lower id).
using Rank = unsigned long long;
__device__ __forceinline__ Rank rank_of(std::uint32_t key, int id) {
  return static_cast<Rank>(key) << 32 | ~static_cast<std::uint32_t>(id);
}
__device__ __forceinline__ std::uint32_t key_in(Rank rank) { return static_cast<std::uint32_t>(rank >> 32); }
__device__ __forceinline__ int id_in(Rank rank) { return static_cast<int>(~static_cast<std::uint32_t>(rank)); }
__device__ __forceinline__ Rank warp_largest(Rank rank) {
  const std::uint32_t top = __reduce_max_sync(0xffffffffu, key_in(rank));
  const auto low = key_in(rank) == top ? static_cast<std::uint32_t>(rank) : 0u;
  return static_cast<Rank>(top) << 32 | __reduce_max_sync(0xffffffffu, low);
}
// How many of `count` ranks are larger.
__device__ __forceinline__ int larger(const Rank* ranks, int count, Rank than) {
  int larger = 0;
#pragma unroll 8
  for (int i = 0; i < count; ++i) larger += ranks[i] > than;
  return larger;
}

constexpr int most_candidates = 1024;
struct Shared {
  Rank heads[warps];
  Rank candidates[most_candidates];
  Rank lists[blocks * most];  // of the first block: the finds of all, written by their blocks
  int count;
  std::uint64_t arrived;  // of the first block: all finds are in its lists
};

// Grid: eight blocks x rows.
__global__ void __launch_bounds__(threads, 1)
    top_k_kernel(MatrixView<const float> logits, int limit, int k, MatrixView<Token> tokens, MatrixView<float> values) {
  if constexpr (!cuda::hopper_code) return;  // top_k_portable_cuda.cu is in its place
  __shared__ Shared shared;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned block = cuda::cluster_rank();
  if (threadIdx.x == 0) {
    shared.count = 0;
    cuda::barrier_init(cuda::shared_address(&shared.arrived), 1);
    cuda::barrier_init_done();
    cuda::barrier_expect(cuda::shared_address(&shared.arrived), blocks * k * sizeof(Rank));
  }
  cuda::cluster_arrive();  // every block is there before one writes into another
  cuda::begin_kernel();
  const int row = blockIdx.y, slice = (limit + blocks - 1) / blocks, first = static_cast<int>(block) * slice,
            own = first + static_cast<int>(threadIdx.x), left = min(limit, first + slice) - own;
  const float* from = cuda::row_of(logits, row) + own;
  const auto id = [&](int j) { return own + j * threads; };
  std::uint32_t keys[each];
#pragma unroll
  for (int j = 0; j < each; ++j) keys[j] = j * threads < left ? __float_as_uint(from[j * threads]) : 0;
#pragma unroll
  for (int j = 0; j < each; ++j) keys[j] = j * threads < left ? key_of(__uint_as_float(keys[j])) : 0;
  // Of this thread's entries; 0: none. Of equal keys below the bound's the lowest id, which is the first.
  const auto largest_below = [&](Rank bound) {
    std::uint32_t key = 0;
    int best = 0;
    const int tie = (id_in(bound) - own) / threads;  // entries of the bound's key count behind this one
    const bool behind = id_in(bound) >= own;
#pragma unroll
    for (int j = 0; j < each; ++j) {
      const bool below = keys[j] < key_in(bound) || (keys[j] == key_in(bound) && (!behind || j > tie));
      if (below && keys[j] > key) key = keys[j], best = j;
    }
    return key ? rank_of(key, id(best)) : Rank{0};
  };
  std::uint32_t top[4] = {keys[0], keys[1], keys[2], keys[3]};
#pragma unroll
  for (int j = 4; j < each; ++j) top[j % 4] = max(top[j % 4], keys[j]);
  const std::uint32_t mine = max(max(top[0], top[1]), max(top[2], top[3]));
  int lowest = 0;
#pragma unroll
  for (int j = each - 1; j >= 0; --j) lowest = keys[j] == mine ? j : lowest;
  const Rank head = warp_largest(mine ? rank_of(mine, id(lowest)) : 0);
  if (lane == 0) shared.heads[warp] = head;
  __syncthreads();
  const Rank other = shared.heads[lane];
  const unsigned is_floor = __ballot_sync(0xffffffffu, larger(shared.heads, warps, other) == k - 1);
  // Fewer than k warps with an entry: every entry counts.
  const Rank floor = is_floor ? shared.heads[__ffs(is_floor) - 1] : 0;
  const std::uint32_t floor_key = max(key_in(floor), 1u);
#pragma unroll
  for (int j = 0; j < each; ++j) {
    if (keys[j] < floor_key) continue;
    const Rank rank = rank_of(keys[j], id(j));
    if (rank < floor) continue;
    const int at = atomicAdd(&shared.count, 1);
    if (at < most_candidates) shared.candidates[at] = rank;
  }
  __syncthreads();
  const int count = shared.count;
  cuda::cluster_wait();
  const auto send = [&](int at, Rank rank) { 
    cuda::store_to_peer(&shared.lists[static_cast<int>(block) * k + at], &shared.arrived, 0, rank);
  };
  if (count <= most_candidates) {
    for (int i = threadIdx.x; i < count; i += threads) {
      const Rank rank = shared.candidates[i];
      const int at = larger(shared.candidates, count, rank);
      if (at < k) send(at, rank);
    }
    if (static_cast<int>(threadIdx.x) < k && static_cast<int>(threadIdx.x) >= count) send(threadIdx.x, 0);
  } else {  // large entries in few warps, thousands of them: one round for each find
    Rank last = ~Rank{0};
    for (int at = 0; at < k; ++at) {
      const Rank best = warp_largest(largest_below(last));
      if (lane == 0) shared.heads[warp] = best;
      __syncthreads();
      last = warp_largest(shared.heads[lane]);
      __syncthreads();
      if (threadIdx.x == 0) send(at, last);
    }
  }
  if (block != 0 || static_cast<int>(threadIdx.x) >= blocks * k) return;
  cuda::barrier_wait(cuda::shared_address(&shared.arrived), 0);
  const Rank rank = shared.lists[threadIdx.x];
  const int at = larger(shared.lists, blocks * k, rank);
  if (rank == 0 || at >= k) return;
  cuda::row_of(tokens, row)[at] = id_in(rank);
  cuda::row_of(values, row)[at] = value_of(key_in(rank));
}

// The largest alone: eight blocks per row as well, but small ones, four a multiprocessor, so that 64 rows are there at
// once.
constexpr int one_threads = 512;
__global__ void __launch_bounds__(one_threads, 4)
    top_1_kernel(MatrixView<const float> logits, int limit, MatrixView<Token> tokens, MatrixView<float> values) {
  if constexpr (!cuda::hopper_code) return;
  __shared__ Rank of_warps[one_threads / 32], of_blocks[blocks];
  __shared__ std::uint64_t arrived;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = static_cast<int>(cuda::cluster_rank());
  if (threadIdx.x == 0) {
    cuda::barrier_init(cuda::shared_address(&arrived), 1);
    cuda::barrier_init_done();
    cuda::barrier_expect(cuda::shared_address(&arrived), blocks * sizeof(Rank));
  }
  cuda::cluster_arrive();  // every block is there before one writes into another
  cuda::begin_kernel();
  const int slice = (limit + blocks - 1) / blocks, end = min(limit, (block + 1) * slice);
  int id = block * slice + static_cast<int>(threadIdx.x);
  const float* from = cuda::row_of(logits, blockIdx.y) + id;
  // The first of equals stays, as does the first of all where none is above -infinity.
  float best = -INFINITY;
  int best_id = id < end ? id : -1;
  constexpr int together = 8;
#pragma unroll 1
  for (; id < end; id += together * one_threads, from += together * one_threads) {
    float some[together];
#pragma unroll
    for (int j = 0; j < together; ++j) some[j] = id + j * one_threads < end ? from[j * one_threads] : -INFINITY;
#pragma unroll
    for (int j = 0; j < together; ++j) {
      if (some[j] > best) best = some[j], best_id = id + j * one_threads;
    }
  }
  Rank rank = warp_largest(best_id >= 0 ? rank_of(key_of(best), best_id) : 0);
  if (lane == 0) of_warps[warp] = rank;
  __syncthreads();
  cuda::cluster_wait();
  if (warp != 0) return;
  rank = warp_largest(lane < one_threads / 32 ? of_warps[lane] : 0);
  if (lane == 0) cuda::store_to_peer(&of_blocks[block], &arrived, 0, rank);
  if (block != 0) return;
  cuda::barrier_wait(cuda::shared_address(&arrived), 0);
  rank = warp_largest(lane < blocks ? of_blocks[lane] : 0);
  if (lane != 0) return;
  cuda::row_of(tokens, blockIdx.y)[0] = id_in(rank);
  cuda::row_of(values, blockIdx.y)[0] = value_of(key_in(rank));
}

}  // namespace

void top_k(cuda::Stream& stream, MatrixView<const float> logits, int limit, MatrixView<Token> tokens,
           MatrixView<float> values) {
  const int k = tokens.cols;
  SPLASH_CHECK(k >= 1 && k <= most && k <= limit && limit <= logits.cols && values.cols == k);
  if (stream.portable()) return top_k_portable(stream, logits, limit, tokens, values);
  if (k == 1) {
    cuda::launch(stream, "top_1", {dim3(blocks, logits.rows), dim3(one_threads), 0, blocks}, top_1_kernel, logits, limit,
                 tokens, values);
    return;
  }
  SPLASH_CHECK(limit <= most_entries, "a vocabulary of {} is too large for a cluster's registers", limit);
  cuda::launch(stream, "top_k", {dim3(blocks, logits.rows), dim3(threads), 0, blocks}, top_k_kernel, logits, limit, k,
               tokens, values);
}

}  // namespace splash::ops
