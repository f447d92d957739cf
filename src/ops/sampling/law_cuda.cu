#include <algorithm>
#include <bit>

#include "backend/cuda/launch.h"
#include "ops/draft/draft_cuda.h"
#include "ops/sampling/law_cuda.cuh"

namespace splash::ops {
namespace law {
namespace {

__device__ __forceinline__ float table_at(const pack::Table& table, int row, int col) {
  const std::int64_t index = static_cast<std::int64_t>(row) * table.cols + col;
  return table.format == pack::Format::bf16
             ? cuda::bf16_at(reinterpret_cast<const std::uint8_t*>(table.data) + index * 2)
             : reinterpret_cast<const float*>(table.data)[index];
}

// One slot, by a warp: lane i has candidate i's id and score. Returns the token taken. A greedy lane's law is not asked for.
__device__ __forceinline__ Token walk_slot(Token id, float score, int k, const LaneChoice& choice, int slot,
                                           SlotLaw& out) {
  const int lane = threadIdx.x % 32;
  if (lane >= k) id = INT_MAX, score = -INFINITY;
  if (isnan(score)) score = -INFINITY;
  float top = score;
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, distance));
  const Token best = __reduce_min_sync(0xffffffffu, score == top ? id : INT_MAX);  // ties to the lower id
  if (!(choice.temperature > 0)) return best;
  const bool point = !isfinite(top);
  const Weight weight = lane >= k ? 0
                        : point   ? (id == best ? one : 0)
                                  : weight_of(relative(score, top, choice.temperature));
  const Weight total = warp_sum(weight);
  const int rank = id_rank(id);
  if (lane < k) out.ids[rank] = id, out.weights[rank] = weight;
  if (lane == 0) out.count = k, out.total = total;
  __syncwarp();
  if (point) return best;
  Token token = best;
  if (lane == 0) {
    const auto at = static_cast<std::uint64_t>(choice.position + 1 + slot);
    const Weight mass = hit(uniform(choice.seed, at, Purpose::draft), total);
    Weight seen = 0;
    for (int i = 0; i < k; ++i) {
      seen += out.weights[i];
      if (seen > mass) {
        token = out.ids[i];
        break;
      }
    }
  }
  return __shfl_sync(0xffffffffu, token, 0);
}

constexpr int walk_blocks = 8;  // of a lane's cluster (portable: one block): slots are dealt out
constexpr int rank_lines = most_selector_rank_cuda / 32;
constexpr int walk_threads = most * 32;

// S(a, b) = U(b) + sum_r A[a,r] g[r] B[b,r]. Which predecessor a slot gets is known only once the slot before it is
// decided; but it is one of that slot's candidates. So the products of all pairs come first, a slot per block and a warp
// (or more, if there are enough) per candidate b, into the first block's shared memory, and what is left of the walk are
// look-ups.
__global__ void __launch_bounds__(walk_threads, 1) walk_kernel(const __grid_constant__ Walk walk) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int blocks = static_cast<int>(cuda::cluster_size()), lane_index = blockIdx.x / blocks, warp = threadIdx.x / 32, lane = threadIdx.x % 32,
            k = walk.candidates.cols, first_row = lane_index * walk.slots;
  auto* pairs = reinterpret_cast<float*>(memory);  // [slot][predecessor][candidate]
  __shared__ std::uint64_t arrived;                // of the first block: all pairs are there
  if (threadIdx.x == 0) {
    cuda::barrier_init(cuda::shared_address(&arrived), 1);
    cuda::barrier_init_done();
    cuda::barrier_expect(cuda::shared_address(&arrived), (1 + (walk.slots - 1) * k) * k * sizeof(float));
  }
  cuda::cluster_sync();  // every block is there before one writes into another
  cuda::begin_kernel();
  Token* tokens = walk.tokens + lane_index * (walk.slots + 1);
  for (int slot = static_cast<int>(cuda::cluster_rank()); slot < walk.slots; slot += blocks) {
    const int groups = most / k, group = warp / k, own = warp % k;  // of k warps; each takes every groups-th predecessor
    if (group >= groups) continue;
    const int predecessors = slot == 0 ? 1 : k;
    const Token before = slot == 0 ? tokens[0] : lane < k ? cuda::row_of(walk.candidates, first_row + slot - 1)[lane] : 0;
    const Token candidate = cuda::row_of(walk.candidates, first_row + slot)[own];
    const float* projection = cuda::row_of(walk.projections, first_row + slot);
    float g[rank_lines], b[rank_lines];
#pragma unroll
    for (int i = 0; i < rank_lines; ++i) {
      const int r = i * 32 + lane;
      const bool there = r < walk.projections.cols;
      g[i] = there ? projection[r] : 0, b[i] = there ? table_at(walk.weights.successor, candidate, r) : 0;
    }
    // Two predecessors' rows at a time are on their way; lane i keeps the i-th sum of this warp. No store before all are read.
    float mine = 0;
    constexpr int together = 2;
    for (int first = group, kept = 0; first < predecessors; first += together * groups, kept += together) {
      float rows[together][rank_lines];
#pragma unroll
      for (int j = 0; j < together; ++j) {
        const Token predecessor = __shfl_sync(0xffffffffu, before, min(first + j * groups, predecessors - 1));
#pragma unroll
        for (int i = 0; i < rank_lines; ++i) {
          const int r = i * 32 + lane;
          rows[j][i] = r < walk.projections.cols ? table_at(walk.weights.predecessor, predecessor, r) : 0;
        }
      }
#pragma unroll
      for (int j = 0; j < together; ++j) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < rank_lines; ++i) {
          if (i * 32 + lane < walk.projections.cols) sum = fmaf(rows[j][i] * g[i], b[i], sum);
        }
#pragma unroll
        for (int distance = 16; distance > 0; distance >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        if (lane == kept + j) mine = sum;
      }
    }
    if (const int a = group + lane * groups; a < predecessors)
      cuda::store_to_peer(pairs + (slot * k + a) * k + own, &arrived, 0, mine);
  }
  if constexpr (!cuda::hopper_code) __syncthreads();
  if (cuda::cluster_rank() != 0 || warp != 0) return;
  if constexpr (cuda::hopper_code) cuda::barrier_wait(cuda::shared_address(&arrived), 0);
  const LaneChoice& choice = walk.choices[lane_index];
  Token next_id = lane < k ? cuda::row_of(walk.candidates, first_row)[lane] : 0;
  float next_value = lane < k ? cuda::row_of(walk.values, first_row)[lane] : 0.0f;
  for (int slot = 0, predecessor = 0; slot < walk.slots; ++slot) {
    const int row = first_row + slot;
    const Token id = next_id;
    const float score = lane < k ? next_value + pairs[(slot * k + predecessor) * k + lane] : 0.0f;
    if (slot + 1 < walk.slots && lane < k) {  // under way while this slot is decided
      next_id = cuda::row_of(walk.candidates, row + 1)[lane], next_value = cuda::row_of(walk.values, row + 1)[lane];
    }
    if (walk.scores && lane < k) walk.scores[row * k + lane] = score;
    const Token token = walk_slot(id, score, k, choice, slot, walk.laws[row]);
    predecessor = __ffs(__ballot_sync(0xffffffffu, lane < k && id == token)) - 1;
    if (lane == 0) tokens[slot + 1] = token;
  }
}

