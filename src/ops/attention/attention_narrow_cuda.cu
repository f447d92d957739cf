// Attention of steps on Hopper: up to 64 query rows of one key-value head against int8 pages, positions first.
//
// A step is bound by the bytes of its pages, and at short contexts by everything that happens once. So pages come into
// shared memory as they are, by bulk copies that wait for nobody, and their codes meet the matrix unit from registers:
// scores are keys times queries (positions are the rows of the product, codes become fp16 where they are loaded),
// sums are values, which pages hold transposed, times weights. What the matrix unit reads from shared memory are the
// queries and the weights only, and a thread holds 24 to 64 sums.
//
// A block has two warp groups and takes units of 128 positions: for scores a group has 64 positions, for sums 128 dims
// over all of them. Its keys and values have room for one unit: the next one's keys are asked for when the scores are
// there, its values when the last value has been read, and a second block on the multiprocessor computes meanwhile.
//
// Which position, dim or query is which row, k or column of a product is free as long as both factors agree. Thread t
// of a quad takes sixteen consecutive bytes of a row (one read) as four steps of k; a quad's rows are chosen so that
// weights, stored as transposed 8 x 8 matrices, lie as the second product reads them, and neighbouring dims in one
// thread.
//
// w = 2^(s + log2(value scale) - maximum) <= 1 in fp16, denominator = sum w / value scale: one power per score, and no
// overflow whatever the scales. Order of sums: units by absolute position inside chunks by absolute position; chunks in
// order, in the block or behind it by the same operations. So a row's bits depend neither on its tile nor on splits.
#include <algorithm>

#include "backend/cuda/wgmma.cuh"
#include "ops/attention/attention_merge.cuh"
#include "ops/attention/attention_narrow_cuda.h"

