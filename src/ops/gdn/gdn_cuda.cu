#include <algorithm>
#include <cstddef>

#include "backend/cuda/launch.h"
#include "backend/cuda/lines.cuh"
#include "ops/gdn/gdn_cuda.cuh"
#include "ops/gdn/gdn_prefill_cuda.h"

// A cluster of two blocks owns one value head of one lane, each with half (64) of the value columns. What a lane's tape
// and history hold of keys and queries all value heads of a key head read; the last of them (`owns_keys`) writes it
// anew once all have been counted that read it (`readers`). A cluster of them all would need no count, but clusters of
// six do not fill the chip: of four lanes' 64 there were 62 at once, and the last two took as long again as one lane
// (0017).
// A block's 256 threads hold its half of the state, 32 floats each: warp w has columns 8w .. 8w + 7 (gdn_cuda.cuh has
// the lanes), so a row costs two dot products over keys (exchanged among 8 lanes) and one update, without any block
// barrier. State in memory: [value head][half][float4 j][thread], j = 4 * column + i: every access is one coalesced
// float4. Bytes per lane and layer (27B): 3.1 MB of state read and, where rows were kept, written: 1.4 us at 4.5 TB/s.

namespace splash::ops {
namespace {

using namespace delta;

constexpr int threads = state_threads;
constexpr int warps = threads / 32;
constexpr int channels_here = 2 * dim + half;
constexpr int fours_here = channels_here / 4;
constexpr int staged = warps;  // rows at a time, a warp each: the rule is one such batch a pass

struct Staging {
  // Read and written four floats at a time.
  alignas(16) float raw[history + staged][channels_here];  // the inputs: three before the first row, then the rows
  alignas(16) float q[staged][dim];
  alignas(16) float k[staged][dim];
  alignas(16) float v[staged][half];
  alignas(16) float o[staged][half];
  alignas(16) float z[staged][half];
  alignas(16) float old[link::max_block][dim + half];  // keys and changes of the kept rows
  alignas(16) float gain[half];                        // of the norm
  float4 gates[staged];                                // a and b, then alpha, beta, k . q
  float4 taps[channels_here];                          // a lane's neighbouring channels 32 apart: slot()
  float old_alpha[link::max_block];
  float a_log, dt_bias;           // of the value head
  float squares[2][2][staged];    // [parity][half of the value head][row]
  std::uint64_t squares_here[2];  // [parity]: those of the other half have arrived
  // For later, so that they take no registers meanwhile. leaves: state and history, with the kept rows folded in.
  GdnLane lane;
  int first_row, rows;
  bool verify, leaves;
  // Of channel `local`: where a warp reads the taps of its lanes' first channels, then of their second ones, and so on.
  __device__ static int slot(int local) {
    return local < 2 * dim ? (local & dim) + local % 4 * 32 + local % dim / 4
                           : 2 * dim + local % 2 * 32 + (local - 2 * dim) / 2;
  }
};
static_assert(link::max_block >= warps);
static_assert(half == cuda::Panel::group);

// Where this block is, out of one register (`bits`) that the compiler can be made to forget (cuda::opaque): what
// depends on it is then worked out where it stands and kept nowhere.
struct Place {
  int thread;                      // of the block
  int key_head, value_head, side;  // side: half of the value columns
  bool owns_keys;                  // the block that writes what is shared (q, k)
  int key_heads, value_heads, channels;
  __device__ int channel(int local) const {
    const int of_keys = key_head * dim + (local < dim ? 0 : (key_heads - 1) * dim),
              of_values = 2 * (key_heads - 1) * dim + first_column();
    return local + (local < 2 * dim ? of_keys : of_values);
  }
  __device__ Place(const GdnGeometry& g, int of_block, int bits)
      : thread(of_block),
        key_head(bits >> 16),
        value_head(bits >> 2 & 0x3fff),
        side(bits & 1),
        owns_keys(bits & 2),
        key_heads(g.key_heads),
        value_heads(g.value_heads),
        channels((2 * g.key_heads + g.value_heads) * dim) {}
  __device__ int first_column() const { return value_head * dim + side * half; }
};

__device__ __forceinline__ TapeRow tape_row(const Place& place, float* tape, int row) {
  return delta::tape_row(place.key_heads, place.value_heads, tape, row);
}

using State = Keys[2];  // of the two columns

__device__ __forceinline__ void store_state(const Place& place, const GdnLane& lane, const State& s) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float(&from)[4] = s[j / 4][j % 4];
    *state_at(lane, place.value_head, place.side, j, place.thread) = make_float4(from[0], from[1], from[2], from[3]);
  }
}