__global__ void mask_kernel(MatrixView<float> logits, const int* rows, const std::uint32_t* masks, int words) {
  cuda::begin_kernel();
  float* row = cuda::row_of(logits, rows[blockIdx.y]);
  const std::uint32_t* mask = masks + static_cast<std::int64_t>(blockIdx.y) * words;
  for (int id = blockIdx.x * blockDim.x + threadIdx.x; id < logits.cols; id += gridDim.x * blockDim.x) {
    if (id >= words * 32 || !(mask[id / 32] >> (id % 32) & 1u)) row[id] = -INFINITY;
  }
}

// -- few: the law of a row lies in its largest logits ----------------------------------------------------------------

struct FewLaw {
  Token best;
  Weight total;
  Token ids[most];  // ascending
  Weight weights[most];
};

// By a warp: lane i has the row's i-th largest logit.
__device__ void few_law(Token id, float logit, int k, const LaneChoice& choice, FewLaw& out) {
  const int lane = threadIdx.x % 32;
  const float top = __shfl_sync(0xffffffffu, logit, 0);
  const Token best = __shfl_sync(0xffffffffu, id, 0);
  Weight weight = 0;
  if (!(choice.temperature > 0) || !isfinite(top)) {
    weight = lane == 0 && top > -INFINITY ? one : 0;
  } else {
    const int kept = choice.top_k > 0 ? choice.top_k : k;
    const float share = lane < k && lane < kept ? relative(logit, top, choice.temperature) : 0.0f;
    weight = weight_of(share);
    if (choice.top_p < 1.0f) {
      const Weight seen = warp_prefix(weight);
      const Weight target = nucleus_target(choice.top_p, __shfl_sync(0xffffffffu, seen, 31));
      if (seen - weight >= target) weight = 0;
    }
    if (share < choice.min_p) weight = 0;
  }
  const Weight total = warp_sum(weight);
  const int rank = id_rank(lane < k ? id : INT_MAX);
  if (lane < k) out.ids[rank] = id, out.weights[rank] = weight;
  if (lane == 0) out.best = top > -INFINITY ? best : -1, out.total = total;
}