namespace splash::ops::paged {
namespace {

constexpr int narrow_threads = 256, narrow_warps = narrow_threads / 32;
constexpr int unit = 128, unit_pages = unit / page;
constexpr int key_bytes = page * dim;
// Pages of values lie 32 bytes off the others' banks: a read takes 32 bytes of each of four rows in two pages.
constexpr int value_bytes = page * dim + 32;
// Eight queries: 32 core matrices of 128 bytes in four runs of eight; pairs of a run lie 16 bytes further apart, so that
// the lanes that store a query hit different banks, all but two.
constexpr int core_run = 8 * 128 + 3 * 16, query_bytes = 4 * core_run;
__host__ __device__ constexpr int core_in_run(int core) { return core * 128 + core / 2 * 16; }
constexpr int weight_bytes = unit / 8 * 128;  // of eight queries

struct Narrow {
  // Short ones first, so that a short context already fills the chip; long ones later, so that partial sums stay small
  // against the pages: 128, from 2,048 on 256, from 4,096 on 512, from 32K on 1,024, from 128K on 2,048: a 64th of a
  // context at most (two blocks on each of 132 multiprocessors share 32K in 66 parts), so no block has much more than its
  // share (0024).
  static constexpr int most_chunks = 240;
  // Lines that grow steeper: the highest holds. And their inverses, of which the lowest does.
  __host__ __device__ static constexpr int higher(int a, int b) { return a > b ? a : b; }
  __host__ __device__ static constexpr int lower(int a, int b) { return a < b ? a : b; }
  __host__ __device__ static constexpr int chunk_begin(int chunk) {
    return higher(higher(higher(chunk * 128, chunk * 256 - 2048), chunk * 512 - 8192),
                  higher(chunk * 1024 - 49152, chunk * 2048 - 229376));
  }
  __host__ __device__ static constexpr int chunks_for(int positions) {
    return lower(lower(lower((positions + 127) >> 7, (positions + 2048 + 255) >> 8), (positions + 8192 + 511) >> 9),
                 lower((positions + 49152 + 1023) >> 10, (positions + 229376 + 2047) >> 11));
  }
};
static_assert(Narrow::chunks_for(262144) == Narrow::most_chunks && Narrow::chunks_for(32768) == 80 &&
              Narrow::chunk_begin(16) == 2048 && Narrow::chunk_begin(24) == 4096 && Narrow::chunk_begin(80) == 32768 &&
              Narrow::chunk_begin(176) == 131072);

// column: the first of the tile's that are this block's.
struct Tile {
  int kv_head, first, rows, position, column;
};

// The units of one block, the `index`-th of `blocks` that share the chunks: its chunks come in turn, every second time
// from the other end, so that the blocks that began with a long one do not get the next long one too; a last turn of few,
// which are short, in pairs, to the blocks that have least. (Neighbouring chunks to a block would be simpler and were
// slower, 0016.) The last chunks, with the new positions, are first.
struct NarrowWalk {
  static constexpr int few = 16;  // the chunks of 128
  int index, blocks, step, paired, chunks, limit, chunk, position, end;
  __device__ void begin(int positions, int of_blocks, int first) {
    index = first, blocks = of_blocks, step = 2 * blocks - 1 - 2 * index;
    chunks = Narrow::chunks_for(positions), limit = positions;
    paired = chunks / blocks * blocks;  // from this one on
    if (paired == 0 || chunks - paired > few) paired = chunks;
    enter();
  }
  __device__ void enter() {
    chunk = blocks == 1 ? index : chunks - 1 - index;  // alone, a block merges them in order
    position = Narrow::chunk_begin(chunk), end = min(Narrow::chunk_begin(chunk + 1), limit);
  }
  __device__ bool done() const { return index >= chunks; }
  __device__ void next() {
    position += unit;
    if (position < end) return;
    if (index >= paired) {
      index = (index - paired) % 2 == 0 ? index + 1 : chunks;
    } else {
      index += step, step = 2 * blocks - step;
      if (index >= paired) index += index - paired;
    }
    enter();
  }
  // Whether a position in the last two chunks is this block's (before the first next()).
  __device__ bool mine(int new_position) const {
    return blocks == 1 || chunks - Narrow::chunks_for(new_position + 1) == index;
  }
};

template <int columns>
struct NarrowShared {
  std::uint8_t queries[columns / 8][query_bytes];
  union {
    std::uint8_t weights[columns / 8][weight_bytes];
    float2 rotations[columns][32];  // before the first weights: sines and cosines of the tile's rows
  };
  std::uint8_t keys[unit_pages][key_bytes];
  std::uint8_t values[unit_pages][value_bytes];
  float scales[unit_pages][2 * page];  // of keys, of values
  float sums[narrow_warps][columns];   // of the running chunk
  int maxima[2][columns];              // of the running chunk and of the next, as ordered()
  float running[2][columns];           // the same up to this unit and up to the one before
  float keep[columns];                 // what the unit's new maxima leave of the sums before
  float2 all[columns];                 // maximum and sum of the chunks before this one, where the block merges them
  float2 factors[columns];             // what the merge of a chunk keeps and adds
  // Codes of this pass's rows as a page has them (values row by row), until their unit is here.
  alignas(8) std::uint8_t new_keys[narrow_new_rows][dim], new_values[narrow_new_rows][dim];
  alignas(8) float new_scales[narrow_new_rows][2];
  PageId new_pages[2];  // where they go
  std::uint64_t keys_full, values_full, values_empty;
  // Here and not in registers, of which not one is free.
  SegmentEntry segment;
  Tile tile;
  NarrowWalk walk;  // thread 0's, a unit ahead
  int2 units[2];    // position and chunk: of the unit behind this one at [parity] (-1: there is none), of this one
};

// Floats as integers in the same order, for maxima in shared memory.
__device__ __forceinline__ int ordered(int bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }
// The maximum of nothing: finite, so that differences are numbers, and less than any score.
constexpr float nothing = -0x1p100f;
constexpr int ordered_nothing = static_cast<int>(0xf1800000u ^ 0x7fffffffu);

__device__ __forceinline__ void store_word(std::uint32_t address, std::uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
// Four 8 x 8 matrices, transposed; lane l names the row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_transposed(std::uint32_t address, std::uint32_t a, std::uint32_t b,
                                                 std::uint32_t c, std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

// Keys (with all scales) or values of a unit on their way, by warp 0: a lane per page, whose number it has. They leave
// the L2 first: partial sums wait there for the merge.
__device__ __forceinline__ int unit_page_count(int position, int limit) {
  return min(unit_pages, (limit - position + page - 1) / page);
}
__device__ __forceinline__ std::uint8_t* page_of(const Arguments& args, PageId id, int kv_head) {
  return reinterpret_cast<std::uint8_t*>(args.pool) + id * args.page_stride + kv_head * page_bytes;
}
template <int columns>
__device__ __forceinline__ void request_keys(NarrowShared<columns>& shared, const std::uint8_t* from, int count,
                                             int lane) {
  const std::uint32_t barrier = cuda::shared_address(&shared.keys_full);
  if (lane == 0) cuda::barrier_expect(barrier, count * (key_bytes + 2 * page * 4));
  __syncwarp();
  if (lane < count) {
    cuda::bulk_copy(cuda::shared_address(shared.keys[lane]), from, key_bytes, barrier, cuda::stream_policy());
    cuda::bulk_copy(cuda::shared_address(shared.scales[lane]), from + key_scales_offset, 2 * page * 4, barrier);
  }
}
template <int columns>
__device__ __forceinline__ void request_values(NarrowShared<columns>& shared, const std::uint8_t* from, int count,
                                               int lane) {
  const std::uint32_t barrier = cuda::shared_address(&shared.values_full);
  if (lane == 0) cuda::barrier_expect(barrier, count * page * dim);
  __syncwarp();
  if (lane < count)
    cuda::bulk_copy(cuda::shared_address(shared.values[lane]), from + values_offset, page * dim, barrier,
                    cuda::stream_policy());
}

// Eight dims of a query, from 8 line on. Step j of k of dims 64 G .. 64 G + 63 is, for thread t of a
// quad, dims 16 t + 4 j .. + 3, the first two in the lower core matrix, the others in the upper one.
template <int columns>
__device__ __forceinline__ void store_query(NarrowShared<columns>& shared, int m, int line, const uint4& chunk) {
  const std::uint32_t to = cuda::shared_address(shared.queries[m / 8]) + core_in_run(line / 8 * 2 + line % 2) +
                           m % 8 * 16 + line % 8 / 2 * 4;
  store_word(to, chunk.x), store_word(to + core_run, chunk.y);
  store_word(to + 2 * core_run, chunk.z), store_word(to + 3 * core_run, chunk.w);
}
// The descriptor of the queries for step 4 G + j.
__device__ __forceinline__ std::uint64_t query_step(std::uint64_t queries, int G, int j) {
  return queries + (j % 2 * 2 * core_run + core_in_run(G * 2 + j / 2)) / 16;
}

// The rotation of a row for a lane's dims; only lanes 0..3 rotate.
template <int columns>
__device__ __forceinline__ void rotation_at(const NarrowShared<columns>& shared, int row, int j, Rotation& rotation) {
  if (j >= 4) return;
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    const float4 two = *reinterpret_cast<const float4*>(&shared.rotations[row][j * 8 + i]);
    rotation.sine[i] = two.x, rotation.cosine[i] = two.y, rotation.sine[i + 1] = two.z, rotation.cosine[i + 1] = two.w;
  }
}

// The block's columns out of the projections, normed and rotated: neighbouring ones a warp, two at a time, the next on
// their way.
template <int columns>
__device__ __forceinline__ void make_queries(const Arguments& args, const SegmentEntry& segment, const Tile& tile,
                                             int count, NarrowShared<columns>& shared, int warp, int lane,
                                             const float (&q_gain)[lane_dims]) {
  constexpr int together = 2;
  const int each = (count + narrow_warps - 1) / narrow_warps, end = min((warp + 1) * each, count);
  const int j = lane % head_lanes, which = lane / head_lanes;
  auto read = [&](int first, float (&x)[lane_dims]) {
    const int m = tile.column + first + which, row = m * args.group_inverse >> 16, head = m - row * args.group;
    if (first + which < end)
      read_dims(cuda::row_of(args.rows.q_gate, segment.first_row + row) + (tile.kv_head * args.group + head) * 2 * dim,
                j, x);
  };
  float x[lane_dims], ahead[lane_dims];
  read(warp * each, x);
#pragma unroll 1
  for (int first = warp * each; first < end;) {
    const int next = first + together;
    if (columns > 16 && next < end) read(next, ahead);
    Rotation rotation;
    rotation_at(shared, (tile.column + first + which) * args.group_inverse >> 16, j, rotation);
    norm_and_rotate(args, q_gain, rotation, j, x);
    if (first + which < end) {
#pragma unroll
      for (int line = 0; line < 2; ++line)
        store_query(shared, first + which, dims_of(j, line) / 8, pack_query(x + line * 8));
    }
#pragma unroll
    for (int e = 0; e < lane_dims; ++e) x[e] = ahead[e];
    first = next;
  }
}

// Codes of the key and the value of a warp's row, half a warp each, for this block's copy of their unit; the key's into
// its page.
template <int columns>
__device__ __forceinline__ void make_row(const Arguments& args, const Tile& tile, NarrowShared<columns>& shared, int row,
                                         int lane, const float (&gain)[lane_dims], float (&x)[lane_dims]) {
  const int position = tile.position + row, j = lane % head_lanes;
  const bool is_value = lane >= head_lanes;
  Rotation rotation;
  rotation_at(shared, row, j, rotation);
  norm_and_rotate(args, gain, rotation, j, x, is_value);
  std::uint8_t codes[lane_dims];
  const float scale = quantise(x, codes);
  const int in_page = position % page;
  std::uint8_t* to = page_of(args, shared.new_pages[position / page - tile.position / page], tile.kv_head);
#pragma unroll
  for (int line = 0; line < 2; ++line) {
    const int first = dims_of(j, line), at = key_place(in_page, first);
    const uint2 packed = pack_codes(codes + line * 8);
    *reinterpret_cast<uint2*>(is_value ? &shared.new_values[row][first] : &shared.new_keys[row][at]) = packed;
    if (!is_value && tile.column == 0) *reinterpret_cast<uint2*>(to + in_page * dim + at) = packed;
  }
  if (j > 0) return;
  shared.new_scales[row][is_value] = scale;
  if (tile.column == 0)
    *reinterpret_cast<float*>(to + (is_value ? value_scales_offset : key_scales_offset) + in_page * 4) = scale;
}

// Rows of this pass into the keys of the unit that is here, whose first position is `ahead` behind the tile's first; with
// both scales.
template <int columns>
__device__ __forceinline__ void add_keys(NarrowShared<columns>& shared, int ahead, int warp, int lane) {
  const int in_unit = warp - ahead;
  if (warp < shared.tile.rows && static_cast<unsigned>(in_unit) < unit) {
    const int at = in_unit / page, in_page = in_unit % page;
    *reinterpret_cast<uint2*>(&shared.keys[at][in_page * dim + lane * 8]) =
        *reinterpret_cast<const uint2*>(&shared.new_keys[warp][lane * 8]);
    if (lane < 2) shared.scales[at][lane * page + in_page] = shared.new_scales[warp][lane];
  }
  cuda::stores_for_wgmma();  // and before the copies that come next
  __syncthreads();
}
// And into its values: eight positions of a dim at a time, which go into their page with what was there before; a thread
// per dim. (A byte at a time, as they come, would be four times as many sectors.)
template <int columns>
__device__ __forceinline__ void add_values(const Arguments& args, NarrowShared<columns>& shared, int ahead, int thread) {
  static_assert(narrow_threads == dim);
  const Tile& tile = shared.tile;
#pragma unroll 1
  for (int first = max(0, -ahead) / 8 * 8; first < min(unit, tile.rows - ahead); first += 8) {
    auto* at = reinterpret_cast<uint2*>(&shared.values[first / page][thread * page + first % page]);
    const uint2 before = *at;
    std::uint32_t words[2] = {before.x, before.y};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = first + i + ahead;
      if (static_cast<unsigned>(row) < static_cast<unsigned>(tile.rows))
        words[i / 4] = __byte_perm(words[i / 4], shared.new_values[row][thread], 0x3210 + ((4 - i % 4) << i % 4 * 4));
    }
    const uint2 now = make_uint2(words[0], words[1]);
    *at = now;
    if (tile.column == 0) {
      const int which = (tile.position + ahead + first) / page - tile.position / page;
      *reinterpret_cast<uint2*>(page_of(args, shared.new_pages[which], tile.kv_head) + values_offset + thread * page +
                                first % page) = now;
    }
  }
  cuda::stores_for_wgmma();
  __syncthreads();
}

// The queries as prepared.
template <int columns>
__device__ __forceinline__ void load_queries(const Arguments& args, const SegmentEntry& segment, const Tile& tile,
                                             NarrowShared<columns>& shared, int warp, int lane) {
#pragma unroll 4
  for (int m = warp; m < tile.rows * args.group; m += narrow_warps) {  // never cut at columns
    const int row = m * args.group_inverse >> 16, head = tile.kv_head * args.group + m - row * args.group;
    const std::int64_t at = std::int64_t{segment.first_row + tile.first + row} * args.query_heads + head;
    store_query(shared, m, lane, *reinterpret_cast<const uint4*>(args.queries + at * dim + lane * 8));
  }
}

// c[64, columns] (+)= codes * b: sixteen codes of a thread's two rows are four steps of k.
template <int columns>
__device__ __forceinline__ void multiply(float (&c)[columns / 2], const std::uint8_t* low, const std::uint8_t* high,
                                         const std::uint64_t (&b)[4], bool accumulate) {
  const uint4 rows[2] = {*reinterpret_cast<const uint4*>(low), *reinterpret_cast<const uint4*>(high)};
  std::uint32_t a[4][4];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const std::uint32_t words[4] = {rows[h].x, rows[h].y, rows[h].z, rows[h].w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      std::uint32_t pairs[2];
      codes_to_fp16(words[j], pairs);
      a[j][h] = pairs[0], a[j][2 + h] = pairs[1];
    }
  }
  cuda::wgmma_fence();
#pragma unroll
  for (int j = 0; j < 4; ++j) cuda::WgmmaHalf<columns>::run(c, a[j], b[j], accumulate || j > 0);
  cuda::wgmma_commit();
}