// Most of this code runs once a launch and its warps wait for each other, so the chain of what waits for what counts.

// A kept row's operands are on their way, by a warp.
__device__ __forceinline__ void request_kept(const Place& place, const GdnLane& lane, int row, Staging& shared) {
  const int four = place.thread % 32 * 4;
  const TapeRow tape = tape_row(place, lane.tape, row);
  cuda::copy_16(cuda::shared_address(&shared.old[row][four]), tape.k + place.key_head * dim + four);
  if (four < half) {
    cuda::copy_16(cuda::shared_address(&shared.old[row][dim + four]), tape.d + place.first_column() + four);
  } else if (four == half) {
    cuda::copy_4(cuda::shared_address(&shared.old_alpha[row]), tape.alpha + place.value_head);
  }
}
// The last three inputs before the new rows, out of [conv rows, kept tape rows], four channels a thread.
static_assert(history * fours_here <= threads);
__device__ __forceinline__ void request_history(const Place& place, const GdnLane& lane, int kept, Staging& shared) {
  const int j = place.thread / fours_here, local = place.thread % fours_here * 4, row = j + kept;
  if (j >= history) return;
  const float* from =
      row < history ? lane.conv + row * place.channels : tape_row(place, lane.tape, row - history).raw;
  cuda::copy_16(cuda::shared_address(&shared.raw[j][local]), from + place.channel(local));
}
// Where what the next pass finds before its first row begins in `raw`: 0 if this pass's rows are proposals.
__device__ __forceinline__ void store_history(const Place& place, const GdnLane& lane, int first,
                                              const Staging& shared) {
  const int j = place.thread / fours_here, local = place.thread % fours_here * 4;
  if (j >= history || !(place.owns_keys || local >= 2 * dim)) return;
  *reinterpret_cast<float4*>(lane.conv + j * place.channels + place.channel(local)) =
      *reinterpret_cast<const float4*>(&shared.raw[first + j][local]);
}

// Where a warp's row of a batch comes from: found before the wait for the kernel that writes it.
struct RowSource {
  const float *keys, *values, *gate;
  __device__ __forceinline__ RowSource(const Arguments& args, const Place& place, int row) {
    const int four = place.thread % 32 * 4, column = place.first_column() + four % half;
    const float* qkv = cuda::row_of(args.rows.qkv, row);
    keys = qkv + place.key_head * dim + four;
    values = four < half ? qkv + 2 * place.key_heads * dim + column : cuda::row_of(args.rows.z, row) + column;
    gate = cuda::row_of(four ? args.rows.b : args.rows.a, row) + place.value_head;
  }
  // Rows before a batch's first one: the inputs only, into raw[to].
  __device__ __forceinline__ void request_inputs(const Place& place, int to, Staging& shared) const {
    const int four = place.thread % 32 * 4;
    cuda::copy_16(cuda::shared_address(&shared.raw[to][four]), keys);
    cuda::copy_16(cuda::shared_address(&shared.raw[to][dim + four]), keys + place.key_heads * dim);
    if (four < half) cuda::copy_16(cuda::shared_address(&shared.raw[to][2 * dim + four]), values);
  }
  __device__ __forceinline__ void request(const Place& place, int r, Staging& shared) const {
    const int four = place.thread % 32 * 4;
    float(&raw)[channels_here] = shared.raw[history + r];
    cuda::copy_16(cuda::shared_address(&raw[four]), keys);
    cuda::copy_16(cuda::shared_address(&raw[dim + four]), keys + place.key_heads * dim);
    cuda::copy_16(cuda::shared_address(four < half ? &raw[2 * dim + four] : &shared.z[r][four - half]), values);
    if (four < 8) cuda::copy_4(cuda::shared_address(&shared.gates[r].x) + four, gate);
  }
};

