// Attention of wide passes (prefill) on the GPU: flash attention on wgmma over int8 pages.
//
// A block has a tile of 128 query rows: rows of the pass times the query heads of one kv head, which share every key.
// Two consumer warp groups hold 64 query rows each with their 64 x 256 sums in registers; a producer warp group reads
// pages into registers a block of 64 positions ahead, turns codes into fp16 (exactly) and stores them as core matrices,
// so that they are unpacked once for all rows of the tile. Scores are scaled by the key's scale, weights carry the
// value's:
//   w = 2^(s + log2(value scale) - maximum) <= 1 in fp16,  denominator = sum w / value scale,
// one power per score, and no overflow whatever the scales.
//
// Per block of positions 2 x 1024 cycles of the matrix unit; shared memory moves 128 KB for QK, 64 KB for PV and 64 KB of
// unpacked codes, about 2,200 cycles: both near their roofs, so a warp group's softmax must hide behind the other's
// products, and nothing else may touch shared memory much.
//
// Order of sums: blocks of 64 by absolute position inside chunks by absolute position; chunks in order, in the block
// itself or in a kernel behind it, by the same operations. So a row's bits depend neither on the tile it falls into nor
// on splits.
#include <algorithm>

#include "backend/cuda/wgmma.cuh"
#include "ops/attention/attention_merge.cuh"
#include "ops/attention/attention_tiles_cuda.h"

namespace splash::ops::paged {
namespace {

constexpr int stages = 2;
constexpr int cores_bytes = 4096;  // eight rows of 256 fp16 as 32 core matrices
constexpr int group_threads = 128;
constexpr int tile_threads = 3 * group_threads;

constexpr int consumers = 2;  // warp groups, beside one producer
constexpr int consumer_registers = 208, producer_registers = 88;
constexpr int tile_query_rows = consumers * 64;

struct Wide {
  // Chunks long enough that merging them costs little, few enough that their sums fit when a short pass is split.
  static constexpr int most_chunks = 36;
  __host__ __device__ static constexpr int chunk_begin(int chunk) {
    return chunk < 8 ? chunk * 4096 : 32768 + (chunk - 8) * 8192;
  }
  __host__ __device__ static constexpr int chunks_for(int positions) {
    return positions <= 32768 ? (positions + 4095) / 4096 : 8 + (positions - 32768 + 8191) / 8192;
  }
};
static_assert(Wide::chunks_for(262144) == Wide::most_chunks);

struct QueryTile {
  int kv_head, group, first, rows, position;
};

struct TileShared {
  std::uint8_t queries[consumers * 8][cores_bytes];
  std::uint8_t keys[stages][block / 8][cores_bytes];
  std::uint8_t values[stages][dim / 8][block * 16];  // eight dims of 64 positions as 8 core matrices
  float key_scales[stages][block];
  float value_logs[stages][block];      // log2 of the value scales
  float value_inverses[stages][block];  // 1 / value scale
  SegmentEntry segment;                 // here and not in the consumers' registers, of which not one is free
  QueryTile tile;
  std::uint64_t keys_full[stages], keys_empty[stages], values_full[stages], values_empty[stages];
};

// The blocks of positions of one thread block: chunks blockIdx.x, + gridDim.x, ... of those below `limit`.
struct Walk {
  int chunk, position, limit, stride;
  __device__ Walk(int first, int step, int positions)
      : chunk(first), position(Wide::chunk_begin(first)), limit(positions), stride(step) {}
  __device__ bool done() const { return position >= limit; }
  __device__ void next() {
    position += block;
    if (position < min(Wide::chunk_begin(chunk + 1), limit)) return;
    chunk += stride;
    position = Wide::chunk_begin(chunk);
  }
};

__device__ __forceinline__ void store_shared(std::uint32_t address, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                             std::uint32_t d) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// Sixteen codes become two chunks of eight fp16, 128 bytes apart: neighbouring core matrices.
__device__ __forceinline__ void unpack_codes(const uint4& codes, std::uint32_t address) {
  std::uint32_t a[2], b[2];
  codes_to_fp16(codes.x, a), codes_to_fp16(codes.y, b);
  store_shared(address, a[0], a[1], b[0], b[1]);
  codes_to_fp16(codes.z, a), codes_to_fp16(codes.w, b);
  store_shared(address + 128, a[0], a[1], b[0], b[1]);
}

// Producers. Eight lanes that store together have eight rows of one core matrix, and the four groups of a warp read 64
// consecutive bytes of a key (or, of values, 16 whole dims of a page): no bank conflict, whole sectors. Warp w has
// positions 16 w .. 16 w + 15 of a block's keys, and of its values page w / 2, dims 128 (w % 2) .. + 127.
struct Producer {
  const Arguments& args;
  const SegmentEntry& segment;
  int kv_head, last_page, warp, lane;
  using Group = uint4[4];  // a quarter of the thread's share of a block

