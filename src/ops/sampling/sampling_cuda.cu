#include "backend/cuda/launch.h"
#include "backend/cuda/lines.cuh"
#include "ops/sampling/sampling_cuda.h"

namespace splash::ops {
namespace {

constexpr int most_candidates = 16;

__device__ __forceinline__ float table_at(const pack::Table& table, int row, int col) {
  const std::int64_t index = static_cast<std::int64_t>(row) * table.cols + col;
  return table.format == pack::Format::bf16
             ? cuda::bf16_at(reinterpret_cast<const std::uint8_t*>(table.data) + index * 2)
             : reinterpret_cast<const float*>(table.data)[index];
}

// A block per lane, a warp per candidate: S(a, b) = U(b) + sum_r A[a,r] g[r] B[b,r].
__global__ void __launch_bounds__(most_candidates * 32) walk_kernel(const __grid_constant__ GreedyWalk walk) {
  __shared__ float scores[most_candidates];
  __shared__ Token predecessor;
  cuda::begin_kernel();
  const int lane_index = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, k = walk.candidates.cols;
  Token* tokens = walk.tokens + lane_index * (walk.slots + 1);
  if (threadIdx.x == 0) predecessor = tokens[0];
  __syncthreads();
  for (int slot = 0; slot < walk.slots; ++slot) {
    const int row = lane_index * walk.slots + slot;
    if (warp < k) {
      const Token candidate = cuda::row_of(walk.candidates, row)[warp];
      float sum = 0;
      for (int r = lane; r < walk.projections.cols; r += 32) {
        sum = fmaf(table_at(walk.weights.predecessor, predecessor, r) * cuda::row_of(walk.projections, row)[r],
                   table_at(walk.weights.successor, candidate, r), sum);
      }
#pragma unroll
      for (int distance = 16; distance > 0; distance >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
      if (lane == 0) scores[warp] = cuda::row_of(walk.values, row)[warp] + sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int best = 0;
      for (int i = 1; i < k; ++i) {  // ties to the lower id
        const Token id = cuda::row_of(walk.candidates, row)[i], best_id = cuda::row_of(walk.candidates, row)[best];
        if (scores[i] > scores[best] || (scores[i] == scores[best] && id < best_id)) best = i;
      }
      predecessor = cuda::row_of(walk.candidates, row)[best];
      tokens[slot + 1] = predecessor;
    }
    __syncthreads();
  }
}

__global__ void accept_kernel(const __grid_constant__ GreedyAcceptance args) {
  cuda::begin_kernel();
  const int lane = threadIdx.x;
  if (lane >= args.lanes) return;
  Token* tokens = args.tokens + lane * (args.slots + 1);
  int* result = args.results + lane * (args.slots + 2);
  int accepted = 0;
  auto chosen = [&](int row) { return cuda::row_of(args.chosen, lane * (args.slots + 1) + row)[0]; };
  while (accepted < args.slots && tokens[accepted + 1] == chosen(accepted)) {
    result[1 + accepted] = tokens[accepted + 1];
    ++accepted;
  }
  const Token next = chosen(accepted);
  result[0] = accepted + 1;
  result[1 + accepted] = next;
  tokens[0] = next;
  *args.kept[lane] = accepted + 1;
  if (args.positions) args.positions[lane] += accepted + 1;
}

}  // namespace

void selector_walk_greedy(cuda::Stream& stream, const GreedyWalk& walk) {
  SPLASH_CHECK(walk.candidates.cols <= most_candidates && walk.candidates.rows == walk.lanes * walk.slots);
  cuda::launch(stream, "selector walk", {dim3(walk.lanes), dim3(most_candidates * 32)}, walk_kernel, walk);
}

void accept_greedy(cuda::Stream& stream, const GreedyAcceptance& acceptance) {
  SPLASH_CHECK(acceptance.lanes <= 32);
  cuda::launch(stream, "accept", {dim3(1), dim3(32)}, accept_kernel, acceptance);
}

}  // namespace splash::ops