// Convolution + SiLU of a lane's `n` neighbouring channels of a row; inputs: of the row three before it. now: the
// row's.
template <int n>
struct alignas(n * 4) Few {
  float at[n];
};
template <int n>
__device__ __forceinline__ Few<n> convolve(const float* inputs, const float4* taps, Few<n>& now) {
  Few<n> in[history], out;
#pragma unroll
  for (int j = 0; j < history; ++j) in[j] = *reinterpret_cast<const Few<n>*>(inputs + j * channels_here);
  now = *reinterpret_cast<const Few<n>*>(inputs + history * channels_here);
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const float before[history] = {in[0].at[i], in[1].at[i], in[2].at[i]};
    out.at[i] = convolved(taps[i * 32], before, now.at[i]);
  }
  return out;
}
__device__ __forceinline__ float4 four_of(const Few<4>& few) {
  return make_float4(few.at[0], few.at[1], few.at[2], few.at[3]);
}

// q, k, v and gates of a row whose inputs are here, by a warp.
__device__ __forceinline__ void prepare_row(const Place& place, const GdnLane& lane, int row, int tape_at, bool verify,
                                            Staging& shared) {
  const int lane_id = place.thread % 32;
  const float* inputs = shared.raw[row];
  Few<4> now;
  Few<2> now_v;
  float4 q = four_of(convolve(inputs + lane_id * 4, shared.taps + lane_id, now));
  float4 k = four_of(convolve(inputs + dim + lane_id * 4, shared.taps + dim + lane_id, now));
  const Few<2> v = convolve(inputs + 2 * dim + lane_id * 2, shared.taps + 2 * dim + lane_id, now_v);
  const Gates gates = gates_of(shared.gates[row].x, shared.gates[row].y, shared.a_log, shared.dt_bias);
  const float key_query = normalise(q, k);
  *reinterpret_cast<float4*>(&shared.q[row][lane_id * 4]) = q;
  *reinterpret_cast<float4*>(&shared.k[row][lane_id * 4]) = k;
  *reinterpret_cast<Few<2>*>(&shared.v[row][lane_id * 2]) = v;
  __syncwarp();
  if (lane_id == 0) shared.gates[row] = make_float4(gates.alpha, gates.beta, key_query, 0);
  if (!verify) return;
  const TapeRow tape = tape_row(place, lane.tape, tape_at);  // of this block's own, and alpha
  *reinterpret_cast<Few<2>*>(tape.raw + 2 * place.key_heads * dim + place.first_column() + lane_id * 2) = now_v;
  if (place.side == 0 && lane_id == 0) tape.alpha[place.value_head] = gates.alpha;
}
// What the tape has of a row for all value heads of the key head.
__device__ __forceinline__ void store_shared_tape(const Place& place, const GdnLane& lane, int row, int tape_at,
                                                  const Staging& shared) {
  const int four = place.thread % 32 * 4;
  const TapeRow tape = tape_row(place, lane.tape, tape_at);
  const auto copy = [&](float* to, const float* from) {
    *reinterpret_cast<float4*>(to + place.key_head * dim + four) = *reinterpret_cast<const float4*>(from + four);
  };
  copy(tape.k, shared.k[row]);
  copy(tape.raw, shared.raw[history + row]);
  copy(tape.raw + place.key_heads * dim, shared.raw[history + row] + dim);
}

