// The chunks of a tile in order, then the gate: behind both kernels of attention that cut tiles at their chunks.
#pragma once

#include "backend/cuda/launch.h"
#include "ops/attention/attention_cuda.cuh"

namespace splash::ops::paged {

constexpr int merge_threads = dim / 2;  // two dims each

// Partial sums as fp16: w <= 1 and codes within 127, so those of 2,048 positions, which no chunk exceeds, fit as eighths.
constexpr float half_sum_unit = 8;
__device__ __forceinline__ std::uint32_t to_half_sums(float2 sums) {
  return cuda::pack_fp16(sums.x * (1 / half_sum_unit), sums.y * (1 / half_sum_unit));
}
__device__ __forceinline__ float2 of_half_sums(std::uint32_t word) {
  const float2 eighths = __half22float2(*reinterpret_cast<const __half2*>(&word));
  return make_float2(eighths.x * half_sum_unit, eighths.y * half_sum_unit);
}

__device__ __forceinline__ float2 load_pair(std::uint64_t from) {
  float2 pair;
  asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "l"(from));
  return pair;
}
// Two dims of a chunk's sums, as they lie in memory.
template <bool halves>
struct ChunkSums {
  float2 sums = make_float2(-0.0f, -0.0f);  // what is not there adds -0, which changes nothing
  __device__ __forceinline__ void load(std::uint64_t from) { sums = load_pair(from); }
  __device__ __forceinline__ float2 get() const { return sums; }
};
template <>
struct ChunkSums<true> {
  std::uint32_t word = 0x80008000u;
  __device__ __forceinline__ void load(std::uint64_t from) {
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(word) : "l"(from));
  }
  __device__ __forceinline__ float2 get() const { return of_half_sums(word); }
};

