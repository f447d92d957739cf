// The device's laws against the host's, with the same uniforms: a token may differ only where rounding puts a uniform
// on the other side of a border, which these draws hardly ever meet.
#include "ops/sampling/law_cuda.h"

#include "ops/sampling/sampling.h"
#include "ops/testing_cuda.h"

namespace splash::ops {
namespace {

using namespace cuda::testing;

struct Setting {
  const char* name;
  link::Sampling sampling;
};
const Setting settings[] = {
    {"greedy", {.temperature = 0}},
    {"temperature 1", {}},
    {"temperature 0.6, top_k 20, top_p 0.95", {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f}},
    {"top_k 32", {.top_k = 32}},
    {"top_k 33", {.top_k = 33}},
    {"top_k 500, top_p 0.9", {.temperature = 1.3f, .top_k = 500, .top_p = 0.9f}},
    {"top_p 0.8", {.top_p = 0.8f}},
    {"top_p 0.0001", {.top_p = 0.0001f}},
    {"min_p 0.1", {.min_p = 0.1f}},
    {"top_k 7, top_p 0.7, min_p 0.2", {.top_k = 7, .top_p = 0.7f, .min_p = 0.2f}},
};

// Logits as models give them: many low ones, few high; ties at every height; some NaN and -infinity.
std::vector<float> awkward_logits(Numbers& numbers, int rows, int vocabulary) {
  std::vector<float> logits = numbers.normals(std::size_t(rows) * vocabulary, 3.0f);
  for (int i = 0; i < rows * 40; ++i)
    logits[numbers.below(static_cast<int>(logits.size()))] = std::round(numbers.normal() * 4) + 4;
  for (int i = 0; i < rows * 4; ++i) {
    logits[numbers.below(static_cast<int>(logits.size()))] = i % 2 ? NAN : -INFINITY;
  }
  return logits;
}

class LawCuda : public testing::TestWithParam<int> {};

// Lanes of four rows with proposals from a made-up draft law, all choices of the host repeated by every kind of kernel.
TEST_P(LawCuda, ChoosesWhatTheHostChooses) {
  const int vocabulary = GetParam(), limit = vocabulary - 3, lanes = 64, width = 4, candidates = std::min(16, limit);
  Numbers numbers(101 + vocabulary);
  Memory memory;
  for (const Setting& setting : settings) {
    const std::vector<float> logits = awkward_logits(numbers, lanes * width, vocabulary);
    std::vector<LaneChoice> choices(lanes);
    std::vector<Token> tokens(lanes * width);
    std::vector<SlotLaw> slots(lanes * (width - 1));
    std::vector<std::vector<Token>> want;
    for (int lane = 0; lane < lanes; ++lane) {
      link::Sampling sampling = setting.sampling;
      sampling.seed = numbers.below(1 << 30);
      LaneChoice& choice = choices[lane];
      choice = {.temperature = sampling.temperature,
                .top_p = sampling.top_p,
                .min_p = sampling.min_p,
                .top_k = sampling.top_k,
                .seed = sampling.seed,
                .position = lane * 7,
                .rows = 1 + lane % width,
                .budget = 99,
                .lane = lane,
                .ticket = 900u + lane};
      std::vector<Proposal> proposals;
      for (int slot = 0; slot < choice.rows - 1; ++slot) {
        // The draft knows the row's best tokens, so that acceptance happens.
        const std::span<const float> row(logits.data() + std::size_t(lane * width + slot) * vocabulary, vocabulary);
        Proposal& proposal = proposals.emplace_back();
        SlotLaw& law = slots[lane * (width - 1) + slot];
        std::vector<Token> ids;
        ids.push_back(argmax(row, limit, nullptr));
        while (static_cast<int>(ids.size()) < candidates) {
          const Token id = numbers.below(limit);
          if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
        }
        const Token best = ids[0];
        std::sort(ids.begin(), ids.end());
        law.count = candidates;
        double total = 0;
        for (int i = 0; i < candidates; ++i) {
          law.ids[i] = ids[i];
          const double weight = sampling.temperature > 0 ? (ids[i] == best ? 8 : numbers.uniform()) : ids[i] == best;
          law.weights[i] = static_cast<std::uint64_t>(weight * 1e9);
          law.total += law.weights[i];
          total += static_cast<double>(law.weights[i]);
        }
        if (sampling.temperature > 0) {
          for (int i = 0; i < candidates; ++i) {
            proposal.law.tokens.push_back(ids[i]);
            proposal.law.probabilities.push_back(static_cast<double>(law.weights[i]) / total);
          }
        }
        proposal.token = slot == 2 ? ids[3] : best;
        tokens[lane * width + slot + 1] = proposal.token;
      }
      Law row_law;
      Acceptance got;
      const auto law_of = [&](int row) -> const Law& {
        target_law({logits.data() + std::size_t(lane * width + row) * vocabulary, std::size_t(vocabulary)}, limit,
                   sampling, nullptr, row_law);
        return row_law;
      };
      if (sampling.temperature > 0) {
        got = accept(proposals, sampling, choice.position, law_of);
      } else {
        got.next = law_of(0).tokens[0];
        while (got.accepted < choice.rows - 1 && got.next == proposals[got.accepted].token)
          got.next = law_of(++got.accepted).tokens[0];
      }
      std::vector<Token>& chosen = want.emplace_back();
      for (int i = 0; i < got.accepted; ++i) chosen.push_back(proposals[i].token);
      chosen.push_back(got.next);
    }
    const LawKind least = law_kind(setting.sampling, limit);
    std::vector<std::vector<Token>> first;
    for (const LawKind kind : {LawKind::greedy, LawKind::few, LawKind::full}) {
      if (kind < least) continue;
      stream().reset();
      const MatrixView<float> on_device = memory.matrix(logits, lanes * width, vocabulary);
      StepAcceptance args{.logits = on_device, .limit = limit, .lanes = lanes, .width = width, .kind = kind};
      args.choices = memory.copy(choices);
      args.tokens = memory.copy(tokens);
      args.laws = memory.copy(slots);
      args.chosen = memory.empty<LaneChosen>(lanes);
      args.kept = memory.empty<int>(lanes);
      accept(stream(), args);
      const auto got = download(args.chosen, lanes);
      const auto kept = download(args.kept, lanes);
      int same = 0;
      std::vector<std::vector<Token>> all;
      for (int lane = 0; lane < lanes; ++lane) {
        EXPECT_FALSE(arrived(got[lane], 1)) << "that is another step's ticket";
        const auto chosen = arrived(got[lane], 900u + lane);
        ASSERT_TRUE(chosen) << setting.name << ", lane " << lane;
        same += *chosen == want[lane];
        EXPECT_EQ(kept[lane], std::ssize(*chosen));
        if (!first.empty()) {
          EXPECT_EQ(*chosen, first[lane]) << setting.name << ": kinds of kernel differ, lane " << lane;
        }
        all.push_back(*chosen);
      }
      std::printf("  %-40s kind %d: %d of %d lanes as the host\n", setting.name, static_cast<int>(kind), same, lanes);
      EXPECT_GE(same, lanes - 1) << setting.name;
      if (first.empty()) first = std::move(all);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Vocabularies, LawCuda, testing::Values(40, 1000, 50'021));

TEST(LawCudaEnds, StopsBudgetsAndMasks) {
  const int vocabulary = 100, width = 4;
  Memory memory;
  std::vector<float> logits(width * vocabulary, 0.0f);
  for (int row = 0; row < width; ++row) logits[row * vocabulary + 10 + row] = 5;  // greedy path 10, 11, 12, 13
  const std::vector<Token> tokens{1, 10, 11, 12};
  const auto run = [&](LaneChoice choice, const std::vector<std::uint32_t>& masks) {
    stream().reset();
    const MatrixView<float> on_device = memory.matrix(logits, width, vocabulary);
    if (!masks.empty()) {
      const std::vector<int> rows{0, 1, 2, 3};
      mask_rows(stream(), on_device, memory.copy(rows), width, memory.copy(masks),
                static_cast<int>(masks.size()) / width);
    }
    StepAcceptance args{.logits = on_device, .limit = vocabulary, .lanes = 1, .width = width, .kind = LawKind::greedy};
    args.choices = memory.copy(&choice, 1);
    args.tokens = memory.copy(tokens);
    const std::vector<SlotLaw> none(width - 1);
    args.laws = memory.copy(none);
    args.chosen = memory.empty<LaneChosen>(1);
    std::vector<DraftContextSegment> contexts(2, {.rows = 9});
    args.contexts = memory.copy(contexts);
    args.context_layers = 2, args.context_stride = 1;
    accept(stream(), args);
    const std::vector<Token> got = arrived(download(args.chosen, 1)[0], choice.ticket).value();
    for (const DraftContextSegment& context : download(args.contexts, 2)) EXPECT_EQ(context.rows, std::ssize(got));
    return got;
  };
  LaneChoice choice{.rows = width, .budget = 9, .ticket = 1};
  EXPECT_EQ(run(choice, {}), (std::vector<Token>{10, 11, 12, 13}));
  choice.budget = 2;
  EXPECT_EQ(run(choice, {}), (std::vector<Token>{10, 11}));
  choice.budget = 9, choice.rows = 2;
  EXPECT_EQ(run(choice, {}), (std::vector<Token>{10, 11}));
  choice.rows = width, choice.stop_count = 2, choice.stops[0] = 99, choice.stops[1] = 11;
  EXPECT_EQ(run(choice, {}), (std::vector<Token>{10, 11}));
  std::vector<std::uint32_t> masks(width * 4, 0xffffffffu);
  masks[1 * 4 + 0] &= ~(1u << 11);  // row 1 may not choose 11: the lowest other id
  EXPECT_EQ(run({.rows = width, .budget = 9, .ticket = 2}, masks), (std::vector<Token>{10, 0}));
  std::fill_n(masks.begin(), 4, 0u);  // row 0 allows nothing: the reply ends with its first stop token
  EXPECT_EQ(run(choice, masks), (std::vector<Token>{99}));
}

// The walk against the host's, greedy and sampled.
TEST(WalkCuda, WalksAsTheHost) {
  const int vocabulary = 500, rank = 48, k = 16, lanes = 8, slots = 7;
  Numbers numbers(77);
  Memory memory;
  const std::vector<float> a = numbers.normals(std::size_t(vocabulary) * rank, 0.3f),
                           b = numbers.normals(std::size_t(vocabulary) * rank, 0.3f);
  const auto table = [&](const float* data) {
    return pack::Table{pack::Format::f32, vocabulary, rank, reinterpret_cast<const std::byte*>(data)};
  };
  std::vector<Token> candidates(lanes * slots * k), tokens(lanes * (slots + 1));
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    do candidates[i] = numbers.below(vocabulary);
    while (std::find(candidates.begin() + std::ptrdiff_t(i / k * k), candidates.begin() + std::ptrdiff_t(i),
                     candidates[i]) != candidates.begin() + std::ptrdiff_t(i));
  }
  const std::vector<float> values = numbers.normals(candidates.size()),
                           projections = numbers.normals(std::size_t(lanes) * slots * rank);
  std::vector<LaneChoice> choices(lanes);
  for (int lane = 0; lane < lanes; ++lane) {
    choices[lane] = {.temperature = lane % 2 ? 0.8f : 0.0f, .seed = 5u + lane, .position = 30 + lane};
    tokens[lane * (slots + 1)] = lane;
  }
  Walk walk;
  walk.weights = {table(memory.copy(a)), table(memory.copy(b))};
  walk.candidates = {memory.copy(candidates), lanes * slots, k};
  walk.values = {memory.copy(values), lanes * slots, k};
  walk.projections = {memory.copy(projections), lanes * slots, rank};
  walk.lanes = lanes, walk.slots = slots;
  walk.choices = memory.copy(choices);
  walk.tokens = memory.copy(tokens);
  walk.laws = memory.empty<SlotLaw>(lanes * slots);
  stream().reset();
  selector_walk(stream(), walk);
  const auto got = download(walk.tokens, tokens.size());
  const auto laws = download(walk.laws, lanes * slots);
  const SelectorWeights host{table(a.data()), table(b.data())};
  for (int lane = 0; lane < lanes; ++lane) {
    std::vector<Proposal> want;
    const auto part = [&](auto& from, int cols) {
      return MatrixView<const std::remove_reference_t<decltype(from[0])>>(
          from.data() + std::size_t(lane) * slots * cols, slots, cols);
    };
    link::Sampling sampling{.temperature = choices[lane].temperature, .seed = choices[lane].seed};
    selector_walk(host, part(candidates, k), part(values, k), part(projections, rank), lane, sampling,
                  choices[lane].position, want);
    for (int slot = 0; slot < slots; ++slot) {
      EXPECT_EQ(got[lane * (slots + 1) + slot + 1], want[slot].token) << "lane " << lane << ", slot " << slot;
      if (!(choices[lane].temperature > 0)) continue;  // nobody asks for a greedy lane's law
      const SlotLaw& law = laws[lane * slots + slot];
      ASSERT_EQ(law.count, k);
      for (int i = 0; i < k; ++i) {
        const double q = static_cast<double>(law.weights[i]) / static_cast<double>(law.total);
        const double expected =
            want[slot].law.tokens.empty() ? law.ids[i] == want[slot].token : want[slot].law.of(law.ids[i]);
        EXPECT_NEAR(q, expected, 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace splash::ops
