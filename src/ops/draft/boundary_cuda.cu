#include "backend/cuda/launch.h"
#include "backend/cuda/lines.cuh"
#include "ops/draft/draft_cuda.h"
#include "ops/fused_cuda.h"
#include "ops/linear/q4_tile.cuh"

// The boundary between two sublayers of the draft in one launch (draft.h): of five launches around 3.7 MB of weights most
// is waiting for each other (docs/decisions/0019).
//
// A cluster of eight blocks makes 256 channels of a tile of tokens (512 where there are more than eight rows). Their
// coefficients are a strip of the projection per stage, tap and 256 channels; each block has an eighth of K and finishes
// those channels of the residual stream itself, from the sublayer's output, so that nobody waits for another block's x.
// (Every cluster does that anew: 8 rows of x and y are 320 KB out of the L2.) Products are those of the linears: gain * x
// in bf16, codes exact, 1 / rms at the end. Then blocks of the cluster add up what all have found and make 64 channels
// each. A row's bits depend on its block's rows alone. Bytes: the projection's once.

namespace splash::ops {
namespace {
namespace boundary {

constexpr int ranks = 8;  // blocks of a cluster
constexpr int kinds = 4;  // stages and taps
constexpr int threads = 256, warps = threads / 32;
constexpr int halves = 2, parts = ranks * halves;  // of K
constexpr int coefficient_channels = 16;
constexpr int own_channels = 64, own_lines = own_channels / 8, own_rows = own_channels / coefficient_channels * kinds;

struct Arguments {
  const std::uint8_t* tiles;  // of the projection
  int tiles_k, most_groups;   // K / 64, and of a block at most
  int block_mask;             // rows of a block (a power of two up to 8) less one
  const float* base_end;      // taps of stage 1; null: no sublayer ends
  const float* base;          // of stage 0
  const float* gain;
  float eps;
  MatrixView<const float> coefficients_end, y, x;
  MatrixView<float> x_out, coefficients, convolved;
  cuda::Panel panel;
};

// `UNIT` channels of 8 NT tokens. Shared memory: fixed things first, then strips and panel by the block's share of K.
template <int NT_, int UNIT>
struct Shape {
  static constexpr int NT = NT_, tokens = NT * 8, unit = UNIT;
  static constexpr int finishers = UNIT / own_channels;        // blocks of the cluster
  static constexpr int strips = UNIT / 256 * kinds;            // [256 channels][kind]
  static constexpr int warp_halves = halves * strips / warps;  // of a strip, one after the other
  static constexpr int group_bytes = NT * (cuda::Panel::block_bytes + 8 * 4);
  static constexpr int together = 3;      // lines of a lane that are on their way
  static constexpr int most_groups = 24;  // of a block: hidden up to 12,288
  static_assert(own_lines * tokens <= threads);
  struct Shared {
    float found[parts][own_rows][tokens];    // of a finisher: sums of its rows over parts of K, from everyone
    float held[tokens][own_channels];        // of a finisher: x of its channels
    float squares[ranks][tokens];            // of a finisher: from everyone
    float taps[own_rows][tokens];            // of a finisher: its coefficients
    float own_squares[most_groups][tokens];  // by group
    std::uint64_t weights, arrived;
  };
  static constexpr int fixed_bytes = (sizeof(Shared) + 127) / 128 * 128;
  static constexpr std::size_t bytes(int groups) {
    return fixed_bytes + static_cast<std::size_t>(groups) * (strips * Q4Tile::bytes + group_bytes);
  }
};

// Eight weights, or numbers that other kernels have made. (load_columns has a path for rows that are not aligned.)
template <bool weights = true>
__device__ __forceinline__ void load_eight(const float* from, float (&values)[8]) {
  const float4* at = reinterpret_cast<const float4*>(from);
  const float4 low = weights ? __ldg(at) : at[0], high = weights ? __ldg(at + 1) : at[1];
  values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
  values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}

__device__ __forceinline__ void store_eight(float* to, const float (&values)[8]) {
  reinterpret_cast<float4*>(to)[0] = make_float4(values[0], values[1], values[2], values[3]);
  reinterpret_cast<float4*>(to)[1] = make_float4(values[4], values[5], values[6], values[7]);
}

template <class Shape>
__global__ void __launch_bounds__(threads, 2) draft_boundary_kernel(const __grid_constant__ Arguments args) {
  if constexpr (!cuda::hopper_code) return;  // the plain sequence is in its place
  constexpr int NT = Shape::NT, tokens = Shape::tokens, strips = Shape::strips;
  extern __shared__ __align__(128) std::uint8_t memory[];
  auto& shared = *reinterpret_cast<typename Shape::Shared*>(memory);
  const int rank = static_cast<int>(cuda::cluster_rank()), unit = blockIdx.x / ranks, first_row = blockIdx.y * tokens;
  const int first_group = rank * args.tiles_k / ranks, groups = (rank + 1) * args.tiles_k / ranks - first_group;
  const int hidden = args.x.cols, coefficients = hidden / coefficient_channels;  // of a stage and tap
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  std::uint8_t* strip_tiles = memory + Shape::fixed_bytes;
  std::uint8_t* blocks = strip_tiles + strips * args.most_groups * Q4Tile::bytes;
  const std::uint32_t weights = cuda::shared_address(&shared.weights), arrived = cuda::shared_address(&shared.arrived);
  if (threadIdx.x == 0) {
    cuda::barrier_init(weights, 1);
    cuda::barrier_init(arrived, 1);
    cuda::barrier_init_done();
    if (rank < Shape::finishers)
      cuda::barrier_expect(arrived, sizeof shared.found + sizeof shared.held + sizeof shared.squares);
    cuda::barrier_expect(weights, strips * groups * Q4Tile::bytes);
  }
  __syncthreads();
  cuda::cluster_arrive_relaxed();  // every block is there before one writes into another
  cuda::dependents_may_start();
  // Strips of a kind are few and lie far from the others', so the copies are single tiles: shared by the warps.
  if (lane < strips) {
    const int of_matrix = lane % kinds * (coefficients / 16) + unit * (strips / kinds) + lane / kinds;
    const Q4Order order{kinds * coefficients / 16, args.tiles_k};
    const std::uint8_t* from = args.tiles + order.at(of_matrix, first_group) * Q4Tile::bytes;
    const int step = order.step(of_matrix) * Q4Tile::bytes;
    for (int g = warp; g < groups; g += warps) {
      cuda::bulk_copy(cuda::shared_address(strip_tiles + (lane * groups + g) * Q4Tile::bytes), from + g * step,
                      Q4Tile::bytes, weights);
    }
    __syncwarp((1u << strips) - 1);
  }
  cuda::wait_for_predecessors();
  cuda::cluster_wait();

  // x of the block's channels: into the panel, its squares, and the cluster's own channels to their finishers. A warp has
  // a token (of every eight), a lane lines of eight channels, `together` on their way at a time: eight lanes have a group.
  constexpr int together = Shape::together;
  const int lines = groups * 8;
#pragma unroll 1
  for (int token = warp; token < tokens; token += warps) {
    const int row = first_row + token;
    const bool exists = row < args.x.rows, ends = args.base_end && exists, follows = ends && (row & args.block_mask) != 0;
    const float* x_row = cuda::row_of(args.x, row) + first_group * 64;
    const float* y_row = cuda::row_of(args.y, row) + first_group * 64;
    const float* taps = cuda::row_of(args.coefficients_end, row) + 2 * coefficients + first_group * 4;
#pragma unroll 1
    for (int begin = lane; begin < lines; begin += 32 * together) {
      float x[together][8] = {}, y[together][8] = {}, before[together][8] = {}, tap[together][2] = {};
#pragma unroll
      for (int j = 0; j < together; ++j) {
        const int line = begin + j * 32;
        if (line >= lines) continue;
        if (exists) load_eight<false>(x_row + line * 8, x[j]);
        if (ends) {
          load_eight<false>(y_row + line * 8, y[j]);
          tap[j][0] = taps[line / 2], tap[j][1] = taps[coefficients + line / 2];
        }
        if (follows) load_eight<false>(y_row - args.y.stride + line * 8, before[j]);
      }
#pragma unroll
      for (int j = 0; j < together; ++j) {
        const int line = begin + j * 32, column = first_group * 64 + line * 8;
        if (line >= lines) continue;
        float(&v)[8] = x[j];
        if (args.base_end) {
          float base0[8], base1[8];
          load_eight(args.base_end + column, base0);
          load_eight(args.base_end + hidden + column, base1);
#pragma unroll
          for (int c = 0; c < 8; ++c) v[c] += fmaf(base0[c] + tap[j][0], y[j][c], (base1[c] + tap[j][1]) * before[j][c]);
        }
        float gain[8], squares = 0, sum = 0;
        load_eight(args.gain + column, gain);
        std::uint8_t* of_group = blocks + line / 8 * Shape::group_bytes;
        std::uint8_t* at = of_group + token / 8 * cuda::Panel::block_bytes + token % 8 * 16 + line % 8 / 4 * 512 + line % 4 * 4;
#pragma unroll
        for (int c = 0; c < 8; ++c) squares = fmaf(v[c], v[c], squares);
#pragma unroll
        for (int c = 0; c < 4; ++c) {  // as panel.cuh orders a line
          const int pair = (c & 1) * 4 + (c >> 1);
          const std::uint32_t word = cuda::pack_bf16(v[pair] * gain[pair], v[pair + 2] * gain[pair + 2]);
          *reinterpret_cast<std::uint32_t*>(at + c * 128) = word;
          sum += cuda::sum_of_pair(word);
        }
        const unsigned mask = 0xffu << (lane & 24);
#pragma unroll
        for (int distance = 1; distance < 8; distance <<= 1) {
          squares += __shfl_xor_sync(mask, squares, distance);
          sum += __shfl_xor_sync(mask, sum, distance);
        }
        if (line % 8 == 0) {
          shared.own_squares[line / 8][token] = squares;
          *reinterpret_cast<float*>(of_group + NT * cuda::Panel::block_bytes + token * 4) = sum;
        }
        const int in_unit = column - unit * Shape::unit;
        if (in_unit >= 0 && in_unit < Shape::unit) {
#pragma unroll
          for (int c = 0; c < 8; c += 2)
            cuda::store_to_peer(reinterpret_cast<float2*>(&shared.held[token][in_unit % own_channels + c]), &shared.arrived,
                                in_unit / own_channels, make_float2(v[c], v[c + 1]));
        }
      }
    }
  }
  __syncthreads();
  if (threadIdx.x < tokens) {
    float sum = 0;
    for (int g = 0; g < groups; ++g) sum += shared.own_squares[g][threadIdx.x];
#pragma unroll
    for (int to = 0; to < Shape::finishers; ++to)
      cuda::store_to_peer(&shared.squares[rank][threadIdx.x], &shared.arrived, to, sum);
  }
  cuda::barrier_wait(weights, 0);
#pragma unroll
  for (int i = 0; i < Shape::warp_halves; ++i) {
    const int strip = warp % strips, half = warp / strips + i;
    float acc[NT][4] = {};
#pragma unroll 1
    for (int g = half * groups / halves; g < (half + 1) * groups / halves; ++g) {
      const Q4Lines tile(strip_tiles + (strip * groups + g) * Q4Tile::bytes, lane);
      const std::uint8_t* of_group = blocks + g * Shape::group_bytes;
      std::uint32_t a[16];
      tile.unpack(a);
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        std::uint32_t b[2][4];
#pragma unroll
        for (int j = 0; j < 2; ++j)
          cuda::load_matrices(b[j], cuda::shared_address(of_group) + n * cuda::Panel::block_bytes + j * 512 +
                                        (lane >> 3) * 128 + (lane & 7) * 16);
        const float2 sums =
            *reinterpret_cast<const float2*>(of_group + NT * cuda::Panel::block_bytes + n * 32 + (lane & 3) * 8);
        float part[4] = {};
#pragma unroll
        for (int m = 0; m < 4; ++m)
          cuda::mma_bf16(part, a[m * 4], a[m * 4 + 1], a[m * 4 + 2], a[m * 4 + 3], b[m / 2][m % 2 * 2],
                         b[m / 2][m % 2 * 2 + 1]);
        tile.add(part, sums, acc[n]);
      }
    }
    // A finisher has four coefficients of each kind.
    const int g = lane / 4, t = lane % 4, part = rank * halves + half;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        cuda::store_to_peer(reinterpret_cast<float2*>(&shared.found[part][strip % kinds * 4 + g % 4][n * 8 + 2 * t]),
                            &shared.arrived, strip / kinds * 4 + h * 2 + g / 4, make_float2(acc[n][h * 2], acc[n][h * 2 + 1]));
    }
  }
  if (rank >= Shape::finishers) return;

