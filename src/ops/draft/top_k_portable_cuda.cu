#include <climits>

#include "backend/cuda/launch.h"
#include "backend/cuda/lines.cuh"
#include "ops/draft/top_k_portable_cuda.h"
#include "ops/order_key.cuh"

// Every warp finds the k largest of its own entries in registers, k rounds of "largest key, lowest id", without a block
// barrier: 1024 entries of a row per warp first, then the warps' finds, then the last eight lists.

namespace splash::ops {
namespace lists {
namespace {

constexpr int warps = 8;
constexpr int threads = warps * 32;
constexpr int per_lane = 32;  // entries of a lane in the first pass
constexpr int per_warp = per_lane * 32;
constexpr int most = 32;  // k

struct Found {
  std::uint32_t key;
  int id;
};

// id(j): the id of this lane's entry j. emit(round, found) is called by all lanes.
template <int each, class Id, class Emit>
__device__ __forceinline__ void select(std::uint32_t (&keys)[each], int k, Id id, Emit emit) {
  for (int round = 0; round < k; ++round) {
    std::uint32_t mine = 0;
#pragma unroll
    for (int j = 0; j < each; ++j) mine = max(mine, keys[j]);
    const std::uint32_t top = __reduce_max_sync(0xffffffffu, mine);
    int lowest = INT_MAX;
#pragma unroll
    for (int j = 0; j < each; ++j) {
      if (keys[j] == top) lowest = min(lowest, id(j));
    }
    const int winner = __reduce_min_sync(0xffffffffu, lowest);
#pragma unroll
    for (int j = 0; j < each; ++j) {
      if (keys[j] == top && id(j) == winner) keys[j] = 0;
    }
    emit(round, Found{top, winner});
  }
}

// Grid: parts of 8192 entries x rows. found: [row][part * 8 + warp][k].
__global__ void __launch_bounds__(threads, 2)
    top_k_parts(MatrixView<const float> logits, int limit, int k, Found* found) {
  cuda::begin_kernel();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, list = blockIdx.x * warps + warp;
  const int first = list * per_warp + lane;
  const float* row = cuda::row_of(logits, blockIdx.y);
  std::uint32_t keys[per_lane];
#pragma unroll
  for (int j = 0; j < per_lane; ++j) keys[j] = first + j * 32 < limit ? key_of(__ldg(row + first + j * 32)) : 0;
  Found* out = found + (static_cast<std::int64_t>(blockIdx.y) * gridDim.x * warps + list) * k;
  select(
      keys, k, [&](int j) { return first + j * 32; },
      [&](int round, Found one) {
        if (lane == 0) out[round] = one;
      });
}

// One block per row: lists * k finds, at most per_warp for each warp.
template <int each>
__global__ void __launch_bounds__(threads)
    top_k_merge(const Found* found, int lists, int k, MatrixView<Token> tokens, MatrixView<float> values) {
  __shared__ Found best[warps * most];
  cuda::begin_kernel();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, count = lists * k;
  const Found* row = found + static_cast<std::int64_t>(blockIdx.x) * count;
  std::uint32_t keys[each];
  int ids[each];
#pragma unroll
  for (int j = 0; j < each; ++j) {
    const int at = (j * warps + warp) * 32 + lane;
    const Found one = at < count ? row[at] : Found{0, INT_MAX};
    keys[j] = one.key, ids[j] = one.id;
  }
  select(
      keys, k, [&](int j) { return ids[j]; },
      [&](int round, Found one) {
        if (lane == 0) best[warp * k + round] = one;
      });
  __syncthreads();
  if (warp != 0) return;
  std::uint32_t last[warps * most / 32];
  int last_ids[warps * most / 32];
#pragma unroll
  for (int j = 0; j < warps * most / 32; ++j) {
    const int at = j * 32 + lane;
    last[j] = at < warps * k ? best[at].key : 0, last_ids[j] = at < warps * k ? best[at].id : INT_MAX;
  }
  select(
      last, k, [&](int j) { return last_ids[j]; },
      [&](int round, Found one) {
        if (lane != 0) return;
        cuda::row_of(tokens, blockIdx.x)[round] = one.id;
        cuda::row_of(values, blockIdx.x)[round] = value_of(one.key);
      });
}

void run(cuda::Stream& stream, MatrixView<const float> logits, int limit, MatrixView<Token> tokens,
         MatrixView<float> values) {
  const int k = tokens.cols, parts = (limit + per_warp * warps - 1) / (per_warp * warps), lists = parts * warps;
  SPLASH_CHECK(k >= 1 && k <= most && k <= limit && limit <= logits.cols && values.cols == k);
  auto* found = stream.allocate<Found>(static_cast<std::size_t>(logits.rows) * lists * k);
  cuda::launch(stream, "top_k parts", {dim3(parts, logits.rows), dim3(threads)}, top_k_parts, logits, limit, k, found);
  const int each = (lists * k + threads - 1) / threads;
  const cuda::Grid grid{dim3(logits.rows), dim3(threads)};
  const Found* lists_found = found;
  if (each <= 1)
    return cuda::launch(stream, "top_k merge", grid, top_k_merge<1>, lists_found, lists, k, tokens, values);
  if (each <= 16)
    return cuda::launch(stream, "top_k merge", grid, top_k_merge<16>, lists_found, lists, k, tokens, values);
  SPLASH_CHECK(each <= 32, "a vocabulary of {} with k = {} is too large for the merge", limit, k);
  cuda::launch(stream, "top_k merge", grid, top_k_merge<32>, lists_found, lists, k, tokens, values);
}

}  // namespace
}  // namespace lists

void top_k_portable(cuda::Stream& stream, MatrixView<const float> logits, int limit, MatrixView<Token> tokens,
                    MatrixView<float> values) {
  lists::run(stream, logits, limit, tokens, values);
}

}  // namespace splash::ops