// Joins the columns' values of the eight lanes that share them. Then lanes with bit 2 clear have every column once:
// v[k], k < count / 4, is that of column joined_column(k).
template <int count, class Join>
__device__ __forceinline__ void join_lanes(float (&v)[count], int lane, Join&& join) {
#pragma unroll
  for (int i = 0; i < count / 2; ++i) {
    const bool up = lane & 16;
    const float mine = up ? v[i + count / 2] : v[i], theirs = up ? v[i] : v[i + count / 2];
    v[i] = join(mine, __shfl_xor_sync(0xffffffffu, theirs, 16));
  }
#pragma unroll
  for (int i = 0; i < count / 4; ++i) {
    const bool up = lane & 8;
    const float mine = up ? v[i + count / 4] : v[i], theirs = up ? v[i] : v[i + count / 4];
    v[i] = join(mine, __shfl_xor_sync(0xffffffffu, theirs, 8));
  }
#pragma unroll
  for (int i = 0; i < count / 4; ++i) v[i] = join(v[i], __shfl_xor_sync(0xffffffffu, v[i], 4));
}
template <int count>
__device__ __forceinline__ int joined_column(int k, int lane, int first) {
  const int c = (lane & 16 ? count / 2 : 0) + (lane & 8 ? count / 4 : 0) + k;
  return c / 2 * 8 + first + c % 2;
}