// silu(z), by half of the warps. So they come later to the recurrence, and of the two warps that share a scheduler one
// multiplies while the other waits for sums, where in step both waited (0017).
__device__ __forceinline__ void open_gates(int thread, Staging& shared) {
  static_assert(sizeof shared.z == threads / 2 * sizeof(float4));
  float4& z = reinterpret_cast<float4*>(shared.z)[thread];
  z = make_float4(silu(z.x), silu(z.y), silu(z.z), silu(z.w));
}

// The rows one after the other, two columns a thread.
__device__ __forceinline__ void recur(const Place& place, const GdnLane& lane, int count, int tape_first, bool verify,
                                      Staging& shared, State& s) {
  const int part = part_of(place.thread), own = first_column_of(place.thread) + part % 2;
  const std::int64_t stride = tape_stride(place.key_heads, place.value_heads);
  // Parts 0 and 1 store a column's change each, parts 2 and 3 what goes out.
  float* change = tape_row(place, lane.tape, tape_first).d + place.first_column() + own;
  const bool to_tape = verify && part < 2, out = part / 2 == 1;
  const float *k = shared.k[0], *q = shared.q[0], *v = &shared.v[0][own];
  float* o = &shared.o[0][own];
#pragma unroll 1
  for (int row = 0; row < count; ++row) {
    const float4 gates = shared.gates[row];
    const RowStep step = step_row(s, k, q, part, gates.x, gates.y, gates.z, *v);
    if (out) *o = step.o;
    if (to_tape) *change = step.d;
    k += dim, q += dim, v += half, change += stride, o += half;
  }
}

// Gated RMSNorm: eight lanes have a row's 64 columns, so two warps do it all. Sums of squares of the value head's other
// half come in stores that count at a barrier here. (A cluster's barrier with release waits for all the tape's stores
// first.)
struct RowEnd {
  static constexpr int lanes = 8;
  static constexpr int threads = staged * lanes;
  static_assert(threads % 32 == 0);
  float o[8];

  // Neighbours first, as half_squares.
  static __device__ __forceinline__ float of_row(float sum) {
#pragma unroll
    for (int distance = 1; distance < lanes; distance <<= 1) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    return sum;
  }

  __device__ __forceinline__ void begin(const Place& place, int count, int parity, Staging& shared) {
    const int row = place.thread / lanes, line = place.thread % lanes;
    const float4* from = reinterpret_cast<const float4*>(&shared.o[row][line * 8]);
    cuda::take_eight(from[0], from[1], o);
    const float squares = of_row(squares_of_8(o));
    if (line == 0 && row < count) {
      float* to = &shared.squares[parity][place.side][row];
      *to = squares;
      cuda::store_to_peer(to, &shared.squares_here[parity], place.side ^ 1, squares);
    }
    __syncwarp();
  }
  __device__ __forceinline__ void end(const Arguments& args, const Place& place, int first_row, int count, int parity,
                                      int phase, Staging& shared) {
    const int row = place.thread / lanes, local = place.thread % lanes * 8;
    const float4 *z4 = reinterpret_cast<const float4*>(&shared.z[row][local]),
                 *gain4 = reinterpret_cast<const float4*>(&shared.gain[local]);
    const float4 z[2] = {z4[0], z4[1]}, gain[2] = {gain4[0], gain4[1]};
    cuda::barrier_wait(cuda::shared_address(&shared.squares_here[parity]), phase);
    const float scale = norm_scale(args, shared.squares[parity][0][row] + shared.squares[parity][1][row]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float* four = o + i * 4;
      four[0] = gated(four[0], scale, gain[i].x, z[i].x), four[1] = gated(four[1], scale, gain[i].y, z[i].y);
      four[2] = gated(four[2], scale, gain[i].z, z[i].z), four[3] = gated(four[3], scale, gain[i].w, z[i].w);
    }
    const int at = first_row + row, column = place.first_column() + local;
    const bool there = row < count;
    const float sum = there ? cuda::store_line_alone(args.panel, at, column, o) : 0;
    if (args.panel.sums) {
      const float of_group = of_row(sum);
      if (there && local == 0) *cuda::panel_sum(args.panel, at, column) = of_group;
    }
    if (there) cuda::store_columns(args.out, at, column, o);
  }
};