// Grid: query rows of a tile x (tiles * kv heads) x segments. Partial sums wait in registers: blocks of the linear that
// comes next, which want most of a multiprocessor's shared memory, can be there before these are done. What a chunk keeps
// of those before it and what it adds follows from the maxima up to it, so a thread each finds them side by side,
// a round of as many as there are threads after the other.
template <class Kind, bool halves>
__global__ void __launch_bounds__(merge_threads, 6) merge_kernel(const __grid_constant__ Arguments args) {
  constexpr int merged_at_once = halves ? 40 : 20, pair_bytes = halves ? 4 : 8;
  constexpr int rounds = (Kind::most_chunks + merge_threads - 1) / merge_threads;
  static_assert(merge_threads % 4 == 0 && merged_at_once % 4 == 0);
  __shared__ float4 shares[rounds * merge_threads];  // kept, added, sum
  __shared__ float tops[merge_threads / 32];
  cuda::dependents_may_start();
  const SegmentEntry segment = args.segments[blockIdx.z];
  const int m = blockIdx.x, thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  int kv_head = blockIdx.y, first = 0;
  if (args.tiles > 1) {
    kv_head = blockIdx.y % args.kv_heads;
    first = (args.tiles - 1 - static_cast<int>(blockIdx.y) / args.kv_heads) * args.tile_rows;
  }
  const int rows = min(args.tile_rows, segment.rows - first), in_tile = m * args.group_inverse >> 16;
  if (in_tile >= rows) return;
  const int chunks = args.slots == 1 ? 1 : Kind::chunks_for(segment.position + first + rows);
  const std::int64_t base =
      (static_cast<std::int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * args.slots * args.part_rows + m;
  const int row = segment.first_row + first + in_tile, head = kv_head * args.group + m - in_tile * args.group;
  // A warp's 64 dims leave it as sixteen half lines.
  const int column = head * dim + warp * 64 + lane % 16 * 4;
  // As numbers, or the compiler works them out from scratch for each chunk behind the wait.
  std::uint64_t from = reinterpret_cast<std::uint64_t>(args.partials) + (base * (dim / 2) + thread) * pair_bytes;
  std::uint64_t stats_from = reinterpret_cast<std::uint64_t>(args.stats + (base + std::int64_t{thread} * args.part_rows) * 2);
  asm volatile("" : "+l"(from), "+l"(stats_from));
  const unsigned step = args.part_rows * (dim / 2) * pair_bytes, stats_step = args.part_rows * merge_threads * 8;
  cuda::wait_for_predecessors();
  float2 stats[rounds];
#pragma unroll
  for (int r = 0; r < rounds; ++r) {
    stats[r] = make_float2(-INFINITY, 0);
    if (thread + r * merge_threads < chunks) stats[r] = load_pair(stats_from + std::uint64_t{stats_step} * r);
  }
  ChunkSums<halves> values[merged_at_once];
  auto read = [&](int begin) {
#pragma unroll
    for (int i = 0; i < merged_at_once; ++i) {
      values[i] = {};
      if (begin + i < chunks) values[i].load(from + std::uint64_t{step} * i);
    }
    from += std::uint64_t{step} * merged_at_once;
  };
  read(0);
  const float4 gate = *reinterpret_cast<const float4*>(cuda::row_of(args.rows.q_gate, row) + column + (head + 1) * dim);
  // The largest of the chunks up to this one, and of those before it.
  float earlier = -INFINITY;  // of the rounds before
#pragma unroll
  for (int r = 0; r < rounds; ++r) {
    if (r > 0) {
      if (chunks <= r * merge_threads) break;
      __syncthreads();  // the round before has been read
    }
    const int chunk = r * merge_threads + thread;
    float top = stats[r].x;
#pragma unroll
    for (int distance = 1; distance < 32; distance <<= 1) {
      const float other = __shfl_up_sync(0xffffffffu, top, distance);
      if (lane >= distance) top = fmaxf(top, other);
    }
    if (lane == 31) tops[warp] = top;
    float before = __shfl_up_sync(0xffffffffu, top, 1);
    if (lane == 0) before = -INFINITY;
    __syncthreads();
    top = fmaxf(top, earlier), before = fmaxf(before, earlier);
#pragma unroll
    for (int w = 0; w < merge_threads / 32; ++w) {
      const float other = tops[w];
      if (w < warp) top = fmaxf(top, other), before = fmaxf(before, other);
      if (r + 1 < rounds) earlier = fmaxf(earlier, other);
    }
    shares[chunk] = chunk < chunks ? make_float4(power(before, top), power(stats[r].x, top), stats[r].y, 0)
                                   : make_float4(1, 1, -0.0f, 0);
  }
  __syncthreads();
  float sum = -0.0f;
  float2 out = make_float2(-0.0f, -0.0f);
#pragma unroll 1
  for (int begin = 0;;) {
    constexpr int together = 4;
#pragma unroll
    for (int i = 0; i < merged_at_once; i += together) {
      if (begin + i >= chunks) break;
#pragma unroll
      for (int j = i; j < i + together; ++j) {
        const float4 share = shares[begin + j];
        const float2 value = values[j].get();
        sum = fmaf(sum, share.x, __fmul_rn(share.z, share.y));
        out.x = fmaf(out.x, share.x, __fmul_rn(value.x, share.y));
        out.y = fmaf(out.y, share.x, __fmul_rn(value.y, share.y));
      }
    }
    begin += merged_at_once;
    if (begin >= chunks) break;
    read(begin);
  }
  const float inverse_sum = 1.0f / sum;
  float line[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) line[i] = __shfl_sync(0xffffffffu, i % 2 ? out.y : out.x, lane % 16 * 2 + i / 2);
  if (lane >= 16) return;
  line[0] = gated_value(line[0], inverse_sum, gate.x), line[1] = gated_value(line[1], inverse_sum, gate.y);
  line[2] = gated_value(line[2], inverse_sum, gate.z), line[3] = gated_value(line[3], inverse_sum, gate.w);
  *reinterpret_cast<float4*>(cuda::row_of(args.out, row) + column) = make_float4(line[0], line[1], line[2], line[3]);
  cuda::store_half_line(args.panel, row, column, line);
}

template <class Kind, bool halves>
void launch_merge(cuda::Stream& stream, const Arguments& args, int pairs, int segments) {
  cuda::launch(stream, "attention merge", {dim3(args.part_rows, pairs, segments), dim3(merge_threads)},
               merge_kernel<Kind, halves>, args);
}

}  // namespace splash::ops::paged
