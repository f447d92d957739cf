#include <algorithm>

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

// One slot, by a warp: lane i has candidate i's id and score. Returns the token taken.
__device__ Token walk_slot(Token id, float score, int k, const LaneChoice& choice, int slot, SlotLaw& out) {
  const int lane = threadIdx.x % 32;
  if (lane >= k) id = INT_MAX, score = -INFINITY;
  if (isnan(score)) score = -INFINITY;
  float top = score;
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, distance));
  const Token best = __reduce_min_sync(0xffffffffu, score == top ? id : INT_MAX);  // ties to the lower id
  const bool point = !(choice.temperature > 0) || !isfinite(top);
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

// A block per lane, a warp per candidate: S(a, b) = U(b) + sum_r A[a,r] g[r] B[b,r].
__global__ void __launch_bounds__(most * 32) walk_kernel(const __grid_constant__ Walk walk) {
  __shared__ float scores[most];
  __shared__ Token taken;
  cuda::begin_kernel();
  const int lane_index = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, k = walk.candidates.cols;
  Token* tokens = walk.tokens + lane_index * (walk.slots + 1);
  Token predecessor = tokens[0];
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
      if (lane == 0) {
        scores[warp] = cuda::row_of(walk.values, row)[warp] + sum;
        if (walk.scores) walk.scores[row * k + warp] = scores[warp];
      }
    }
    __syncthreads();
    if (warp == 0) {
      const Token token = walk_slot(lane < k ? cuda::row_of(walk.candidates, row)[lane] : 0,
                                    lane < k ? scores[lane] : 0.0f, k, walk.choices[lane_index], slot, walk.laws[row]);
      if (lane == 0) taken = tokens[slot + 1] = token;
    }
    __syncthreads();
    predecessor = taken;
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

constexpr int threads = 1024;
constexpr int warps = threads / 32;

// A token has weight if it ranks at or before (key, id) and passes min_p.
struct Cut {
  Token best = -1;
  float top = 0;
  std::uint32_t key = 0;
  Token id = INT_MAX;
  Weight total = 0;

  __device__ bool holds(std::uint32_t other, Token token) const { return other > key || (other == key && token <= id); }
};

__device__ Weight block_total(Weight value, Weight* scratch) {
  value = warp_sum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_sum(scratch[threadIdx.x % 32]);
}

// Sum of value(id, logit, key) over the row; every thread gets it.
template <class Value>
__device__ Weight over_row(const float* logits, int limit, Weight* scratch, Value value) {
  Weight sum = 0;
  for (int id = threadIdx.x; id < limit; id += threads) sum += value(id, logits[id], key_of(logits[id]));
  return block_total(sum, scratch);
}

// The largest key whose entries and all above it are together worth at least `need`; everything together must be.
struct Threshold {
  std::uint32_t key = 0;
  Weight above = 0;  // worth of the keys above it
  Weight at = 0;     // worth of the key itself
};
constexpr int digits = 16;
using Worths = Weight[digits][threads];  // dynamic shared memory: every thread counts for itself, without atomics

// Digit by digit of four bits, from the top: one pass over the row each.
template <class Value>
__device__ Threshold find_threshold(const float* logits, int limit, Weight need, Worths& worths, Weight* scratch,
                                    Value value) {
  Threshold found;
  std::uint32_t prefix = 0;
  for (int shift = 28; shift >= 0; shift -= 4) {
#pragma unroll
    for (int digit = 0; digit < digits; ++digit) worths[digit][threadIdx.x] = 0;
    for (int id = threadIdx.x; id < limit; id += threads) {
      const std::uint32_t key = key_of(logits[id]);
      if (shift < 28 && key >> (shift + 4) != prefix) continue;
      const Weight worth = value(id, logits[id], key);
      if (worth > 0) worths[key >> shift & (digits - 1)][threadIdx.x] += worth;
    }
    __syncthreads();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp < digits) {
      Weight sum = 0;
      for (int i = lane; i < threads; i += 32) sum += worths[warp][i];
      sum = warp_sum(sum);
      if (lane == 0) scratch[warp] = sum;
    }
    __syncthreads();
    int digit = digits - 1;
    while (digit > 0 && found.above + scratch[digit] < need) found.above += scratch[digit--];
    found.at = scratch[digit];
    prefix = prefix << 4 | static_cast<std::uint32_t>(digit);
    __syncthreads();
  }
  found.key = prefix;
  return found;
}