// Blocks of this key head and segment that have read what the lane's earlier passes left. All of them come before the
// one that waits in the grid, or are its cluster's other half: they are there or have been.
struct Readers {
  unsigned* count;
  __device__ void add() const { atomicAdd(count, 1u); }
  __device__ unsigned look() const { return *static_cast<volatile unsigned*>(count); }
  __device__ void wait(unsigned seen, unsigned blocks) const {
    while (seen < blocks) seen = look();
    *count = 0;  // as the next launch expects it
  }
};

// Grid: halves of the value heads of a key head x key heads x segments. each: blocks that share a multiprocessor, two
// or three.
template <int each>
__global__ void __launch_bounds__(threads, each)
    gdn_kernel(const __grid_constant__ Arguments args, unsigned* all_readers) {
  extern __shared__ __align__(16) unsigned char memory[];
  Staging& shared = *reinterpret_cast<Staging*>(memory);
  cuda::dependents_may_start();
  const GdnGeometry& g = args.geometry;
  // Mostly a segment is the lane of the same number: a round trip less.
  const SegmentEntry segment = args.tables.segments[blockIdx.z];
  GdnLane lane = args.tables.lanes[blockIdx.z];
  const int warp = threadIdx.x / 32;
  const unsigned of_key_head = gridDim.x;
  int bits = (blockIdx.y << 16) | ((blockIdx.y * of_key_head + blockIdx.x) / 2 << 2) |
             (blockIdx.x == of_key_head - 2 ? 2 : 0) | static_cast<int>(cuda::cluster_rank());
  Place place(g, static_cast<int>(threadIdx.x), bits);
  if (threadIdx.x == 0) {
    for (std::uint64_t& barrier : shared.squares_here) cuda::barrier_init(cuda::shared_address(&barrier), 1);
    cuda::barrier_init_done();
  }
  if (args.conv_weights) {  // a fold brings no weights: it convolves nothing
    const auto request_taps = [&](int local) {
      cuda::copy_16(cuda::shared_address(&shared.taps[Staging::slot(local)]),
                    args.conv_weights + place.channel(local) * (history + 1));
    };
    static_assert(threads == 2 * dim);
    request_taps(threadIdx.x);
    if (threadIdx.x < half) {
      request_taps(threads + threadIdx.x);
      cuda::copy_4(cuda::shared_address(&shared.gain[threadIdx.x]), args.norm + place.side * half + threadIdx.x);
    }
    if (threadIdx.x >= threads - 2) {
      const bool last = threadIdx.x == threads - 1;
      cuda::copy_4(cuda::shared_address(last ? &shared.a_log : &shared.dt_bias),
                   (last ? args.a_log : args.dt_bias) + place.value_head);
    }
  }
  if (segment.lane != static_cast<int>(blockIdx.z)) lane = args.tables.lanes[segment.lane];
  const bool verify = segment.mode == static_cast<int>(GdnMode::verify);
  __builtin_assume(__isGlobal(lane.state)), __builtin_assume(__isGlobal(lane.conv));
  __builtin_assume(__isGlobal(lane.tape)), __builtin_assume(__isGlobal(lane.kept));
  if (threadIdx.x == 0) {
    shared.lane = lane;
    shared.first_row = segment.first_row, shared.rows = segment.rows, shared.verify = verify;
  }

  const int kept = *lane.kept;  // first: what is asked for next takes the memory's time
  // What earlier passes left is asked for, and folded in, while the linear before this kernel still ends (gdn_cuda.h).
  // A warp's row is asked for before it is known whether it was kept.
  State s;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float4 four = *state_at(lane, place.value_head, place.side, j, threadIdx.x);
    float(&to)[4] = s[j / 4][j % 4];
    cuda::take_four(four, to);
  }
  request_kept(place, lane, warp, shared);
  cuda::commit_copies();
  RowSource source(args, place, segment.first_row + warp);