  __device__ const std::uint8_t* page_of(int position) const {  // pages behind the last are masked: any will do
    return page_at(args, segment, min(position / page, last_page), kv_head);
  }
  __device__ void read_keys(int position, int half, Group& to) const {
    const int row = lane % 8, odd = row & 1;  // halves of 128 codes of an odd position lie the other way round
    const std::uint8_t* from =
        page_of(position + warp / 2 * page) + (warp % 2 * 16 + half * 8 + row) * dim + lane / 8 * 16 + odd * 64;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to[i] = *reinterpret_cast<const uint4*>(from + i / 2 * 128 + (i % 2 ? 64 - odd * 128 : 0));
  }
  __device__ void read_values(int position, int half, Group& to) const {
    const std::uint8_t* from = page_of(position + warp / 2 * page) + values_offset +
                               (warp % 2 * 128 + half * 64 + lane / 16 * 8 + lane % 8) * page + lane / 8 % 2 * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = *reinterpret_cast<const uint4*>(from + i * 16 * page);
  }
  // Of a key in the first two warps, of a value in the others.
  __device__ float read_scale(int position) const {
    return reinterpret_cast<const float*>(page_of(position + warp % 2 * page) +
                                          (warp < 2 ? key_scales_offset : value_scales_offset))[lane];
  }
  __device__ void store_keys(TileShared& shared, int stage, int half, const Group& from) const {
    const std::uint32_t to = cuda::shared_address(shared.keys[stage][warp * 2 + half]) + lane / 8 * 256 + lane % 8 * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) unpack_codes(from[i], to + i * 1024);
  }
  __device__ void store_values(TileShared& shared, int stage, int half, const Group& from) const {
    const std::uint32_t to = cuda::shared_address(shared.values[stage][warp % 2 * 16 + half * 8 + lane / 16]) +
                             (warp / 2 * 4 + lane / 8 % 2 * 2) * 128 + lane % 8 * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) unpack_codes(from[i], to + i * 2 * block * 16);
  }
  __device__ void store_scale(TileShared& shared, int stage, float scale) const {
    const int position = warp % 2 * page + lane;
    if (warp < 2) {
      shared.key_scales[stage][position] = scale;
    } else {
      // Positions that nobody wrote are masked; what their scales become must not spread.
      scale = fmaxf(scale, 1e-20f);
      shared.value_logs[stage][position] = __log2f(scale);
      shared.value_inverses[stage][position] = 1.0f / scale;
    }
  }
};