// One block: the tile's columns from tile.column on.
template <int columns, bool own>
__device__ __forceinline__ void narrow_block(const Arguments& args, unsigned char* memory, const SegmentEntry& segment,
                                             const Tile& tile, const NarrowWalk& walk) {
  auto& shared = *reinterpret_cast<NarrowShared<columns>*>(memory);
  constexpr int tiles = columns / 8, mine = columns / 4;  // a thread's columns: 8 n + 2 t, + 1
  const int thread = threadIdx.x, lane = threadIdx.x % 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // known to be the warp's
  if (thread == 0) {
    cuda::barrier_init(cuda::shared_address(&shared.keys_full), 1);
    cuda::barrier_init(cuda::shared_address(&shared.values_full), 1);
    cuda::barrier_init(cuda::shared_address(&shared.values_empty), narrow_warps);
    cuda::barrier_init_done();
    shared.segment = segment, shared.tile = tile, shared.walk = walk;
    shared.units[1] = make_int2(walk.position, walk.chunk);
  }
  if (thread < 2 * columns)  // both
    shared.maxima[0][thread] = ordered_nothing, shared.running[0][thread] = nothing;
  const int first_pages = unit_page_count(walk.position, walk.limit);
  PageId id = warp == 0 && lane < first_pages ? segment.pages[walk.position / page + lane] : 0;
  const bool new_here = own && warp < tile.rows && walk.mine(tile.position + warp);
  if constexpr (own) {
    if (warp == 1 && lane < 2)
      shared.new_pages[lane] = segment.pages[(tile.position + (lane ? tile.rows - 1 : 0)) / page];
#pragma unroll 1
    for (int i = thread; i < tile.rows * 32; i += narrow_threads)
      shared.rotations[i / 32][i % 32] = sine_and_cosine(args, tile.position + i / 32, i % 32);
  }
  for (int i = thread; i < narrow_warps * columns; i += narrow_threads) shared.sums[0][i] = 0;
  __syncthreads();
  // What a page lacks of this pass's rows, or has of them already, is put right in the copy, so nothing here has to be
  // waited for.
  if constexpr (!own) cuda::wait_for_predecessors();
  if (warp == 0) {
    const std::uint8_t* from = page_of(args, id, tile.kv_head);
    request_keys(shared, from, first_pages, lane), request_values(shared, from, first_pages, lane);
  }
  if constexpr (own) {
    const int j = lane % head_lanes;
    float q_gain[lane_dims], k_gain[lane_dims];
    read_dims(args.q_norm, j, q_gain), read_dims(args.k_norm, j, k_gain);
    float new_row[lane_dims];  // a key by half of the warp, a value by the other half
    cuda::wait_for_predecessors();
    if (new_here) {
      read_dims(cuda::row_of(lane < head_lanes ? args.rows.k : args.rows.v, segment.first_row + warp) +
                    tile.kv_head * dim,
                j, new_row);
    }
    make_queries(args, segment, tile, min(columns, tile.rows * args.group - tile.column), shared, warp, lane, q_gain);
    if (new_here) make_row(args, tile, shared, warp, lane, k_gain, new_row);
  } else {
    load_queries(args, segment, tile, shared, warp, lane);
  }
  cuda::stores_for_wgmma();
  __syncthreads();

  // Rows of the score product: positions 16 (g / 2) + 4 (warp % 4) + g % 2, and two further on, of the group's 64.
  const int row = g / 2 % 2 * 16 + warp % 4 * 4 + g % 2, row_page = warp / 4 * 2 + g / 4;
  const std::uint8_t* const key_row = shared.keys[row_page] + row * dim + ((t * 16) ^ (g % 2 * 64));
  const int unit_row = row_page * page + row;
  // Rows of the sum product: dims 2 g and 2 g + 1 of the warp's sixteen.
  const int first_dim = warp / 4 * 128 + warp % 4 * 16 + 2 * g;
  const std::uint8_t* const value_row = shared.values[t / 2] + first_dim * page + t % 2 * 16;
  const std::uint64_t queries =
      cuda::matrix_descriptor(cuda::shared_address(shared.queries), core_run, query_bytes);
  const std::uint64_t weights = cuda::matrix_descriptor(cuda::shared_address(shared.weights), 128, weight_bytes);

  float out[2][columns / 2];
#pragma unroll
  for (int i = 0; i < columns / 2; ++i) out[0][i] = out[1][i] = 0;
  int parity = 0, merged = 0;
#pragma unroll 1
  for (;;) {
    // Read anew, or all that follows from it is kept in registers across the loop.
    unsigned thread_index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread_index));
    const int thread = static_cast<int>(thread_index % narrow_threads);
    const int lane = thread & 31, mine_first = thread % 4 * 2;  // the first of the thread's columns
    cuda::barrier_wait(cuda::shared_address(&shared.keys_full), parity);
    if constexpr (own) {
      const int ahead = shared.units[parity ^ 1].x - shared.tile.position;
      if (ahead + unit > 0) add_keys(shared, ahead, warp, lane);
    }
    float s[columns / 2];