#pragma unroll 1
  for (int row = warp + warps; row < kept; row += warps) request_kept(place, lane, row, shared);
  request_history(place, lane, kept, shared);
  cuda::commit_copies();
  asm volatile("" : "+l"(source.keys), "+l"(source.values), "+l"(source.gate));
  cuda::wait_for_predecessors();
  if (warp < segment.rows) source.request(place, warp, shared);
  cuda::commit_copies();
  // The kept rows are folded in while the new ones are on their way.
  kept > warps ? cuda::wait_copies<1>() : cuda::wait_copies<2>();
  __syncthreads();
  const int part = part_of(threadIdx.x), column = first_column_of(threadIdx.x);
#pragma unroll 1
  for (int row = 0; row < kept; ++row) {
    Keys k;
    load_vector(shared.old[row], part, k);
    const float alpha = shared.old_alpha[row];
    const float2 d = *reinterpret_cast<const float2*>(&shared.old[row][dim + column]);
    update(s[0], alpha, k, d.x);
    update(s[1], alpha, k, d.y);
  }
  const bool leaves = verify && kept > 0;
  if (leaves) store_state(place, lane, s);
  if (threadIdx.x == 0) shared.leaves = leaves;
  cuda::wait_copies<0>();
  __syncthreads();
  // This block has read what is there of earlier passes: the cluster's other half may write over it (whoever arrives
  // has it in shared memory, so nothing needs to be released), and store into shared memory here.
  cuda::cluster_arrive_relaxed();
  const auto readers = [&] { return Readers{all_readers + blockIdx.z * g.key_heads + place.key_head}; };
  if (threadIdx.x == 0) readers().add();
  unsigned seen = 0;
  if (segment.rows == 0) {
    if (place.owns_keys && threadIdx.x == 0) readers().wait(seen, of_key_head);
    cuda::cluster_wait();
    __syncthreads();
    if (leaves) store_history(place, lane, 0, shared);
    return;
  }
#pragma unroll 1
  for (int first = 0;;) {
    // One batch is the rule: nothing is worth keeping for the next.
    const auto forget = [&] {
      bits = cuda::opaque(bits), place = Place(g, cuda::opaque(static_cast<int>(threadIdx.x)), bits);
    };
    forget();
    int warp = place.thread / 32, parity = first / staged % 2, count = min(staged, shared.rows - first);
    if (place.thread == 0)
      cuda::barrier_expect(cuda::shared_address(&shared.squares_here[parity]), count * sizeof(float));
    if (first == 0) cuda::cluster_wait();
    if (warp < count) prepare_row(place, shared.lane, warp, first + warp, shared.verify, shared);
    const bool waits = first == 0 && place.owns_keys && place.thread == threads - 1;
    if (each < 3 && waits) seen = readers().look();  // looked at again behind the rows; three have no register for it
    __syncthreads();
    if (warp >= warps / 2) open_gates(place.thread - threads / 2, shared);
    forget();
    recur(place, shared.lane, count, first, shared.verify, shared, s);
    forget();
    first = cuda::opaque(first);
    warp = place.thread / 32, parity = first / staged % 2, count = min(staged, shared.rows - first);
    if (waits) readers().wait(seen, of_key_head);
    __syncthreads();
    RowEnd end;
    const bool ends = place.thread < RowEnd::threads;
    if (ends) end.begin(place, count, parity, shared);
    if (shared.verify && place.owns_keys && warp < count)
      store_shared_tape(place, shared.lane, warp, first + warp, shared);
    if (shared.verify ? shared.leaves && first == 0 : first + count == shared.rows)
      store_history(place, shared.lane, shared.verify ? 0 : count, shared);
    if (ends) end.end(args, place, shared.first_row + first, count, parity, first / staged / 2 % 2, shared);
    first += staged;
    if (first >= shared.rows) break;
    __syncthreads();  // everyone is done with this batch
    const int next = shared.first_row + first + warp;
    if (first + warp < shared.rows) RowSource(args, place, next).request(place, warp, shared);
    if (warp < history) RowSource(args, place, next - history).request_inputs(place, warp, shared);
    cuda::commit_copies();
    cuda::wait_copies<0>();
    __syncthreads();
  }
  if (!shared.verify) store_state(place, shared.lane, s);
}

}  // namespace