__device__ __forceinline__ void produce(const Arguments& args, const SegmentEntry& segment, const QueryTile& tile,
                                        Walk walk, TileShared& shared, int thread) {
  const Producer producer{args, segment, tile.kv_head, (walk.limit - 1) / page, thread / 32, thread % 32};
  // Three quarters of a block are always on their way: keys 0, keys 1, values 0 | values 1, keys 0, keys 1 | ...
  Producer::Group a, b, c;
  producer.read_keys(walk.position, 0, a);
  producer.read_keys(walk.position, 1, b);
  producer.read_values(walk.position, 0, c);
  float scale = producer.read_scale(walk.position);
  int stage = 0, parity = 1;  // of the wait for an empty stage: the first round passes
  auto one_block = [&](Producer::Group& first, Producer::Group& second, Producer::Group& third) {
    const int position = walk.position;
    walk.next();
    const bool more = !walk.done();
    cuda::barrier_wait(cuda::shared_address(&shared.keys_empty[stage]), parity);
    producer.store_keys(shared, stage, 0, first);
    producer.read_values(position, 1, first);
    producer.store_keys(shared, stage, 1, second);
    if (more) producer.read_keys(walk.position, 0, second);
    cuda::stores_for_wgmma();
    cuda::barrier_arrive(cuda::shared_address(&shared.keys_full[stage]));
    cuda::barrier_wait(cuda::shared_address(&shared.values_empty[stage]), parity);
    producer.store_values(shared, stage, 0, third);
    producer.store_scale(shared, stage, scale);
    if (more) producer.read_keys(walk.position, 1, third), scale = producer.read_scale(walk.position);
    producer.store_values(shared, stage, 1, first);
    if (more) producer.read_values(walk.position, 0, first);
    cuda::stores_for_wgmma();
    cuda::barrier_arrive(cuda::shared_address(&shared.values_full[stage]));
    if (++stage == stages) stage = 0, parity ^= 1;
    return more;
  };
  while (one_block(a, b, c) && one_block(b, c, a) && one_block(c, a, b)) {
  }
}

// A thread's query rows, g and g + 8 of its warp's sixteen, and what they have gathered: `maximum`, `sum` (this
// thread's share) and `out` of the running chunk, `all` of the chunks before it.
struct Gathered {
  float maximum[2], sum[2];
  float all_maximum[2], all_sum[2];
};

// One block of positions: scores become weights (A fragments), sums and maxima move on. first: the position of this
// thread's first column; last_seen: the last position that each of the two rows may see.
template <bool masked>
__device__ __forceinline__ void weigh(float (&s)[32], const TileShared& shared, int stage, int t, int position,
                                      const int (&last_seen)[2], Gathered& rows, float (&factors)[2],
                                      std::uint32_t (&weights)[16]) {
  float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const float2 scale = *reinterpret_cast<const float2*>(&shared.key_scales[stage][n * 8 + 2 * t]);
    const float2 log = *reinterpret_cast<const float2*>(&shared.value_logs[stage][n * 8 + 2 * t]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& x = s[n * 4 + i];
      x = fmaf(x, i % 2 ? scale.y : scale.x, i % 2 ? log.y : log.x);
      if (masked && position + n * 8 + 2 * t + i % 2 > last_seen[i / 2]) x = -INFINITY;
      top[i / 2] = fmaxf(top[i / 2], x);
    }
  }
  float base[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], 1));
    top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], 2));
    top[h] = fmaxf(top[h], rows.maximum[h]);
    factors[h] = power(rows.maximum[h], top[h]);
    rows.maximum[h] = top[h];
    rows.sum[h] *= factors[h];
    base[h] = top[h] == -INFINITY ? 0.0f : top[h];  // a row that has seen nothing yet
  }
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const float2 inverse = *reinterpret_cast<const float2*>(&shared.value_inverses[stage][n * 8 + 2 * t]);
    float w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w[i] = exp2_fast(s[n * 4 + i] - base[i / 2]);
      rows.sum[i / 2] = fmaf(w[i], i % 2 ? inverse.y : inverse.x, rows.sum[i / 2]);
    }
    weights[n / 2 * 4 + n % 2 * 2] = cuda::pack_fp16(w[0], w[1]);
    weights[n / 2 * 4 + n % 2 * 2 + 1] = cuda::pack_fp16(w[2], w[3]);
  }
}

// The queries of a warp group as core matrices; rows of nobody are zero.
__device__ __forceinline__ void load_query_tile(const Arguments& args, const SegmentEntry& segment,
                                                const QueryTile& tile, TileShared& shared, int warp, int lane) {
  uint4 chunks[16];
  const int row = lane % 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int m = warp * 16 + half * 8 + row;
    const bool valid = m / tile.group < tile.rows;
    const std::int64_t at = segment.first_row + tile.first + m / tile.group;
    const __half* from =
        args.queries + (at * args.query_heads + tile.kv_head * tile.group + m % tile.group) * dim + lane / 8 * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      chunks[half * 8 + i] = valid ? *reinterpret_cast<const uint4*>(from + i * 32) : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const std::uint32_t to =
        cuda::shared_address(shared.queries[warp * 2 + i / 8]) + (i % 8 * 4 + lane / 8) * 128 + row * 16;
    store_shared(to, chunks[i].x, chunks[i].y, chunks[i].z, chunks[i].w);
  }
}