#pragma unroll
    for (int G = 0; G < 4; ++G) {
      const std::uint64_t b[4] = {query_step(queries, G, 0), query_step(queries, G, 1), query_step(queries, G, 2),
                                  query_step(queries, G, 3)};
      // Halves of 128 codes of an odd position lie the other way round.
      if (G) cuda::wgmma_wait<0>();  // there are registers for the codes of one
      const std::uint8_t* codes = key_row + (G % 2 ? 64 - g % 2 * 128 : 0) + G / 2 * 128;
      multiply<columns>(s, codes, codes + 2 * dim, b, G > 0);
    }
    if (warp == 0) {
      if (lane == 0) {
        NarrowWalk next = shared.walk;
        next.next();
        shared.walk = next;
        shared.units[parity] = make_int2(next.done() ? -1 : next.position, next.chunk);
      }
      __syncwarp();
      const int next = shared.units[parity].x;
      if (next >= 0 && lane < unit_page_count(next, shared.walk.limit))
        id = shared.segment.pages[next / page + lane];
    }
    float key_scale[2], value_log[2], value_inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float* scales = &shared.scales[0][unit_row + (unit_row & -page) + 2 * h];
      key_scale[h] = scales[0];
      // Positions that nobody wrote are masked; what their scales become must not spread.
      const float scale = fmaxf(scales[page], 1e-20f);
      value_log[h] = __log2f(scale), value_inverse[h] = __fdividef(1.0f, scale);
    }
    cuda::wgmma_wait<0>(s);