// Inversion over a row's law, less what the rejected proposal's law covers (if there is one).
__device__ Token few_draw(const FewLaw& law, int k, const SlotLaw* rejected, double u) {
  Weight total = 0;
  const auto mass = [&](int i) {
    const Weight weight = law.weights[i];
    return weight > 0 && rejected ? weight - covered(*rejected, law.ids[i], weight, law.total) : weight;
  };
  for (int i = 0; i < k; ++i) total += mass(i);
  if (total == 0) rejected = nullptr, total = law.total;  // rounding left nothing
  const Weight target = hit(u, total);
  Weight seen = 0;
  for (int i = 0; i < k; ++i) {
    seen += mass(i);
    if (seen > target) return law.ids[i];
  }
  return law.best;
}

struct FewRows {
  MatrixView<const Token> ids;  // [lanes * width, k], values descending
  MatrixView<const float> values;
};

// A block per lane, a warp per row; then one thread walks the proposals.
__global__ void __launch_bounds__(link::max_block * 32)
    few_accept_kernel(const __grid_constant__ StepAcceptance args, FewRows top) {
  __shared__ FewLaw laws[link::max_block];
  cuda::begin_kernel();
  const int lane_index = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, k = top.ids.cols;
  const LaneChoice& choice = args.choices[lane_index];
  if (warp < choice.rows) {
    const int row = lane_index * args.width + warp;
    few_law(lane < k ? cuda::row_of(top.ids, row)[lane] : INT_MAX,
            lane < k ? cuda::row_of(top.values, row)[lane] : -INFINITY, k, choice, laws[warp]);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const Token* tokens = args.tokens + lane_index * args.width;
  const bool greedy = !(choice.temperature > 0);
  const auto at = [&](int row) { return static_cast<std::uint64_t>(choice.position + 1 + row); };
  int accepted = 0;
  const SlotLaw* rejected = nullptr;
  for (; accepted < choice.rows - 1; ++accepted) {
    const FewLaw& row = laws[accepted];
    const Token token = tokens[accepted + 1];
    if (greedy) {
      if (row.best != token) break;
      continue;
    }
    Weight weight = 0;
    for (int i = 0; i < k; ++i) {
      if (row.ids[i] == token) weight = row.weights[i];
    }
    const SlotLaw& slot = args.laws[lane_index * (args.width - 1) + accepted];
    const double q = probability(slot, token) * __ull2double_rn(row.total);
    if (uniform(choice.seed, at(accepted), Purpose::accept) * q < __ull2double_rn(weight)) continue;
    rejected = &slot;
    break;
  }
  const FewLaw& last = laws[accepted];
  const Token next = greedy || last.total == 0
                         ? last.best
                         : few_draw(last, k, rejected, uniform(choice.seed, at(accepted), Purpose::residual));
  finish(args, lane_index, accepted, next);
}

// -- full: the law of a row as a cut through its order of rank --------------------------------------------------------
// A row is shared by the eight blocks of a cluster, each with a slice of the ids in its own shared memory: a pass over
// the row is a pass over shared memory, and an exchange of sums. On devices without clusters one block reads the row
// from the L2 each time. Sums of integers: the tokens are the same.

constexpr int threads = 512;
constexpr int warps = threads / 32;
constexpr int most_blocks = 8;  // of a cluster

// A token has weight if it ranks at or before (key, id) and passes min_p.
struct Cut {
  Token best = -1;
  float top = 0;
  std::uint32_t key = 0;
  Token id = INT_MAX;
  Weight total = 0;

  __device__ bool holds(std::uint32_t other, Token token) const { return other > key || (other == key && token <= id); }
};

constexpr int bins = 8;  // sums of one pass
struct Exchange {
  Weight of_warps[bins][warps];
  Weight of_blocks[2][bins][most_blocks];  // by turns: what the peers still read is not written
  int turn;
};

// What the threads of all blocks hold, put together; everyone gets it. Exact in any order.
template <int count, class Together>
__device__ __forceinline__ void together(Weight (&values)[count], Exchange& exchange, Together put) {
  static_assert(count <= bins);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, turn = exchange.turn;
  const int blocks = static_cast<int>(cuda::cluster_size());
#pragma unroll
  for (int i = 0; i < count; ++i) {
#pragma unroll
    for (int distance = 16; distance > 0; distance >>= 1) {
      values[i] = put(values[i], __shfl_xor_sync(0xffffffffu, values[i], distance));
    }
    if (lane == 0) exchange.of_warps[i][warp] = values[i];
  }
  __syncthreads();
  if (warp < count) {
    Weight value = lane < warps ? exchange.of_warps[warp][lane] : 0;  // 0 adds nothing, and is no maximum
#pragma unroll
    for (int distance = 16; distance > 0; distance >>= 1) {
      value = put(value, __shfl_xor_sync(0xffffffffu, value, distance));
    }
    if (lane < blocks) cuda::store_to_peer(&exchange.of_blocks[turn][warp][cuda::cluster_rank()], lane, value);
  }
  if (threadIdx.x == 0) exchange.turn = 1 - turn;
  cuda::cluster_sync();
#pragma unroll
  for (int i = 0; i < count; ++i) {
    values[i] = exchange.of_blocks[turn][i][0];
#pragma unroll
    for (int block = 1; block < most_blocks; ++block) {
      if (block < blocks) values[i] = put(values[i], exchange.of_blocks[turn][i][block]);
    }
  }
}

// A block's part of a row: ids first .. first + count, as keys in shared memory or (no keys) as logits.
struct Slice {
  const std::uint32_t* keys;
  const float* logits;
  int first, count;

  template <class Visit>
  __device__ __forceinline__ void each(Visit visit) const {
    for (int i = threadIdx.x; i < count; i += threads) visit(first + i, keys ? keys[i] : key_of(__ldg(logits + i)));
  }
};

// Sum of value(id, key) over the row.
template <class Value>
__device__ Weight over_row(const Slice& slice, Exchange& exchange, Value value) {
  Weight sum[1] = {};
  slice.each([&](Token id, std::uint32_t key) { sum[0] += value(id, key); });
  together(sum, exchange, [](Weight a, Weight b) { return a + b; });
  return sum[0];
}

// The largest key whose entries and all above it are together worth at least `need`; everything together must be.
struct Threshold {
  std::uint32_t key = 0;
  Weight above = 0;  // worth of the keys above it
  Weight at = 0;     // worth of the key itself
};

// Digit by digit of three bits, from the top: one pass over the row each.
template <class Value>
__device__ Threshold find_threshold(const Slice& slice, Exchange& exchange, Weight need, Value value) {
  Threshold found;
  std::uint32_t prefix = 0;
  for (int shift = 30; shift >= 0; shift -= 3) {
    Weight worths[bins] = {};
    slice.each([&](Token id, std::uint32_t key) {
      if (shift < 30 && key >> (shift + 3) != prefix) return;
      const Weight worth = value(id, key);
      const std::uint32_t digit = key >> shift & (bins - 1);
#pragma unroll
      for (std::uint32_t i = 0; i < bins; ++i) worths[i] += digit == i ? worth : 0;
    });
    together(worths, exchange, [](Weight a, Weight b) { return a + b; });
    std::uint32_t digit = 0;
    bool reached = false;
#pragma unroll
    for (int i = bins - 1; i >= 0; --i) {  // constant indices: the sums stay in registers
      if (reached) continue;
      if (i == 0 || found.above + worths[i] >= need) {
        reached = true, digit = i, found.at = worths[i];
      } else {
        found.above += worths[i];
      }
    }
    prefix = prefix << 3 | digit;
  }
  found.key = prefix;
  return found;
}

// The lowest id with which `count` entries of that key at ids <= it are held.
__device__ Token tie_cut(const Slice& slice, Exchange& exchange, int limit, std::uint32_t key, Weight count) {
  int low = 0, high = limit - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    const Weight held = over_row(slice, exchange,
                                 [&](Token id, std::uint32_t other) { return Weight{other == key && id <= middle}; });
    if (held >= count) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

__device__ Cut find_cut(const Slice& slice, Exchange& exchange, const LaneChoice& choice, int limit) {
  // The first of the order of rank: highest key, lowest id.
  Weight head[1] = {};
  slice.each([&](Token id, std::uint32_t key) {
    head[0] = max(head[0], Weight{key} << 32 | (0xffffffffu - static_cast<unsigned>(id)));
  });
  together(head, exchange, [](Weight a, Weight b) { return max(a, b); });
  Cut cut;
  const auto top_key = static_cast<std::uint32_t>(head[0] >> 32);
  const std::uint32_t nothing = key_of(-INFINITY);
  if (top_key <= nothing) return cut;
  cut.best = static_cast<Token>(0xffffffffu - static_cast<std::uint32_t>(head[0]));
  cut.top = value_of(top_key);
  if (!(choice.temperature > 0) || !isfinite(cut.top)) {
    cut.key = top_key, cut.id = cut.best, cut.total = one;
    return cut;
  }
  cut.key = nothing + 1;
  const auto one_each = [&](Token, std::uint32_t key) { return Weight{key > nothing}; };
  const auto k = static_cast<Weight>(choice.top_k);
  if (choice.top_k > 0 && choice.top_k < limit && over_row(slice, exchange, one_each) > k) {
    const Threshold found = find_threshold(slice, exchange, k, one_each);
    cut.key = found.key;
    if (found.above + found.at > k) cut.id = tie_cut(slice, exchange, limit, cut.key, k - found.above);
  }
  const auto share = [&](std::uint32_t key) { return relative(value_of(key), cut.top, choice.temperature); };
  if (choice.top_p < 1.0f) {
    const Cut of_top_k = cut;
    const auto mass = [&](Token id, std::uint32_t key) {
      return of_top_k.holds(key, id) ? weight_of(share(key)) : Weight{0};
    };
    const Weight target = nucleus_target(choice.top_p, over_row(slice, exchange, mass));
    const Threshold found = find_threshold(slice, exchange, target, mass);
    // Of the ties at the threshold only as many as are needed, by id; top_k may hold fewer of them at its own key.
    const Weight each = weight_of(share(found.key)), needed = (target - found.above + each - 1) / each;
    if (needed * each < found.at) {
      cut.id = tie_cut(slice, exchange, limit, found.key, needed);
    } else if (found.key != cut.key) {
      cut.id = INT_MAX;
    }
    cut.key = found.key;
  }
  cut.total = over_row(slice, exchange, [&](Token id, std::uint32_t key) {
    const float part = share(key);
    return cut.holds(key, id) && part >= choice.min_p ? weight_of(part) : Weight{0};
  });
  return cut;
}

// A cluster per row. held: there is shared memory for the keys of a slice.
__global__ void __launch_bounds__(threads, 1)
    cut_kernel(const __grid_constant__ StepAcceptance args, int slice_ids, bool held, Cut* cuts) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto* keys = reinterpret_cast<std::uint32_t*>(memory);
  __shared__ Exchange exchange;
  if (threadIdx.x == 0) exchange.turn = 0;
  cuda::cluster_sync();  // every block is there before one writes into another
  cuda::begin_kernel();
  const int row = blockIdx.x / cuda::cluster_size(), lane_index = row / args.width;
  const LaneChoice& choice = args.choices[lane_index];
  if (row % args.width >= choice.rows) return;  // the whole cluster
  const float* logits = cuda::row_of(args.logits, row);
  const int first = min(args.limit, static_cast<int>(cuda::cluster_rank()) * slice_ids);
  const Slice slice{held ? keys : nullptr, logits + first, first, min(slice_ids, args.limit - first)};
#pragma unroll 8
  for (int i = threadIdx.x; held && i < slice.count; i += threads) keys[i] = key_of(__ldg(logits + first + i));
  __syncthreads();
  const Cut cut = find_cut(slice, exchange, choice, args.limit);
  if (cuda::cluster_rank() == 0 && threadIdx.x == 0) cuts[row] = cut;
}

__device__ __forceinline__ Weight weight_in(const Cut& cut, const LaneChoice& choice, float logit, Token id) {
  const float share = relative(logit, cut.top, choice.temperature);
  return cut.holds(key_of(logit), id) && share >= choice.min_p ? weight_of(share) : 0;
}

// How many proposals of a lane stand, by a warp: lane i judges proposal i.
struct Judged {
  int accepted;
  bool rejected;  // by the law: the next token comes from what it leaves
};
__device__ Judged judge(const StepAcceptance& args, const Cut* cuts, int lane_index) {
  const LaneChoice& choice = args.choices[lane_index];
  const int i = threadIdx.x % 32, proposals = choice.rows - 1;
  bool stands = false;
  if (i < proposals) {
    const int row = lane_index * args.width + i;
    const Token token = args.tokens[row + 1];
    const Cut& cut = cuts[row];
    if (!(choice.temperature > 0)) {
      stands = cut.best == token;
    } else {
      const Weight weight =
          token < args.limit ? weight_in(cut, choice, cuda::row_of(args.logits, row)[token], token) : Weight{0};
      const SlotLaw& slot = args.laws[lane_index * (args.width - 1) + i];
      const double q = probability(slot, token) * __ull2double_rn(cut.total);
      const auto at = static_cast<std::uint64_t>(choice.position + 1 + i);
      stands = uniform(choice.seed, at, Purpose::accept) * q < __ull2double_rn(weight);
    }
  }
  const unsigned falls = __ballot_sync(0xffffffffu, i < proposals && !stands);
  return falls == 0 ? Judged{proposals, false} : Judged{__ffs(falls) - 1, choice.temperature > 0};
}

// Inversion in id order by a cluster: block b owns a slice of the ids, warp w of it a run. The thread that finds the
// token writes it to `drawn` of the first block; `drawn` holds the best token before.
template <class Mass>
__device__ void full_draw(int limit, int slice_ids, double u, Exchange& exchange, Token* drawn, Mass mass_of) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = static_cast<int>(cuda::cluster_rank());
  const int run = slice_ids / warps, begin = min(limit, rank * slice_ids + warp * run), end = min(limit, begin + run);
  bool of_residual = true;
  Weight own = 0, total = 0;
  const auto sum = [&] {
    own = 0;
#pragma unroll 8
    for (int id = begin + lane; id < end; id += 32) own += mass_of(id, of_residual);
    own = warp_sum(own);
    Weight all[1] = {lane == 0 ? own : 0};
    together(all, exchange, [](Weight a, Weight b) { return a + b; });
    total = all[0];
  };
  sum();
  if (total == 0) {  // rounding left nothing
    of_residual = false;
    sum();
  }
  const Weight target = hit(u, total);
  // together() leaves the sums of this block's warps, and those of the blocks from its last turn.
  Weight seen = 0;
  for (int block = 0; block < rank; ++block) seen += exchange.of_blocks[1 - exchange.turn][0][block];
  for (int before = 0; before < warp; ++before) seen += exchange.of_warps[0][before];
  if (seen <= target && target < seen + own) {  // one warp of the cluster
    for (int first = begin; first < end; first += 32) {
      const Weight here = first + lane < end ? mass_of(first + lane, of_residual) : 0;
      const Weight upto = seen + warp_prefix(here);
      const unsigned past = __ballot_sync(0xffffffffu, upto > target);
      if (past != 0) {
        if (lane == __ffs(past) - 1) cuda::store_to_peer(drawn, 0, first + lane);
        break;
      }
      seen = __shfl_sync(0xffffffffu, upto, 31);
    }
  }
  cuda::cluster_sync();
}