// The lowest id with which `count` entries of that key at ids <= it are held.
__device__ Token tie_cut(const float* logits, int limit, Weight* scratch, std::uint32_t key, Weight count) {
  int low = 0, high = limit - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    const Weight held = over_row(logits, limit, scratch,
                                 [&](Token id, float, std::uint32_t k) { return Weight{k == key && id <= middle}; });
    if (held >= count) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// A block per row.
__global__ void __launch_bounds__(threads) cut_kernel(const __grid_constant__ StepAcceptance args, Cut* cuts) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& worths = *reinterpret_cast<Worths*>(memory);
  __shared__ Weight scratch[warps];
  __shared__ std::uint64_t heads[warps];
  cuda::begin_kernel();
  const int lane_index = blockIdx.x / args.width;
  const LaneChoice& choice = args.choices[lane_index];
  if (static_cast<int>(blockIdx.x) % args.width >= choice.rows) return;
  const float* logits = cuda::row_of(args.logits, blockIdx.x);
  const int limit = args.limit;
  // The first of the order of rank: highest key, lowest id.
  std::uint64_t head = 0;
  for (int id = threadIdx.x; id < limit; id += threads) {
    const std::uint64_t mine = std::uint64_t{key_of(logits[id])} << 32 | (0xffffffffu - static_cast<unsigned>(id));
    head = mine > head ? mine : head;
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1) {
    const std::uint64_t other = __shfl_xor_sync(0xffffffffu, head, distance);
    head = other > head ? other : head;
  }
  if (threadIdx.x % 32 == 0) heads[threadIdx.x / 32] = head;
  __syncthreads();
  for (int warp = 0; warp < warps; ++warp) head = heads[warp] > head ? heads[warp] : head;
  Cut cut;
  const auto top_key = static_cast<std::uint32_t>(head >> 32);
  cut.best = static_cast<Token>(0xffffffffu - static_cast<std::uint32_t>(head));
  cut.top = logits[cut.best];
  const std::uint32_t nothing = key_of(-INFINITY);
  if (top_key <= nothing) {
    cut.best = -1;
  } else if (!(choice.temperature > 0) || !isfinite(cut.top)) {
    cut.key = top_key, cut.id = cut.best, cut.total = one;
  } else {
    cut.key = nothing + 1;
    const auto one_each = [&](Token, float, std::uint32_t key) { return Weight{key > nothing}; };
    const auto k = static_cast<Weight>(choice.top_k);
    if (choice.top_k > 0 && choice.top_k < limit && over_row(logits, limit, scratch, one_each) > k) {
      const Threshold found = find_threshold(logits, limit, k, worths, scratch, one_each);
      cut.key = found.key;
      if (found.above + found.at > k) cut.id = tie_cut(logits, limit, scratch, cut.key, k - found.above);
    }
    const auto weight = [&](float logit) { return weight_of(relative(logit, cut.top, choice.temperature)); };
    if (choice.top_p < 1.0f) {
      const Cut of_top_k = cut;
      const auto mass = [&](Token id, float logit, std::uint32_t key) {
        return of_top_k.holds(key, id) ? weight(logit) : Weight{0};
      };
      const Weight target = nucleus_target(choice.top_p, over_row(logits, limit, scratch, mass));
      const Threshold found = find_threshold(logits, limit, target, worths, scratch, mass);
      // Of the ties at the threshold only as many as are needed, by id; top_k may hold fewer of them at its own key.
      const Weight each = weight(value_of(found.key)), needed = (target - found.above + each - 1) / each;
      if (needed * each < found.at) {
        cut.id = tie_cut(logits, limit, scratch, found.key, needed);
      } else if (found.key != cut.key) {
        cut.id = INT_MAX;
      }
      cut.key = found.key;
    }
    cut.total = over_row(logits, limit, scratch, [&](Token id, float logit, std::uint32_t key) {
      const float share = relative(logit, cut.top, choice.temperature);
      return cut.holds(key, id) && share >= choice.min_p ? weight_of(share) : Weight{0};
    });
  }
  if (threadIdx.x == 0) cuts[blockIdx.x] = cut;
}

__device__ __forceinline__ Weight weight_in(const Cut& cut, const LaneChoice& choice, const float* logits, Token id) {
  const float share = relative(logits[id], cut.top, choice.temperature);
  return cut.holds(key_of(logits[id]), id) && share >= choice.min_p ? weight_of(share) : 0;
}

