// Laws as integer weights: what the kernels of law_cuda.cu share.
#pragma once

#include <climits>

#include "backend/cuda/lines.cuh"
#include "base/rng.h"
#include "ops/order_key.cuh"
#include "ops/sampling/law_cuda.h"

namespace splash::ops::law {

using Weight = unsigned long long;
constexpr Weight one = Weight{1} << 45;  // of the most probable token; 2^18 ids still fit 63 bits
constexpr int most = most_candidates_cuda;

// Relative probability: 1 for the top, 0 for NaN and -infinity.
__device__ __forceinline__ float relative(float logit, float top, float temperature) {
  return logit > -INFINITY ? expf((logit - top) / temperature) : 0.0f;
}
__device__ __forceinline__ Weight weight_of(float relative) {
  return __double2ull_rn(static_cast<double>(relative) * static_cast<double>(one));
}

// Mass that must have been seen before the nucleus ends; at least one token is kept.
__device__ __forceinline__ Weight nucleus_target(float top_p, Weight total) {
  const Weight target = __double2ull_ru(static_cast<double>(top_p) * __ull2double_rn(total));
  return target > 0 ? target : 1;
}

// The part of a target weight that a proposal's law covers.
__device__ __forceinline__ Weight covered(const SlotLaw& law, Token id, Weight weight, Weight total) {
  for (int i = 0; i < law.count; ++i) {
    if (law.ids[i] != id) continue;
    const double q = __ull2double_rn(law.weights[i]) / __ull2double_rn(law.total);
    const Weight part = __double2ull_rn(q * __ull2double_rn(total));
    return part < weight ? part : weight;
  }
  return 0;
}
__device__ __forceinline__ double probability(const SlotLaw& law, Token id) {
  for (int i = 0; i < law.count; ++i) {
    if (law.ids[i] == id) return __ull2double_rn(law.weights[i]) / __ull2double_rn(law.total);
  }
  return 0;
}

// The unit of mass that inversion hits, in [0, total).
__device__ __forceinline__ Weight hit(double u, Weight total) {
  const Weight at = __double2ull_rz(u * __ull2double_rn(total));
  return at < total ? at : total - 1;
}

__device__ __forceinline__ Weight warp_sum(Weight value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}
__device__ __forceinline__ Weight warp_prefix(Weight value) {  // inclusive
#pragma unroll
  for (int distance = 1; distance < 32; distance <<= 1) {
    const Weight below = __shfl_up_sync(0xffffffffu, value, distance);
    if (static_cast<int>(threadIdx.x % 32) >= distance) value += below;
  }
  return value;
}
// How many lanes hold a lower id.
__device__ __forceinline__ int id_rank(Token id) {
  int rank = 0;
#pragma unroll
  for (int lane = 0; lane < 32; ++lane) rank += __shfl_sync(0xffffffffu, id, lane) < id;
  return rank;
}

// Ends a lane's step: tokens[1..accepted] and `next` are chosen, cut after the first stop token and at the budget.
__device__ inline void finish(const StepAcceptance& args, int lane_index, int accepted, Token next) {
  const LaneChoice& choice = args.choices[lane_index];
  const Token* tokens = args.tokens + lane_index * args.width;
  LaneChosen& out = args.chosen[lane_index];
  if (next < 0) next = choice.stop_count > 0 ? choice.stops[0] : 0;  // nothing is allowed: the reply ends
  const auto write = [&](LaneChosen::Word& to, std::int32_t value) {
    cuda::store_volatile(reinterpret_cast<uint2*>(&to), make_uint2(static_cast<unsigned>(value), choice.ticket));
  };
  int count = 0;
  bool stopped = false;
  while (!stopped && count <= accepted && count < choice.budget) {
    const Token token = count < accepted ? tokens[count + 1] : next;
    write(out.tokens[count++], token);
    for (int i = 0; i < choice.stop_count; ++i) stopped = stopped || choice.stops[i] == token;
  }
  write(out.count, count);
  if (args.kept) args.kept[choice.lane] = count;
  for (int layer = 0; layer < args.context_layers; ++layer)
    args.contexts[layer * args.context_stride + lane_index].rows = count;
}

}  // namespace splash::ops::law