  // A line of a token for each thread, if there are as many.
  const int line = threadIdx.x % own_lines, token = min(static_cast<int>(threadIdx.x) / own_lines, tokens - 1);
  const int column_of_unit = unit * Shape::unit + rank * own_channels, column = column_of_unit + line * 8;
  float gain[8], base[2][8];
  load_eight(args.gain + column, gain);
  load_eight(args.base + column, base[0]);
  load_eight(args.base + hidden + column, base[1]);
  cuda::barrier_wait(arrived, 0);
  const auto scale_of = [&](int token) {
    float sum = 0;
#pragma unroll
    for (int from = 0; from < ranks; ++from) sum += shared.squares[from][token];
    return rsqrtf(sum / static_cast<float>(hidden) + args.eps);
  };
  for (int i = threadIdx.x; i < own_rows * tokens; i += threads) {
    const int own = i / tokens, token = i % tokens, kind = own / 4;
    float sum = 0;
#pragma unroll
    for (int part = 0; part < parts; ++part) sum += shared.found[part][own][token];
    sum *= scale_of(token);
    shared.taps[own][token] = sum;
    if (kind >= 2 && first_row + token < args.x.rows)  // the other stage's are for the boundary that ends this sublayer
      cuda::row_of(args.coefficients, first_row + token)[kind * coefficients + column_of_unit / 16 + own % 4] = sum;
  }
  __syncthreads();
  const int row = first_row + token;
  if (threadIdx.x >= own_lines * tokens || row >= args.x.rows) return;  // all lanes of a group or none
  const bool first = (row & args.block_mask) == 0;
  const float scale = scale_of(token), scale_before = scale_of(max(token - 1, 0));
  const float tap0 = shared.taps[line / 2][token], tap1 = shared.taps[4 + line / 2][token];
  float x[8], u[8];
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    x[c] = shared.held[token][line * 8 + c];
    const float here = x[c] * scale * gain[c];
    const float before = first ? 0.0f : shared.held[max(token - 1, 0)][line * 8 + c] * scale_before * gain[c];
    u[c] = fmaf(base[0][c] + tap0, here, (base[1][c] + tap1) * before);
  }
  if (args.base_end) store_eight(cuda::row_of(args.x_out, row) + column, x);
  store_eight(cuda::row_of(args.convolved, row) + column, u);
  cuda::store_line(args.panel, row, column, u);
}