#pragma unroll
    for (int i = 0; i < columns / 2; ++i) s[i] = fmaf(s[i], key_scale[i / 2 % 2], value_log[i / 2 % 2]);
    const int ahead = shared.units[parity ^ 1].x - shared.tile.position;  // of the tile's first row
    if (ahead + unit - 1 > 0) {
      const int beyond = ahead + unit_row;
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int seen = (shared.tile.column + n * 8 + mine_first + e) * args.group_inverse >> 16;
          if (beyond > seen) s[n * 4 + e] = -INFINITY;
          if (beyond + 2 > seen) s[n * 4 + 2 + e] = -INFINITY;
        }
      }
    }
    {
      float top[mine];
#pragma unroll
      for (int c = 0; c < mine; ++c) top[c] = fmaxf(s[c / 2 * 4 + c % 2], s[c / 2 * 4 + 2 + c % 2]);
      join_lanes(top, lane, [](float a, float b) { return fmaxf(a, b); });
      if (!(lane & 4)) {
#pragma unroll
        for (int k = 0; k < mine / 4; ++k)
          atomicMax(&shared.maxima[merged % 2][joined_column<mine>(k, lane, mine_first)],
                    ordered(__float_as_int(top[k])));
      }
    }
    __syncthreads();  // the maxima are there, the keys have been read
    const int2 next = shared.units[parity];
    const bool more = next.x >= 0, chunk_done = !more || next.y != shared.units[parity ^ 1].y;
    if (warp == 0 && more)
      request_keys(shared, page_of(args, id, shared.tile.kv_head), unit_page_count(next.x, shared.walk.limit), lane);
    float factor[mine], maximum[mine];
    bool moved = false;
#pragma unroll
    for (int c = 0; c < mine; ++c) {
      const int m = c / 2 * 8 + mine_first + c % 2;
      maximum[c] = __int_as_float(ordered(shared.maxima[merged % 2][m]));
      factor[c] = exp2_fast(shared.running[parity ^ 1][m] - maximum[c]);
      moved |= factor[c] != 1.0f;
    }
    if (thread < 4) {
#pragma unroll
      for (int c = 0; c < mine; ++c) {
        const int m = c / 2 * 8 + mine_first + c % 2;
        shared.running[parity][m] = maximum[c], shared.keep[m] = factor[c];
      }
    }
    // A maximum seldom moves once some positions were seen; times one changes no bit.
    if (__any_sync(0xffffffffu, moved)) {
#pragma unroll
      for (int i = 0; i < columns / 2; ++i)
        out[0][i] *= factor[i / 4 * 2 + i % 2], out[1][i] *= factor[i / 4 * 2 + i % 2];
    }
    float sum[mine];
#pragma unroll
    for (int c = 0; c < mine; ++c) {
      float &low = s[c / 2 * 4 + c % 2], &high = s[c / 2 * 4 + 2 + c % 2];
      low = exp2_fast(low - maximum[c]), high = exp2_fast(high - maximum[c]);
      sum[c] = fmaf(high, value_inverse[1], low * value_inverse[0]);
    }
    // Lanes name rows of the matrices lower, upper of eight columns, then of the next eight.
    const std::uint32_t weights_to = cuda::shared_address(shared.weights[lane / 16]) +
                                     (thread / 32 * 2 + lane / 8 % 2) * 128 + lane % 8 * 16;