// Inversion in id order by a whole block: warp w owns a run of ids.
__device__ Token full_draw(const Cut& cut, const LaneChoice& choice, const float* logits, int limit,
                           const SlotLaw* rejected, double u, Weight* scratch, Token* drawn) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int run = ((limit + warps - 1) / warps + 31) / 32 * 32, begin = min(limit, warp * run),
            end = min(limit, begin + run);
  const auto mass = [&](Token id) {
    const Weight weight = weight_in(cut, choice, logits, id);
    return weight > 0 && rejected ? weight - covered(*rejected, id, weight, cut.total) : weight;
  };
  const auto sum_runs = [&] {
    Weight sum = 0;
    for (int id = begin + lane; id < end; id += 32) sum += mass(id);
    sum = warp_sum(sum);
    __syncthreads();
    if (lane == 0) scratch[warp] = sum;
    __syncthreads();
    return warp_sum(scratch[lane]);
  };
  Weight total = sum_runs();
  if (total == 0) {  // rounding left nothing
    rejected = nullptr;
    total = sum_runs();
  }
  const Weight target = hit(u, total);
  Weight seen = 0;
  for (int before = 0; before < warp; ++before) seen += scratch[before];
  if (threadIdx.x == 0) *drawn = cut.best;
  __syncthreads();
  if (seen <= target && target < seen + scratch[warp]) {  // one warp
    for (int first = begin; first < end; first += 32) {
      const Weight here = first + lane < end ? mass(first + lane) : 0;
      const Weight upto = seen + warp_prefix(here);
      const unsigned past = __ballot_sync(0xffffffffu, upto > target);
      if (past != 0) {
        if (lane == __ffs(past) - 1) *drawn = first + lane;
        break;
      }
      seen = __shfl_sync(0xffffffffu, upto, 31);
    }
  }
  __syncthreads();
  return *drawn;
}

// A block per lane: one thread walks the proposals, all of them draw.
__global__ void __launch_bounds__(threads)
    full_accept_kernel(const __grid_constant__ StepAcceptance args, const Cut* cuts) {
  __shared__ Weight scratch[warps];
  __shared__ Token drawn;
  __shared__ int shared_accepted, shared_rejected;
  cuda::begin_kernel();
  const int lane_index = blockIdx.x;
  const LaneChoice& choice = args.choices[lane_index];
  const Token* tokens = args.tokens + lane_index * args.width;
  const bool greedy = !(choice.temperature > 0);
  const auto at = [&](int row) { return static_cast<std::uint64_t>(choice.position + 1 + row); };
  const SlotLaw* slots = args.laws + lane_index * (args.width - 1);
  if (threadIdx.x == 0) {
    int accepted = 0, rejected = 0;
    for (; accepted < choice.rows - 1; ++accepted) {
      const int row = lane_index * args.width + accepted;
      const Token token = tokens[accepted + 1];
      const Cut& cut = cuts[row];
      if (greedy) {
        if (cut.best != token) break;
        continue;
      }
      const Weight weight =
          token < args.limit ? weight_in(cut, choice, cuda::row_of(args.logits, row), token) : Weight{0};
      const double q = probability(slots[accepted], token) * __ull2double_rn(cut.total);
      if (uniform(choice.seed, at(accepted), Purpose::accept) * q < __ull2double_rn(weight)) continue;
      rejected = 1;
      break;
    }
    shared_accepted = accepted, shared_rejected = rejected;
  }
  __syncthreads();
  const int accepted = shared_accepted, row = lane_index * args.width + accepted;
  const Cut cut = cuts[row];
  Token next = cut.best;
  if (!greedy && cut.total > 0) {
    next =
        full_draw(cut, choice, cuda::row_of(args.logits, row), args.limit, shared_rejected ? slots + accepted : nullptr,
                  uniform(choice.seed, at(accepted), Purpose::residual), scratch, &drawn);
  }
  if (threadIdx.x == 0) finish(args, lane_index, accepted, next);
}

}  // namespace
}  // namespace law

void selector_walk(cuda::Stream& stream, const Walk& walk) {
  SPLASH_CHECK(walk.candidates.cols <= law::most && walk.candidates.rows == walk.lanes * walk.slots &&
               walk.slots < link::max_block);
  cuda::launch(stream, "selector walk", {dim3(walk.lanes), dim3(law::most * 32)}, law::walk_kernel, walk);
}

void mask_rows(cuda::Stream& stream, MatrixView<float> logits, const int* rows, int row_count,
               const std::uint32_t* masks, int words) {
  const int blocks = std::min(32, (logits.cols + 255) / 256);
  cuda::launch(stream, "mask rows", {dim3(blocks, row_count), dim3(256)}, law::mask_kernel, logits, rows, masks, words);
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
    cuda::allow_shared(stream, law::cut_kernel, sizeof(law::Worths));
    cuda::launch(stream, "law cuts", {dim3(args.logits.rows), dim3(law::threads), sizeof(law::Worths)}, law::cut_kernel,
                 args, cuts);
    const law::Cut* made = cuts;
    cuda::launch(stream, "accept full", {dim3(args.lanes), dim3(law::threads)}, law::full_accept_kernel, args, made);
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