template <class Shape>
void launch(cuda::Stream& stream, const Arguments& args) {
  const std::size_t bytes = Shape::bytes(args.most_groups);
  cuda::allow_shared(stream, draft_boundary_kernel<Shape>, bytes);
  const dim3 blocks(args.x.cols / Shape::unit * ranks, (args.x.rows + Shape::tokens - 1) / Shape::tokens);
  cuda::launch(stream, "draft boundary", {blocks, dim3(threads), bytes, ranks}, draft_boundary_kernel<Shape>, args);
}

}  // namespace boundary

// rms_norm(x + conv_1(y)) of one row of a block, into the next row of a dense matrix. A thread per line of eight columns.
__global__ void __launch_bounds__(1024)
    draft_finish_kernel(const float* base, MatrixView<const float> coefficients, int group, int block, int first, int kept,
                        MatrixView<const float> y, MatrixView<const float> x, const float* gain, float eps,
                        MatrixView<float> out, cuda::Panel panel) {
  __shared__ float scratch[32];
  cuda::begin_kernel();
  const int to = blockIdx.x, row = to / kept * block + first + to % kept;
  const int column = threadIdx.x * 8, hidden = x.cols, groups = hidden / group;
  float values[8] = {}, squares = 0;
  if (column < hidden) {
    float here[8], before[8] = {};
    cuda::load_columns(x, row, column, values);
    cuda::load_columns(y, row, column, here);
    if (row % block != 0) cuda::load_columns(y, row - 1, column, before);
    const float* p = cuda::row_of(coefficients, row) + 2 * groups + column / group;
    const float tap0 = p[0], tap1 = p[groups];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[i] += fmaf(base[2 * hidden + column + i] + tap0, here[i], (base[3 * hidden + column + i] + tap1) * before[i]);
      squares = fmaf(values[i], values[i], squares);
    }
  }
  const float scale = 1.0f / sqrtf(cuda::block_sum(squares, scratch) / static_cast<float>(hidden) + eps);
  if (column >= hidden) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = values[i] * scale * gain[column + i];
  cuda::store_columns(out, to, column, values);
  cuda::store_line(panel, to, column, values);
}