// The chunk is done: its sums join those of the chunks before it. In a split block they go to memory for the merge;
// else they wait in the output matrix for the next chunk (first: nothing waits there yet).
__device__ __forceinline__ void end_chunk(const Arguments& args, const TileShared& shared, int warp, int lane,
                                          int chunk, bool first, float (&out)[128], Gathered& rows) {
  const SegmentEntry& segment = shared.segment;
  const QueryTile tile = shared.tile;
  const bool split = gridDim.x > 1;
  const std::int64_t part =
      ((static_cast<std::int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * args.slots + chunk) * args.part_rows;
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float total = rows.sum[h];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    const int m = warp * 16 + h * 8 + g;
    if (split) {
      if (t == 0) *reinterpret_cast<float2*>(args.stats + (part + m) * 2) = make_float2(rows.maximum[h], total);
      float* to = args.partials + (part + m) * dim + 2 * t;
#pragma unroll
      for (int n = 0; n < 32; ++n)
        *reinterpret_cast<float2*>(to + n * 8) = make_float2(out[n * 4 + h * 2], out[n * 4 + h * 2 + 1]);
    } else {
      const bool valid = m / tile.group < tile.rows;
      const int row = segment.first_row + tile.first + m / tile.group;
      float* to = cuda::row_of(args.out, valid ? row : 0) + (tile.kv_head * tile.group + m % tile.group) * dim + 2 * t;
      if (first) {
        rows.all_maximum[h] = rows.maximum[h], rows.all_sum[h] = total;
        if (valid) {
#pragma unroll
          for (int n = 0; n < 32; ++n)
            *reinterpret_cast<float2*>(to + n * 8) = make_float2(out[n * 4 + h * 2], out[n * 4 + h * 2 + 1]);
        }
      } else {
        float keep, add;
        merge_factors(rows.all_maximum[h], rows.all_sum[h], rows.maximum[h], total, keep, add);
        if (valid) {
#pragma unroll
          for (int n = 0; n < 32; ++n) {
            if (n % 8 == 0) asm volatile("" ::: "memory");  // eight reads at a time, not 32: there are no registers
            float2 value = *reinterpret_cast<const float2*>(to + n * 8);
            value.x = fmaf(value.x, keep, __fmul_rn(out[n * 4 + h * 2], add));
            value.y = fmaf(value.y, keep, __fmul_rn(out[n * 4 + h * 2 + 1], add));
            *reinterpret_cast<float2*>(to + n * 8) = value;
          }
        }
      }
    }
    rows.maximum[h] = -INFINITY, rows.sum[h] = 0;
  }
#pragma unroll
  for (int i = 0; i < 128; ++i) out[i] = 0;
}