// A cluster per lane.
__global__ void __launch_bounds__(threads)
    full_accept_kernel(const __grid_constant__ StepAcceptance args, int slice_ids, const Cut* cuts) {
  __shared__ Exchange exchange;
  __shared__ Token drawn;
  __shared__ Judged judged;
  if (threadIdx.x == 0) exchange.turn = 0;
  cuda::cluster_sync();  // every block is there before one writes into another
  cuda::begin_kernel();
  const int lane_index = blockIdx.x / cuda::cluster_size();
  const LaneChoice& choice = args.choices[lane_index];
  if (threadIdx.x < 32) {
    const Judged found = judge(args, cuts, lane_index);
    if (threadIdx.x == 0) judged = found;
  }
  __syncthreads();
  const int accepted = judged.accepted, row = lane_index * args.width + accepted;
  const Cut cut = cuts[row];
  if (threadIdx.x == 0) drawn = cut.best;
  if (choice.temperature > 0 && cut.total > 0) {
    const SlotLaw* rejected = judged.rejected ? args.laws + lane_index * (args.width - 1) + accepted : nullptr;
    const float* logits = cuda::row_of(args.logits, row);
    const auto at = static_cast<std::uint64_t>(choice.position + 1 + accepted);
    full_draw(args.limit, slice_ids, uniform(choice.seed, at, Purpose::residual), exchange, &drawn,
              [&](Token id, bool of_residual) {
                const Weight weight = weight_in(cut, choice, __ldg(logits + id), id);
                return weight > 0 && rejected && of_residual ? weight - covered(*rejected, id, weight, cut.total) : weight;
              });
  }
  if (cuda::cluster_rank() == 0 && threadIdx.x == 0) finish(args, lane_index, accepted, drawn);
}

}  // namespace
}  // namespace law