#pragma unroll
    for (int n = 0; n < tiles; n += 2)
      store_transposed(weights_to + n * weight_bytes, cuda::pack_fp16(s[n * 4], s[n * 4 + 1]),
                       cuda::pack_fp16(s[n * 4 + 2], s[n * 4 + 3]), cuda::pack_fp16(s[n * 4 + 4], s[n * 4 + 5]),
                       cuda::pack_fp16(s[n * 4 + 6], s[n * 4 + 7]));
    cuda::stores_for_wgmma();
    join_lanes(sum, lane, [](float a, float b) { return a + b; });
    __syncthreads();  // the weights are there
    if (!(lane & 4)) {
#pragma unroll
      for (int k = 0; k < mine / 4; ++k) {
        const int m = joined_column<mine>(k, lane, mine_first);
        shared.sums[warp][m] = fmaf(shared.sums[warp][m], shared.keep[m], sum[k]);
      }
    }

    cuda::barrier_wait(cuda::shared_address(&shared.values_full), parity);
    if constexpr (own) {
      const int ahead = shared.units[parity ^ 1].x - shared.tile.position;
      if (ahead + unit > 0) add_values(args, shared, ahead, thread);
    }
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const std::uint64_t at = weights + q * 4 * 16;  // two core matrices of 128 bytes a step
      const std::uint64_t b[4] = {at, at + 16, at + 32, at + 48};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (q + i) cuda::wgmma_wait<0>();
        const std::uint8_t* codes = value_row + q * 2 * value_bytes + i * 64 * page;
        multiply<columns>(out[i], codes, codes + page, b, true);
      }
    }
    __syncwarp();
    if (lane == 0) cuda::barrier_arrive(cuda::shared_address(&shared.values_empty));
    if (warp == 0 && more) {
      cuda::barrier_wait(cuda::shared_address(&shared.values_empty), parity);
      request_values(shared, page_of(args, id, shared.tile.kv_head), unit_page_count(next.x, shared.walk.limit), lane);
    }
    cuda::wgmma_wait<0>(out[0], out[1]);
    parity ^= 1;
    if (!chunk_done) continue;

    const int chunk = shared.units[parity].y;  // of this unit, after the flip
    __syncthreads();
    const std::int64_t part = ((static_cast<std::int64_t>(blockIdx.z) * gridDim.x + blockIdx.x) * args.slots +
                               (args.slots > 1 ? chunk : 0)) * args.part_rows + shared.tile.column;
    const int count = min(columns, shared.tile.rows * args.group - shared.tile.column);
    if (thread < count) {
      float total = 0;
#pragma unroll
      for (int w = 0; w < narrow_warps; ++w) total += shared.sums[w][thread], shared.sums[w][thread] = 0;
      float top = shared.running[parity ^ 1][thread];
      shared.running[parity ^ 1][thread] = nothing, shared.maxima[merged % 2][thread] = ordered_nothing;
      if (args.slots == 1) {
        if (merged) {
          float2 all = shared.all[thread];
          float keep, add;
          merge_factors(all.x, all.y, top, total, keep, add);
          shared.factors[thread] = make_float2(keep, add);
          top = all.x, total = all.y;
        }
        shared.all[thread] = make_float2(top, total);
      }
      *reinterpret_cast<float2*>(args.stats + (part + thread) * 2) = make_float2(top, total);
    }
    // Pairs of dims: a chunk's as fp16, what a block merges itself as floats.
    const std::int64_t to = (part + mine_first) * (dim / 2) + first_dim / 2;
    auto* const words = reinterpret_cast<std::uint32_t*>(args.partials) + to;
    auto* const pairs = reinterpret_cast<float2*>(args.partials) + to;
    auto each = [&](auto&& act) {
#pragma unroll
      for (int c = 0; c < mine; ++c) {
        const int m = c / 2 * 8 + c % 2;
        if (mine_first + m >= count) continue;
#pragma unroll
        for (int i = 0; i < 2; ++i)
          act(m, m * (dim / 2) + i * 32,
              to_half_sums(make_float2(out[i][c / 2 * 4 + c % 2], out[i][c / 2 * 4 + 2 + c % 2])));
      }
    };
    if (args.slots > 1) {
      each([&](int, int at, std::uint32_t value) { words[at] = value; });
    } else if (merged > 0) {
      __syncthreads();
      each([&](int m, int at, std::uint32_t word) {
        const float2 factors = shared.factors[mine_first + m], before = pairs[at], value = of_half_sums(word);
        pairs[at] = make_float2(fmaf(before.x, factors.x, __fmul_rn(value.x, factors.y)),
                                fmaf(before.y, factors.x, __fmul_rn(value.y, factors.y)));
      });
    } else {
      each([&](int, int at, std::uint32_t value) { pairs[at] = of_half_sums(value); });
    }
    if (!more) break;