// One column range of a matrix copied, into its panel as well.
__global__ void __launch_bounds__(128)
    draft_feature_kernel(MatrixView<const float> x, MatrixView<float> features, int first, cuda::Panel panel) {
  cuda::begin_kernel();
  const int i = blockIdx.x * blockDim.x + threadIdx.x, lines = x.cols / 8, row = i / lines, column = i % lines * 8;
  if (row >= x.rows) return;
  float values[8];
  cuda::load_columns(x, row, column, values);
  cuda::store_columns(features, row, first + column, values);
  cuda::store_line(panel, row, first + column, values);
}

}  // namespace

MatrixView<float> draft_boundary(cuda::Stream& stream, MatrixView<float> x, MatrixView<float> spare,
                                 const DraftBoundary& b) {
  using Narrow = boundary::Shape<1, 256>;
  using Wide = boundary::Shape<2, 512>;
  const bool ends = b.end.y.rows > 0;
  const int tiles_k = x.cols / 64, most_groups = (tiles_k + boundary::ranks - 1) / boundary::ranks;
  if (stream.portable() || b.conv.projection.format != pack::Format::q4 || x.cols % Narrow::unit != 0 ||
      b.group != boundary::coefficient_channels || 8 % b.block != 0 || most_groups > Narrow::most_groups) {
    return draft_boundary<cuda::Stream>(stream, x, spare, b);
  }
  SPLASH_CHECK(x.rows % b.block == 0 && b.conv.projection.rows == x.cols / 4 && b.conv.projection.cols == x.cols);
  for (const MatrixView<const float>& m : {MatrixView<const float>(x), MatrixView<const float>(spare), b.end.y,
                                           MatrixView<const float>(b.convolved)}) {
    SPLASH_CHECK(reinterpret_cast<std::uintptr_t>(m.data) % 16 == 0 && m.stride % 4 == 0);
  }
  SPLASH_CHECK(spare.data != x.data && spare.rows == x.rows && spare.cols == x.cols);
  SPLASH_CHECK(b.end.coefficients.data != b.coefficients.data);
  boundary::Arguments args{.tiles = reinterpret_cast<const std::uint8_t*>(b.conv.projection.data),
                         .tiles_k = tiles_k,
                         .most_groups = most_groups,
                         .block_mask = b.block - 1,
                         .base_end = ends ? b.end.base.data() + 2 * x.cols : nullptr,
                         .base = b.conv.base.data(),
                         .gain = b.gain.data(),
                         .eps = b.eps,
                         .coefficients_end = b.end.coefficients,
                         .y = b.end.y,
                         .x = x,
                         .x_out = spare,
                         .coefficients = b.coefficients,
                         .convolved = b.convolved,
                         .panel = stream.panel_to_fill(b.convolved)};
  stream.forget_panels(b.normed);
  if (x.rows <= 8 || x.cols % Wide::unit != 0) {
    boundary::launch<Narrow>(stream, args);
  } else {
    boundary::launch<Wide>(stream, args);
  }
  return ends ? spare : x;
}