void selector_walk(cuda::Stream& stream, const Walk& walk) {
  SPLASH_CHECK(walk.candidates.cols <= law::most && walk.candidates.rows == walk.lanes * walk.slots &&
               walk.slots < link::max_block);
  SPLASH_CHECK(walk.projections.cols <= most_selector_rank_cuda);
  const std::size_t bytes = static_cast<std::size_t>(walk.slots * walk.candidates.cols * walk.candidates.cols) * 4;
  cuda::allow_shared(stream, law::walk_kernel, bytes);
  const unsigned cluster = stream.portable() ? 1 : law::walk_blocks;
  cuda::launch(stream, "selector walk", {dim3(cluster * walk.lanes), dim3(law::walk_threads), bytes, cluster},
               law::walk_kernel, walk);
}

void mask_rows(cuda::Stream& stream, MatrixView<float> logits, const int* rows, int row_count,
               const std::uint32_t* masks, int words) {
  const int blocks = std::min(32, (logits.cols + 255) / 256);
  cuda::launch(stream, "mask rows", {dim3(blocks, row_count), dim3(256)}, law::mask_kernel, logits, rows, masks, words);
}

std::optional<std::vector<Token>> arrived(const LaneChosen& chosen, std::uint32_t ticket) {
  // The device writes a word at once, and it is read at once.
  const auto read = [](const LaneChosen::Word& word) {
    return std::bit_cast<LaneChosen::Word>(*reinterpret_cast<const volatile std::uint64_t*>(&word));
  };
  const LaneChosen::Word count = read(chosen.count);
  if (count.ticket != ticket) return std::nullopt;
  std::vector<Token> tokens;
  for (int i = 0; i < std::min<int>(count.value, link::max_block); ++i) {
    const LaneChosen::Word token = read(chosen.tokens[i]);
    if (token.ticket != ticket) return std::nullopt;
    tokens.push_back(token.value);
  }
  return tokens;
}