// All chunks are in: the gate, the output and its panel. The last chunk's sums come from registers (`only`: it is the
// first, too). Four lanes that hold the columns 2t, 2t + 1 of four lines trade them for a whole line each.
__device__ __forceinline__ void finish_tile(const Arguments& args, const TileShared& shared, int warp, int lane,
                                            bool only, float (&out)[128], Gathered& rows) {
  const SegmentEntry& segment = shared.segment;
  const QueryTile tile = shared.tile;
  const int g = lane / 4, t = lane % 4;
  __syncwarp();  // lines are read that other lanes left in the output
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float total = rows.sum[h];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    float keep = 0, add = 1;
    if (only) {
      rows.all_sum[h] = total;
    } else {
      merge_factors(rows.all_maximum[h], rows.all_sum[h], rows.maximum[h], total, keep, add);
    }
    const float inverse_sum = 1.0f / rows.all_sum[h];
    const int m = warp * 16 + h * 8 + g;
    const bool valid = m / tile.group < tile.rows;
    const int row = segment.first_row + tile.first + m / tile.group;
    const int head = tile.kv_head * tile.group + m % tile.group;
#pragma unroll
    for (int four = 0; four < 32; four += 4) {
      // Lane t takes line four + t: of lane s it needs that line's columns 2s, 2s + 1.
      float line[8];
#pragma unroll
      for (int distance = 0; distance < 4; ++distance) {
        const int peer = t ^ distance;
        float x = 0, y = 0;  // my columns of the peer's line
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (peer == i) x = out[(four + i) * 4 + h * 2], y = out[(four + i) * 4 + h * 2 + 1];
        }
        x = __shfl_xor_sync(0xffffffffu, x, distance);
        y = __shfl_xor_sync(0xffffffffu, y, distance);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (peer == i) line[2 * i] = x, line[2 * i + 1] = y;
        }
      }
      if (!valid) continue;
      const int column = (four + t) * 8;
      float* to = cuda::row_of(args.out, row) + head * dim + column;
      float gate[8];
      read_line(cuda::row_of(args.rows.q_gate, row) + head * 2 * dim + dim + column, gate);
      if (!only) {
        float before[8];
        read_line(to, before);
#pragma unroll
        for (int i = 0; i < 8; ++i) line[i] = fmaf(before[i], keep, __fmul_rn(line[i], add));
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) line[i] = gated_value(line[i], inverse_sum, gate[i]);
      reinterpret_cast<float4*>(to)[0] = make_float4(line[0], line[1], line[2], line[3]);
      reinterpret_cast<float4*>(to)[1] = make_float4(line[4], line[5], line[6], line[7]);
      cuda::store_line<false>(args.panel, row, head * dim + column, line);
    }
  }
}

__device__ __forceinline__ void consume(const Arguments& args, Walk walk, int first_position,
                                        TileShared& shared, int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
  constexpr std::uint64_t step = 256 / 16;  // of a descriptor: two core matrices, k of one instruction
  load_query_tile(args, shared.segment, shared.tile, shared, warp, lane);
  cuda::stores_for_wgmma();
  asm volatile("bar.sync %0, 128;" ::"r"(1 + warp / 4) : "memory");
  const auto queries = static_cast<std::uint32_t>(
      cuda::matrix_descriptor(cuda::shared_address(shared.queries[warp / 4 * 8]), 128, cores_bytes));
  int last_seen[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) last_seen[h] = first_position + (warp * 16 + h * 8 + g) / shared.tile.group;
  Gathered rows;
  float out[128], s[32];
  std::uint32_t weights[16];
#pragma unroll
  for (int i = 0; i < 128; ++i) out[i] = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) rows.maximum[h] = -INFINITY, rows.sum[h] = 0, rows.all_maximum[h] = rows.all_sum[h] = 0;
  if (walk.done()) return;

  auto multiply_keys = [&](int i) {  // into s; not waited for
    const int stage = i % stages;
    cuda::barrier_wait(cuda::shared_address(&shared.keys_full[stage]), i / stages & 1);
    const std::uint64_t keys = cuda::matrix_descriptor(cuda::shared_address(shared.keys[stage]), 128, cores_bytes);
    std::uint32_t low = queries;
    asm volatile("" : "+r"(low));  // else sixteen sums of it are kept, in local memory
    constexpr std::uint64_t high = std::uint64_t{cores_bytes / 16} << 32;
    cuda::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 16; ++k)
      cuda::wgmma_half_64(s, high | (low + k * static_cast<std::uint32_t>(step)), keys + k * step, k > 0);
    cuda::wgmma_commit();
  };
  int done_chunks = 0, chunk = walk.chunk;
  multiply_keys(0);
  cuda::wgmma_wait<0>(s);
  for (int i = 0;; ++i) {
    const int stage = i % stages;
    __syncwarp();
    if (lane == 0) cuda::barrier_arrive(cuda::shared_address(&shared.keys_empty[stage]));
    if (walk.chunk != chunk) {
      end_chunk(args, shared, warp, lane, chunk, done_chunks == 0, out, rows);
      ++done_chunks;
      chunk = walk.chunk;
    }
    cuda::barrier_wait(cuda::shared_address(&shared.values_full[stage]), i / stages & 1);
    float factors[2];
    if (walk.position + block - 1 > first_position) {
      weigh<true>(s, shared, stage, t, walk.position, last_seen, rows, factors, weights);
    } else {
      weigh<false>(s, shared, stage, t, walk.position, last_seen, rows, factors, weights);
    }
    // A maximum seldom moves once some positions were seen; times one changes no bit.
    if (__any_sync(0xffffffffu, factors[0] != 1.0f || factors[1] != 1.0f)) {
#pragma unroll
      for (int j = 0; j < 128; ++j) out[j] *= factors[j / 2 % 2];
    }
    const std::uint64_t values = cuda::matrix_descriptor(cuda::shared_address(shared.values[stage]), 128, block * 16);
    cuda::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) cuda::wgmma_half_256(out, &weights[k * 4], values + k * step);
    cuda::wgmma_commit();
    walk.next();
    if (walk.done()) break;
    multiply_keys(i + 1);  // behind this block's values: the matrix unit goes on without a gap
    cuda::wgmma_wait<0>(s, out);
    __syncwarp();
    if (lane == 0) cuda::barrier_arrive(cuda::shared_address(&shared.values_empty[stage]));
  }
  cuda::wgmma_wait<0>(out);
  if (gridDim.x > 1) {
    end_chunk(args, shared, warp, lane, chunk, false, out, rows);
  } else {
    finish_tile(args, shared, warp, lane, done_chunks == 0, out, rows);
  }
}