#pragma unroll
    for (int i = 0; i < columns / 2; ++i) out[0][i] = out[1][i] = 0;
    ++merged;
  }
}

// Grid: (tiles * kv heads) x splits x segments, the last rows, which see most, first; at short contexts the blocks that
// have a chunk come first and get a multiprocessor each. own: the tile makes its queries and stores its rows' keys and
// values itself; where its chunks leave blocks without work, several share a chunk, sixteen columns each.
template <int columns, bool own>
__global__ void __launch_bounds__(narrow_threads, columns > 48 ? 1 : 2)
    narrow_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  cuda::dependents_may_start();
  // A launch's parameters come into the constant cache line by line: here a line per warp, not one after the other below.
  if (threadIdx.x % 32 == 0) {
    for (int line = threadIdx.x / 32; line < static_cast<int>(sizeof(Arguments) / 64); line += narrow_warps)
      reinterpret_cast<volatile int*>(memory)[line] = reinterpret_cast<const int*>(&args)[line * 16];
  }
  const SegmentEntry segment = args.segments[blockIdx.z];
  Tile tile;
  tile.kv_head = blockIdx.x, tile.first = 0, tile.column = 0;
  if (args.tiles > 1) {
    tile.kv_head = blockIdx.x % args.kv_heads;
    tile.first = (args.tiles - 1 - static_cast<int>(blockIdx.x) / args.kv_heads) * args.tile_rows;
  }
  tile.rows = min(args.tile_rows, segment.rows - tile.first);
  tile.position = segment.position + tile.first;
  if (tile.rows <= 0) return;
  const int positions = tile.position + tile.rows;
  NarrowWalk walk;
  if constexpr (own && columns > 16) {
    constexpr int shares = columns / 16;
    const int blocks = gridDim.y / shares;
    if (blocks > 1 && Narrow::chunks_for(positions) <= blocks) {
      tile.column = blockIdx.y % shares * 16;
      walk.begin(positions, blocks, blockIdx.y / shares);
      if (walk.done() || tile.column >= tile.rows * args.group) return;
      return narrow_block<16, own>(args, memory, segment, tile, walk);
    }
  }
  walk.begin(positions, gridDim.y, blockIdx.y);
  if (walk.done()) return;
  narrow_block<columns, own>(args, memory, segment, tile, walk);
}

template <int columns>
void run(cuda::Stream& stream, const Arguments& args, int splits, int pairs, int segments) {
  constexpr std::size_t bytes = sizeof(NarrowShared<columns>);
  static_assert(bytes <= 227 * 1024 && (columns > 48 || bytes <= 113 * 1024));
  auto start = [&](auto* kernel) {
    cuda::allow_shared(stream, kernel, bytes);
    cuda::launch(stream, "attention", {dim3(pairs, splits, segments), dim3(narrow_threads), bytes}, kernel, args);
  };
  args.queries ? start(narrow_kernel<columns, false>) : start(narrow_kernel<columns, true>);
}

}  // namespace

void run_narrow(cuda::Stream& stream, Arguments args, int segments, int most_rows) {
  args.tile_rows = narrow_tile_rows(args.group);
  args.tiles = (most_rows + args.tile_rows - 1) / args.tile_rows;
  args.part_rows = std::min(args.tile_rows, most_rows) * args.group;
  const int pairs = args.tiles * args.kv_heads, units = pairs * segments;
  // Few tiles: each is cut at its chunks, if the sums of that many fit; else a block merges them as it goes.
  const int resident = args.part_rows > 48 ? 1 : 2;
  const auto sums_bytes = [&](int slots) {
    return std::int64_t{units} * slots * args.part_rows * dim * (slots > 1 ? 2 : 4);
  };
  const auto fits = [&](int slots) {
    return sums_bytes(slots) + std::int64_t{units} * slots * args.part_rows * 2 * 4 <=
           static_cast<std::int64_t>(stream.partials_bytes());
  };
  int splits = std::clamp(resident * stream.facts().multiprocessors / units, 1, Narrow::most_chunks);
  if (!fits(Narrow::most_chunks)) splits = 1;
  args.slots = splits == 1 ? 1 : Narrow::most_chunks;
  SPLASH_CHECK(fits(args.slots), "attention: {} tiles have no room for their sums", units);
  args.stats = args.partials + sums_bytes(args.slots) / 4;
  if (args.part_rows <= 16) {
    run<16>(stream, args, splits, pairs, segments);
  } else if (args.part_rows <= 48) {
    run<48>(stream, args, splits, pairs, segments);
  } else {
    run<64>(stream, args, splits, pairs, segments);
  }
  args.slots > 1 ? launch_merge<Narrow, true>(stream, args, pairs, segments)
                 : launch_merge<Narrow, false>(stream, args, pairs, segments);
}

}  // namespace splash::ops::paged