LawKind law_kind(const link::Sampling& sampling, int limit) {
  if (!(sampling.temperature > 0)) return LawKind::greedy;
  const bool few = (sampling.top_k > 0 && sampling.top_k <= law::most) || limit <= law::most;
  return few ? LawKind::few : LawKind::full;
}

void accept(cuda::Stream& stream, const StepAcceptance& args) {
  SPLASH_CHECK(args.logits.rows == args.lanes * args.width && args.limit <= args.logits.cols &&
               args.width <= link::max_block && (args.width == 1 || args.laws));
  if (args.kind == LawKind::full) {
    auto* cuts = stream.allocate<law::Cut>(static_cast<std::size_t>(args.logits.rows));
    const bool held = !stream.portable();
    const int cluster = held ? law::most_blocks : 1;
    const int slice = (args.limit + cluster * law::threads - 1) / (cluster * law::threads) * law::threads;
    const std::size_t bytes = held ? static_cast<std::size_t>(slice) * sizeof(std::uint32_t) : 0;
    SPLASH_CHECK(bytes <= 192 << 10, "a vocabulary of {} is too large for eight blocks", args.limit);
    cuda::allow_shared(stream, law::cut_kernel, bytes);
    const auto blocks = static_cast<unsigned>(cluster);
    cuda::launch(stream, "law cuts", {dim3(blocks * args.logits.rows), dim3(law::threads), bytes, blocks},
                 law::cut_kernel, args, slice, held, cuts);
    const law::Cut* made = cuts;
    cuda::launch(stream, "accept full", {dim3(blocks * args.lanes), dim3(law::threads), 0, blocks},
                 law::full_accept_kernel, args, slice, made);
    return;
  }
  const int k = args.kind == LawKind::greedy ? 1 : std::min(law::most, args.limit);
  const MatrixView<Token> ids{stream.allocate<Token>(static_cast<std::size_t>(args.logits.rows) * k), args.logits.rows,
                              k};
  const MatrixView<float> values = stream.matrix(args.logits.rows, k);
  top_k(stream, args.logits, args.limit, ids, values);
  cuda::launch(stream, "accept few", {dim3(args.lanes), dim3(link::max_block * 32)}, law::few_accept_kernel, args,
               law::FewRows{ids, values});
}

}  // namespace splash::ops