// Grid: splits x (tiles * kv heads) x segments, the last rows, which see most, first.
__global__ void __launch_bounds__(tile_threads, 1) tiles_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<TileShared*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  cuda::dependents_may_start();
  const SegmentEntry segment = args.segments[blockIdx.z];
  QueryTile tile;
  tile.kv_head = blockIdx.y % args.kv_heads;
  tile.group = args.query_heads / args.kv_heads;
  tile.first = (args.tiles - 1 - static_cast<int>(blockIdx.y) / args.kv_heads) * args.tile_rows;
  tile.rows = min(args.tile_rows, segment.rows - tile.first);
  tile.position = segment.position + tile.first;
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      cuda::barrier_init(cuda::shared_address(&shared.keys_full[i]), group_threads);
      cuda::barrier_init(cuda::shared_address(&shared.values_full[i]), group_threads);
      cuda::barrier_init(cuda::shared_address(&shared.keys_empty[i]), consumers * 4);
      cuda::barrier_init(cuda::shared_address(&shared.values_empty[i]), consumers * 4);
    }
    cuda::barrier_init_done();
    shared.segment = segment, shared.tile = tile;
  }
  __syncthreads();
  if (tile.rows <= 0) return;
  const Walk walk(blockIdx.x, gridDim.x, tile.position + tile.rows);
  if (walk.done()) return;
  cuda::wait_for_predecessors();
  if (warp >= consumers * 4) {
    cuda::give_registers<producer_registers>();
    produce(args, segment, tile, walk, shared, threadIdx.x - consumers * group_threads);
  } else {
    cuda::take_registers<consumer_registers>();
    consume(args, walk, tile.position, shared, warp, lane);
  }
}

}  // namespace

void run_tiles(cuda::Stream& stream, Arguments args, int segments, int most_rows) {
  args.tile_rows = tile_query_rows / args.group;
  args.tiles = (most_rows + args.tile_rows - 1) / args.tile_rows;
  args.part_rows = tile_query_rows;  // also of nobody: the consumers have no register to leave them out
  args.slots = Wide::most_chunks;
  const int pairs = args.tiles * args.kv_heads, units = pairs * segments;
  // Few tiles: each is cut at its chunks, if the sums of that many fit.
  const std::int64_t stats_floats = std::int64_t{units} * args.slots * args.part_rows * 2;
  const std::int64_t partial_floats = stats_floats / 2 * dim;
  int splits = std::clamp(stream.facts().multiprocessors / units, 1, Wide::most_chunks);
  if ((partial_floats + stats_floats) * 4 > static_cast<std::int64_t>(stream.partials_bytes())) splits = 1;
  args.stats = args.partials + partial_floats;
  cuda::allow_shared(stream, tiles_kernel, sizeof(TileShared));
  cuda::launch(stream, "attention tiles", {dim3(splits, pairs, segments), dim3(tile_threads), sizeof(TileShared)},
               tiles_kernel, args);
  if (splits > 1) launch_merge<Wide, false>(stream, args, pairs, segments);
}

}  // namespace splash::ops::paged