void gdn(cuda::Stream& stream, const GdnGeometry& g, const GdnWeights& weights, const GdnRows& rows,
         const GdnTables& tables, MatrixView<float> out) {
  const int group = g.value_heads / g.key_heads;
  SPLASH_CHECK(g.key_dim == dim && g.value_dim == dim && g.conv_kernel == history + 1 && group <= 4 &&
                   g.value_heads % g.key_heads == 0,
               "the CUDA kernel is for heads of 128, four taps and at most 4 value heads per key head");
  Arguments args{g,
                 weights.conv.data(),
                 weights.a_log.data(),
                 weights.dt_bias.data(),
                 weights.norm.data(),
                 rows,
                 out,
                 out.rows > 0 ? stream.panel_to_fill(out) : cuda::Panel{},
                 tables};
  if (stream.portable()) return run_portable(stream, args);
  for (const MatrixView<const float>& copied : {rows.qkv, rows.z}) {
    SPLASH_CHECK(copied.stride % 4 == 0 && (reinterpret_cast<std::uintptr_t>(copied.data) & 15) == 0);
  }
  if (tables.longest_commit > batch && prefill_fits(stream, g, out.rows)) return prefill(stream, args);
  auto* readers = reinterpret_cast<unsigned*>(stream.exchange());
  in_turns(stream, args, [&](const Arguments& turn) {
    const dim3 blocks(2 * group, g.key_heads, turn.tables.segment_count);
    SPLASH_CHECK(std::size_t{blocks.z} * g.key_heads * sizeof(*readers) <= stream.exchange_bytes());
    const unsigned each = blocks_each(stream, blocks);
    auto* kernel = each > 2 ? gdn_kernel<3> : gdn_kernel<2>;
    const std::size_t bytes = std::max(sizeof(Staging), shared_for(each));
    cuda::allow_shared(stream, kernel, bytes);
    cuda::launch(stream, "gdn", {blocks, dim3(threads), bytes, 2}, kernel, turn, readers);
  });
}

void gdn(cuda::Stream& stream, const GdnGeometry& geometry, const GdnWeights& weights, const GdnRows& rows,
         std::span<const GdnSegment> segments, MatrixView<float> out) {
  std::vector<SegmentEntry> entries;
  std::vector<GdnLane> lanes;
  int longest = 0;
  bool all_commit = true;
  for (const GdnSegment& part : segments) {
    SPLASH_CHECK(part.mode == GdnMode::commit || part.segment.rows <= link::max_block);
    // The table of lanes is indexed by the segment here: one entry each.
    entries.push_back({static_cast<int>(lanes.size()), part.segment.first_row, part.segment.rows, part.segment.position,
                       static_cast<int>(part.mode), 0, nullptr});
    lanes.push_back(part.lane);
    longest = std::max(longest, part.segment.rows);
    all_commit = all_commit && part.mode == GdnMode::commit;
  }
  const GdnTables tables{stream.upload(entries.data(), entries.size()), static_cast<int>(entries.size()),
                         stream.upload(lanes.data(), lanes.size()), all_commit ? longest : 0};
  gdn(stream, geometry, weights, rows, tables, out);
}

void gdn_fold(cuda::Stream& stream, const GdnGeometry& geometry, const GdnLane& lane) {
  const SegmentEntry entry{0, 0, 0, 0, static_cast<int>(GdnMode::verify), 0, nullptr};
  gdn(stream, geometry, {}, {}, GdnTables{stream.upload(&entry, 1), 1, stream.upload(&lane, 1)}, {});
}

}  // namespace splash::ops