void draft_finish(cuda::Stream& stream, MatrixView<float> x, const DraftBoundary::End& end, int group, int block,
                  std::span<const float> gain, float eps, int first, MatrixView<float> normed) {
  const int lines = x.cols / 8, blocks = x.rows / block, kept = normed.rows / blocks;
  SPLASH_CHECK(x.cols % 8 == 0 && group % 8 == 0 && x.rows % block == 0 && lines <= 1024 && normed.rows == blocks * kept &&
               first + kept <= block);
  const cuda::Panel panel = stream.panel_to_fill(normed);
  cuda::launch(stream, "draft finish", {dim3(normed.rows), dim3((lines + 31) / 32 * 32)}, draft_finish_kernel, end.base.data(),
               end.coefficients, group, block, first, kept, end.y, x, gain.data(), eps, normed, panel);
}

void draft_feature(cuda::Stream& stream, MatrixView<const float> x, MatrixView<float> features, int index) {
  SPLASH_CHECK(x.rows == features.rows && features.cols % x.cols == 0 && x.cols % 8 == 0);
  cuda::Panel panel;
  if (index == 0) {
    panel = stream.panel_to_fill(features);
  } else if (const cuda::Panel* begun = stream.panel_of(features)) {
    panel = *begun;
  }
  const int lines = x.rows * (x.cols / 8);
  cuda::launch(stream, "draft feature", {dim3((lines + 127) / 128), dim3(128)}, draft_feature_kernel, x, features,
               index * x.cols, panel);
}

}  // namespace splash::ops
