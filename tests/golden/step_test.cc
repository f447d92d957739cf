// Section 4 of issue 3 on random models with random drafts: greedy with the draft is greedy without it, state after
// steps is the state of a fresh prefill, snapshots, budgets, stops, the context's end, and the sampled law through the
// step.
#include <fmt/format.h>

#include <cstdlib>

#include "golden/golden.h"
#include "golden/seats.h"
#include "ops/sampling/chi_square.h"
#include "ops/sampling/sampling.h"
#include "support/rest.h"

namespace splash::test {
namespace {

using models::Backend;
using models::Device;

// SPLASH_TEST_BACKEND=cuda runs these tests on the GPU, over the geometries that its kernels are for.
bool on_cuda() {
  const char* backend = std::getenv("SPLASH_TEST_BACKEND");
  return backend != nullptr && std::string_view(backend) == "cuda";
}

RandomModel for_cuda(RandomModel model) {
  model.hidden = model.intermediate = 128;
  model.head_dim = 256;
  model.rotary_share = 0.25;
  model.key_dim = model.value_dim = 128;
  model.draft_head_dim = 64;
  return model;
}

RandomModel ours(RandomModel model) { return on_cuda() ? for_cuda(std::move(model)) : model; }

// Geometries that differ in what matters: head ratios, tying, order of layers, windows, blocks, taps.
std::vector<RandomModel> random_models() {
  if (on_cuda()) {
    return {
        for_cuda({.seed = 1}),
        for_cuda({.seed = 2, .layers = "ggga", .key_heads = 2, .value_heads = 2, .tied = true, .window = 8}),
        for_cuda(
            {.seed = 3, .query_heads = 4, .kv_heads = 2, .key_heads = 1, .value_heads = 3, .window = 40, .block = 4}),
        for_cuda({.seed = 4, .layers = "ag", .key_heads = 2, .value_heads = 6, .draft_layers = 2, .window = 0}),
        for_cuda({.seed = 5, .vocab = 20, .layers = "gg", .block = 6, .taps = {1}, .skill = 0.5}),
        for_cuda({.seed = 6, .layers = "aa", .kv_heads = 2, .tied = true, .block = 2, .taps = {0}}),
        for_cuda({.seed = 8, .vocab = 64, .layers = "ggga", .mixing = 0.8, .window = 33, .block = 16, .skill = 0}),
        for_cuda({.seed = 9, .layers = "gga", .mixing = 0.1, .block = 16, .skill = 1.2}),
    };
  }
  return {
      {.seed = 1},
      {.seed = 2, .layers = "ggga", .key_heads = 2, .value_heads = 2, .tied = true, .window = 8},
      {.seed = 3, .query_heads = 4, .kv_heads = 2, .key_heads = 1, .value_heads = 3, .window = 40, .block = 4},
      {.seed = 4, .layers = "ag", .key_heads = 2, .value_heads = 6, .draft_layers = 2, .window = 0},
      {.seed = 5, .vocab = 20, .layers = "gg", .conv_kernel = 2, .block = 6, .taps = {1}, .skill = 0.5},
      {.seed = 6, .layers = "aa", .kv_heads = 2, .tied = true, .block = 2, .taps = {0}},
      {.seed = 7,
       .vocab = 12,
       .layers = "gagg",
       .key_heads = 2,
       .value_heads = 4,
       .key_dim = 64,
       .value_dim = 32,
       .draft_layers = 2,
       .window = 9,
       .taps = {0, 2, 3},
       .top_k = 5},
      {.seed = 8, .vocab = 64, .layers = "ggga", .mixing = 0.8, .window = 33, .block = 16, .skill = 0},
      {.seed = 9, .layers = "gga", .mixing = 0.1, .block = 16, .skill = 1.2},
  };
}

struct Opened {
  TemporaryFolder folder;
  std::shared_ptr<const pack::Package> package;
  std::unique_ptr<model::Model> model;
};
std::unique_ptr<Opened> open(const RandomModel& random, const Device& device, int pages_per_lane = 6, int context = 0,
                             pack::WeightChoice weights = pack::WeightChoice::source) {
  auto opened = std::make_unique<Opened>();
  opened->package = random_package(random, opened->folder.path(), weights);
  auto model = models::open(opened->package, {.backend = device.backend,
                                              .threads = device.threads,
                                              .isa = device.isa,
                                              .lanes = 8,
                                              .pages = 8 * pages_per_lane,
                                              .snapshots = 2,
                                              .host_snapshots = 1,  // on a GPU one of each kind
                                              .max_prefill_rows = 8 * 40,
                                              .max_context = context > 0 ? context : pages_per_lane * 32});
  SPLASH_CHECK(model.has_value(), "{}", model.error().message);
  opened->model = std::move(*model);
  return opened;
}

std::vector<Device> devices() {
  if (on_cuda()) return {{.backend = Backend::cuda}};
  std::vector<Device> devices{{.backend = Backend::ref}};
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  devices.push_back({Backend::cpu, 2, ""});  // the best instruction set is enough for the sanitizers
  return devices;
#endif
  for (const std::string& isa : isas()) {
    devices.push_back({Backend::cpu, 1, isa});
    devices.push_back({Backend::cpu, 2, isa});
  }
  return devices;
}
// One of each kind.
std::vector<Device> few_devices() {
  if (on_cuda()) return devices();
  return {{.backend = Backend::ref}, {Backend::cpu, 1, ""}};
}
std::string name_of(const Device& device) {
  if (device.backend == Backend::cuda) return "cuda";
  if (device.backend == Backend::ref) return "ref";
  return fmt::format("cpu {} {} threads", device.isa, device.threads);
}

std::vector<SeatRequest> requests(const RandomModel& random, int count, int max_tokens, bool use_draft) {
  constexpr int lengths[] = {1, 3, 7, 8, 20, 31, 32, 33, 47, 64, 70, 2};
  std::vector<SeatRequest> all(count);
  for (int i = 0; i < count; ++i) {
    all[i].prompt = random_text(random.seed * 100 + i, lengths[i % std::size(lengths)], random.vocab);
    all[i].setup = {.sampling = {.temperature = 0}, .use_draft = use_draft};
    all[i].max_tokens = max_tokens;
  }
  return all;
}

TEST(Step, GreedyWithTheDraftIsGreedyWithoutIt) {
  for (const Device& device : devices()) {
    int equal = 0, total = 0, steps = 0, accepted = 0;
    std::vector<int> lengths;
    for (const RandomModel& random : random_models()) {
      const bool small = device.backend == Backend::ref;
      if ((small || device.threads > 1) && random.seed % 3 != 1) continue;
      const auto opened = open(random, device);
      Seats seats(*opened->model);
      const int count = small ? 5 : 12, tokens = small ? 20 : 48;
      auto plain = requests(random, count, tokens, false);
      seats.run(plain, {.seed = 1, .chunk = 512, .lanes = 1});  // alone, one pass, one row at a time
      auto drafted = requests(random, count, tokens, true);
      seats.run(drafted, {.seed = random.seed, .width = 16});  // in company, random slices and budgets, lanes reused
      auto narrow = requests(random, count, tokens, true);
      seats.run(narrow, {.seed = random.seed + 50, .budget = 9, .width = 0, .lanes = 3});
      for (std::size_t i = 0; i < plain.size(); ++i) {
        total += 2;
        equal += (plain[i].reply == drafted[i].reply) + (plain[i].reply == narrow[i].reply);
        EXPECT_EQ(plain[i].reply, drafted[i].reply) << name_of(device) << ", model " << random.seed << ", prompt " << i;
        EXPECT_EQ(plain[i].reply, narrow[i].reply) << name_of(device) << ", model " << random.seed << ", prompt " << i;
        steps += drafted[i].steps + narrow[i].steps;
        accepted += drafted[i].accepted + narrow[i].accepted;
      }
    }
    fmt::print("greedy {}: {}/{} replies equal to plain greedy, {:.2f} tokens per step\n", name_of(device), equal,
               total, 1.0 + double(accepted) / steps);
    EXPECT_GT(accepted, steps / 3) << "the drafts of this test must really be accepted";
  }
}

// On the GPU the bits of a row are the same up to 32 rows of a pass: four lanes of eight.
TEST(Step, FourBitWeightsOnTheGpuToo) {
  if (!on_cuda()) GTEST_SKIP();
  const RandomModel random = for_cuda({.seed = 21, .layers = "ggga", .key_heads = 2, .value_heads = 4});
  const auto opened = open(random, {.backend = Backend::cuda}, 6, 0, pack::WeightChoice::q4);
  Seats seats(*opened->model);
  auto plain = requests(random, 12, 64, false), drafted = requests(random, 12, 64, true);
  seats.run(plain, {.chunk = 7, .lanes = 1});
  seats.run(drafted, {.seed = 5, .chunk = 7, .lanes = 4});
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(plain[i].reply, drafted[i].reply) << i;
}

TEST(Step, FourBitWeightsToo) {
  if (on_cuda()) GTEST_SKIP();
  for (const std::string& isa : isas()) {
    const RandomModel random{.seed = 21, .layers = "ggga", .key_heads = 2, .value_heads = 4};
    const auto opened = open(random, {Backend::cpu, 2, isa}, 6, 0, pack::WeightChoice::q4);
    Seats seats(*opened->model);
    auto plain = requests(random, 8, 64, false), drafted = requests(random, 8, 64, true);
    seats.run(plain, {.chunk = 512, .lanes = 1});
    seats.run(drafted, {.seed = 5});
    for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(plain[i].reply, drafted[i].reply) << isa << ", " << i;
  }
}

TEST(Step, EveryBudgetAndEveryStop) {
  for (const Device& device : few_devices()) {
    const RandomModel random = ours({.seed = 31, .mixing = 0.1});
    const auto opened = open(random, device);
    Seats seats(*opened->model);
    auto plain = requests(random, 1, 40, false);
    plain[0].prompt = random_text(9, 30, random.vocab);
    seats.run(plain, {.chunk = 512});
    for (int budget = 1; budget <= 9; ++budget) {
      std::vector<SeatRequest> one{plain[0]};
      one[0] = {.prompt = plain[0].prompt, .setup = {.sampling = {.temperature = 0}}, .max_tokens = 40};
      seats.run(one, {.chunk = 512, .budget = budget});
      EXPECT_EQ(one[0].reply, plain[0].reply) << "budget " << budget;
      EXPECT_GE(one[0].steps, (39 + budget - 1) / budget);
    }
    for (int at = 0; at < 20; ++at) {
      const Token stop = plain[0].reply[at];
      std::vector<SeatRequest> one(1);
      one[0] = {.prompt = plain[0].prompt,
                .setup = {.sampling = {.temperature = 0}, .stop_tokens = {9999, stop}},
                .max_tokens = 40};
      seats.run(one, {.chunk = 512, .budget = 9});
      const auto end = std::find(plain[0].reply.begin(), plain[0].reply.end(), stop);
      EXPECT_EQ(one[0].reply, std::vector<Token>(plain[0].reply.begin(), end + 1)) << "stop at " << at;
      // All but the stop token is committed: a later turn continues exactly from here.
      EXPECT_EQ(one[0].committed, 30 + std::ssize(one[0].reply) - 1);
    }
  }
}

// Recurrent state (bit for bit) and draft context (the positions still in each ring) of two lanes.
void expect_same_state(model::Model& model, const Device& device, int a, int b, int length) {
  const Rest left = rest_of(model, device.backend, a), right = rest_of(model, device.backend, b);
  const models::qwen3_5::StateGeometry& g = left.geometry;
  const std::int64_t recurrent = g.gdn_layers * g.gdn_floats();
  const auto same = [&](std::int64_t at, std::int64_t count) {
    return std::equal(left.values.begin() + at, left.values.begin() + at + count, right.values.begin() + at);
  };
  EXPECT_TRUE(same(0, recurrent)) << "recurrent state at " << length;
  std::int64_t keys = recurrent;
  for (const int capacity : g.ring_capacity) {
    const std::int64_t part = (std::int64_t{capacity} * g.ring_width + 15) / 16 * 16;  // whole lines
    for (int p = std::max(0, length - capacity); p < length; ++p) {
      const std::int64_t slot = std::int64_t{p % capacity} * g.ring_width;
      EXPECT_TRUE(same(keys + slot, g.ring_width)) << "key of position " << p;
      EXPECT_TRUE(same(keys + part + slot, g.ring_width)) << "value of " << p;
    }
    keys += 2 * part;
  }
}

// Runs one lane through `steps` decode steps after a prompt and returns it mid-reply, with rows still on the tape.
SeatRequest partway(model::Model& model, std::vector<Token> prompt, int lane, int tokens) {
  Seats seats(model);
  std::vector<SeatRequest> all(lane + 1);  // lanes before it are short fillers, so that the lane number is right
  for (int i = 0; i < lane; ++i) {
    all[i] = {.prompt = {1, 2}, .setup = {.sampling = {.temperature = 0}}, .max_tokens = 1};
  }
  all[lane] = {.prompt = std::move(prompt), .setup = {.sampling = {.temperature = 0}}, .max_tokens = tokens};
  seats.run(all, {.seed = 3, .chunk = 13, .budget = 9});
  return all[lane];
}

TEST(Step, StateAfterStepsIsTheStateOfAFreshPrefill) {
  for (const Device& device : devices()) {
    for (const RandomModel& random : random_models()) {
      const bool small = device.backend == Backend::ref;
      if ((small || device.threads > 1) && random.seed % 4 != 3) continue;
      const auto opened = open(random, device);
      model::Model& model = *opened->model;
      // Prompts shorter than a block, at page edges, and beyond every window; replies that cross pages.
      for (const auto& [prompt, tokens] : {std::pair{2, 9}, {5, 40}, {31, 20}, {32, 33}, {60, 30}}) {
        if (small && tokens > 20) continue;
        const SeatRequest run = partway(model, random_text(prompt, prompt, random.vocab), 0, tokens);
        std::vector<Token> text = run.prompt;
        text.insert(text.end(), run.reply.begin(), run.reply.end() - 1);
        ASSERT_EQ(std::ssize(text), run.committed);
        // The whole committed text as a prompt in another lane; the token chosen after it is the anchor.
        Seats seats(model);
        std::vector<SeatRequest> fresh(2);
        fresh[0] = {.prompt = {0}, .setup = {.sampling = {.temperature = 0}}, .max_tokens = 1};
        fresh[1] = {.prompt = text, .setup = {.sampling = {.temperature = 0}}, .max_tokens = 1};
        model.save(0, 0);  // the filler takes lane 0
        seats.run(fresh, {.seed = 8});
        EXPECT_EQ(fresh[1].reply[0], run.reply.back());
        model.restore(0, 0);
        expect_same_state(model, device, 0, 1, run.committed);
        if (testing::Test::HasFailure()) {
          FAIL() << name_of(device) << ", model " << random.seed << ", prompt " << prompt << ", reply " << tokens;
        }
      }
    }
  }
}

// A mark inside a slice leaves the very state that a cut leaves there, in company, and does not show in what follows.
void expect_mark_is_a_cut(model::Model& model, const RandomModel& random, const Device& device, int before, int mark,
                          int after) {
  const Seats seats(model);
  const int length = before + mark;
  const std::vector<Token> text = random_text(random.seed + 500, length + after, random.vocab);
  const std::vector<Token> other = random_text(random.seed + 501, 21, random.vocab);
  const auto run = [&](std::vector<model::PrefillSlice> slices) {
    model::StepPlan plan;
    plan.prefill = std::move(slices);
    const auto result = model.step(plan);
    SPLASH_CHECK(result.has_value(), "{}", result.error().message);
    return result->prefill.front().chosen;
  };
  const auto own = seats.pages(0), company = seats.pages(1), cut = seats.pages(2);
  const std::span<const Token> all(text);
  const model::LaneSetup greedy{.sampling = {.temperature = 0}};
  for (int lane = 0; lane < 4; ++lane) model.start_lane(lane, greedy);
  if (before > 0) run({{0, 0, all.first(before), own}});
  const auto chosen = run({{0, before, all.subspan(before), own, true, mark}, {1, 0, other, company}});
  const model::SnapshotId marked = length % 2, other_place = 1 - marked;
  model.save_mark(marked);
  // On a GPU a state may still be on its way to the host: two more saves, and it is there.
  for (int i = 0; i < 2; ++i) model.save(0, other_place);
  model.restore(3, marked);
  run({{2, 0, all.first(length), cut}});
  expect_same_state(model, device, 3, 2, length);
  EXPECT_EQ(run({{2, length, all.subspan(length), cut, true}}), chosen);
  expect_same_state(model, device, 0, 2, length + after);
  // From the snapshot on, over the rows that were there when it was taken.
  for (std::size_t i = 0; i < own.size(); ++i) model.copy_page(own[i], cut[i]);
  EXPECT_EQ(run({{3, length, all.subspan(length), cut, true}}), chosen);
  expect_same_state(model, device, 3, 0, length + after);
  model.restore(1, other_place);
  expect_same_state(model, device, 1, 0, length + after);
}

TEST(Step, AMarkInASliceIsTheStateOfACut) {
  for (const Device& device : devices()) {
    for (const RandomModel& random : random_models()) {
      if ((device.backend == Backend::ref || device.threads > 1) && random.seed % 4 != 3) continue;
      const auto opened = open(random, device);
      for (const auto& [before, mark, after] :
           {std::tuple{0, 1, 1}, {0, 15, 3}, {0, 16, 17}, {5, 40, 5}, {33, 3, 2}, {64, 50, 60}}) {
        expect_mark_is_a_cut(*opened->model, random, device, before, mark, after);
        if (testing::Test::HasFailure()) {
          FAIL() << name_of(device) << ", model " << random.seed << ", mark " << mark << " of " << mark + after;
        }
      }
    }
  }
}

// A mark after decode steps, whose kept rows are still on the tape; and marks that no model may take.
TEST(Step, AMarkBehindAReply) {
  for (const Device& device : few_devices()) {
    const RandomModel random = ours({.seed = 1});
    const auto opened = open(random, device);
    model::Model& model = *opened->model;
    const SeatRequest run = partway(model, random_text(4, 30, random.vocab), 0, 14);
    const Seats seats(model);
    const auto pages = seats.pages(0);
    const std::vector<Token> more = random_text(9, 12, random.vocab);
    model::StepPlan plan;
    plan.prefill.push_back({0, run.committed, more, pages, false, 12});
    EXPECT_FALSE(model.step(plan).has_value()) << "no row behind the mark";
    plan.prefill.front().mark = 7;
    ASSERT_TRUE(model.step(plan).has_value());
    model.save_mark(0);
    std::vector<Token> text = run.prompt;
    text.insert(text.end(), run.reply.begin(), run.reply.end() - 1);
    text.insert(text.end(), more.begin(), more.begin() + 7);
    const auto others = seats.pages(1);
    model.start_lane(1, {.sampling = {.temperature = 0}});
    plan.prefill = {{1, 0, text, others}};
    ASSERT_TRUE(model.step(plan).has_value());
    model.start_lane(2, {.sampling = {.temperature = 0}});
    model.restore(2, 0);
    expect_same_state(model, device, 2, 1, run.committed + 7);
  }
}

// Saves mid-reply, continues in the same lane and, from the snapshot with a copied last page, in another one.
TEST(Step, RestoredLanesContinueAlike) {
  for (const Device& device : devices()) {
    for (const RandomModel& random : random_models()) {
      if ((device.backend == Backend::ref || device.threads > 1) && random.seed % 4 != 1) continue;
      const auto opened = open(random, device);
      model::Model& model = *opened->model;
      Seats seats(model);
      const SeatRequest run = partway(model, random_text(77, 29, random.vocab), 0, 17);
      model.save(0, 1);
      const auto own = seats.pages(0), other = seats.pages(5);
      for (std::size_t i = 0; i < own.size(); ++i) model.copy_page(own[i], other[i]);
      const auto go_on = [&](int lane, std::span<const model::PageId> pages) {
        std::vector<Token> reply{run.reply.back()};
        int position = run.committed;
        while (reply.size() < 40) {
          model::StepPlan plan;
          plan.decode.push_back({lane, position, reply.back(), pages, 9, 8});
          const auto result = model.step(plan);
          SPLASH_CHECK(result.has_value(), "{}", result.error().message);
          position += result->decode[0].committed;
          reply.insert(reply.end(), result->decode[0].chosen.begin(), result->decode[0].chosen.end());
        }
        return reply;
      };
      const auto expected = go_on(0, own);
      model.start_lane(5, {.sampling = {.temperature = 0}});
      model.restore(5, 1);
      EXPECT_EQ(go_on(5, other), expected) << name_of(device) << ", model " << random.seed;
    }
  }
}

TEST(Step, TheContextEndsWithAnErrorNotACrash) {
  for (const Device& device : few_devices()) {
    const RandomModel random = ours({.seed = 41, .mixing = 0.1});
    const auto opened = open(random, device, 3, 70);
    model::Model& model = *opened->model;
    Seats seats(model);
    auto plain = requests(random, 1, 11, false), drafted = requests(random, 1, 11, true);
    plain[0].prompt = drafted[0].prompt = random_text(4, 60, random.vocab);
    seats.run(plain, {.budget = 9});
    seats.run(drafted, {.budget = 9});  // positions 60..69, the last anchor is never run
    EXPECT_EQ(plain[0].reply, drafted[0].reply);
    EXPECT_EQ(drafted[0].committed, 70);
    model::StepPlan plan;
    const auto pages = seats.pages(0);
    plan.decode.push_back({0, 70, drafted[0].reply.back(), pages, 4, 8});
    EXPECT_FALSE(model.step(plan));
    plan.decode[0].position = 69;  // not where the lane is
    EXPECT_FALSE(model.step(plan));
    plan.decode[0] = {0, 70, 9999, pages, 4, 8};
    EXPECT_FALSE(model.step(plan));
    plan.decode[0] = {9, 0, 1, pages, 4, 8};
    EXPECT_FALSE(model.step(plan));
  }
}

// After an even token only odd ones, and the other way round; ids above 30 never.
class Alternating final : public link::TokenConstraint {
 public:
  explicit Alternating(int vocab) : vocab_(vocab) {}
  int mask_words() const override { return (vocab_ + 31) / 32; }
  int masks_along(std::span<const Token> proposals, std::span<std::uint32_t> masks) override {
    Token last = last_;
    for (std::size_t row = 0;; ++row) {
      for (Token t = 0; t < vocab_; ++t) {
        if (allows(last, t)) masks[row * mask_words() + t / 32] |= 1u << t % 32;
      }
      if (row == proposals.size() || !allows(last, proposals[row])) return static_cast<int>(row) + 1;
      last = proposals[row];
    }
  }
  bool accept(Token token) override {
    if (!allows(last_, token)) return false;
    last_ = token;
    return true;
  }

 private:
  static bool allows(Token last, Token next) { return next <= 30 && (last + next) % 2 == 1; }
  int vocab_;
  Token last_ = 0;
};

TEST(Step, ConstrainedGreedyIsTheSameWithTheDraft) {
  for (const Device& device : few_devices()) {
    const RandomModel random = ours({.seed = 51, .mixing = 0.1});
    const auto opened = open(random, device);
    Seats seats(*opened->model);
    auto plain = requests(random, 4, 40, false), drafted = requests(random, 4, 40, true);
    for (auto* all : {&plain, &drafted}) {
      for (SeatRequest& r : *all) r.setup.constraint = std::make_shared<Alternating>(random.vocab);
    }
    seats.run(plain, {.lanes = 1});
    seats.run(drafted, {.seed = 2});
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(plain[i].reply, drafted[i].reply);
      for (std::size_t j = 1; j < plain[i].reply.size(); ++j) {
        EXPECT_EQ((plain[i].reply[j - 1] + plain[i].reply[j]) % 2, 1);
      }
    }
  }
}

TEST(Step, SeedsReproduceInAnyCompany) {
  for (const Device& device : devices()) {
    const RandomModel random = ours({.seed = 61});
    const auto opened = open(random, device);
    Seats seats(*opened->model);
    const auto make = [&](std::uint64_t seed) {
      auto all = requests(random, 6, 30, true);
      for (std::size_t i = 0; i < all.size(); ++i) {
        all[i].setup.sampling = {.temperature = 0.9f, .top_k = 12, .top_p = 0.95f, .min_p = 0.01f, .seed = seed + i};
      }
      return all;
    };
    auto alone = make(7), company = make(7), other = make(1007);
    seats.run(alone, {.chunk = 512, .budget = 99, .lanes = 1});
    seats.run(company, {.seed = 4, .budget = 99});
    seats.run(other, {.seed = 4, .budget = 99});
    int differ = 0;
    for (std::size_t i = 0; i < alone.size(); ++i) {
      EXPECT_EQ(alone[i].reply, company[i].reply) << name_of(device) << ", request " << i;
      differ += alone[i].reply != other[i].reply;
    }
    EXPECT_GE(differ, 5);
  }
}

// The next two tokens after a fixed text: counts over seeds through the real draft, verify, accept, commit, against the
// law computed from the model's own logits.
class LawThroughTheStep {
 public:
  LawThroughTheStep(const RandomModel& random, const Device& device) : random_(random), device_(device) {
    opened_ = open(random, device, 2);
    text_ = random_text(5, 35, random.vocab);  // the last page is partly filled
    model::Model& model = *opened_->model;
    Seats seats(model);
    for (int lane = 0; lane < 8; ++lane) pages_.push_back(seats.pages(lane));
    model.start_lane(0, {});
    model::StepPlan plan;
    plan.prefill.push_back({0, 0, std::span(text_).first(text_.size() - 1), pages_[0], false});
    SPLASH_CHECK(model.step(plan).has_value());
    model.save(0, 0);
    for (int lane = 1; lane < 8; ++lane) {
      for (int i = 0; i < 2; ++i) model.copy_page(pages_[0][i], pages_[lane][i]);
    }
  }

  std::vector<double> law(const link::Sampling& sampling, bool constrained) const {
    const int v = random_.vocab;
    std::vector<double> joint(std::size_t(v) * v);
    const auto row_law = [&](std::vector<Token> text, const std::vector<Token>& path) {
      text.insert(text.end(), path.begin(), path.end());
      const auto scores = models::score(*opened_->package, device_, text, {});
      SPLASH_CHECK(scores.has_value());
      Alternating grammar(v);
      std::vector<std::uint32_t> masks((path.size() + 1) * grammar.mask_words());
      const int rows = grammar.masks_along(path, masks);
      ops::Law out;
      if (constrained && rows <= std::ssize(path)) return out;
      ops::target_law(std::span(scores->logits).last(v), v, sampling,
                      constrained ? masks.data() + path.size() * grammar.mask_words() : nullptr, out);
      return out;
    };
    const ops::Law first = row_law(text_, {});
    for (std::size_t i = 0; i < first.tokens.size(); ++i) {
      const ops::Law second = row_law(text_, {first.tokens[i]});
      for (std::size_t j = 0; j < second.tokens.size(); ++j) {
        joint[first.tokens[i] * v + second.tokens[j]] = first.probabilities[i] * second.probabilities[j];
      }
    }
    return joint;
  }

  std::vector<std::int64_t> counts(link::Sampling sampling, int draws, bool constrained, bool use_draft) {
    model::Model& model = *opened_->model;
    const int v = random_.vocab, start = static_cast<int>(text_.size()) - 1;
    std::vector<std::int64_t> counts(std::size_t(v) * v);
    for (int draw = 0; draw < draws; draw += 8) {
      std::vector<std::vector<Token>> chosen(8, {text_.back()});
      for (int lane = 0; lane < 8; ++lane) {
        sampling.seed = static_cast<std::uint64_t>(draw + lane);
        model.start_lane(lane, {.sampling = sampling, .use_draft = use_draft});
        model.restore(lane, 0);
      }
      while (std::any_of(chosen.begin(), chosen.end(), [](const auto& c) { return c.size() < 3; })) {
        model::StepPlan plan;
        for (int lane = 0; lane < 8; ++lane) {
          if (chosen[lane].size() >= 3) continue;
          if (constrained) {
            auto grammar = std::make_shared<Alternating>(v);
            for (std::size_t i = 1; i < chosen[lane].size(); ++i) grammar->accept(chosen[lane][i]);
            sampling.seed = static_cast<std::uint64_t>(draw + lane);
            set_constraint(lane, sampling, grammar, use_draft, static_cast<int>(chosen[lane].size()) - 1);
          }
          plan.decode.push_back(
              {lane, start + static_cast<int>(chosen[lane].size()) - 1, chosen[lane].back(), pages_[lane], 9, 4});
        }
        const auto result = model.step(plan);
        SPLASH_CHECK(result.has_value(), "{}", result.error().message);
        for (const model::SliceResult& slice : result->decode) {
          chosen[slice.lane].insert(chosen[slice.lane].end(), slice.chosen.begin(), slice.chosen.end());
          accepted_ += slice.accepted;
          ++steps_;
        }
      }
      for (const auto& c : chosen) ++counts[c[1] * v + c[2]];
    }
    return counts;
  }
  double tokens_per_step() const { return 1 + double(accepted_) / steps_; }

 private:
  // A constraint belongs to a request: it is set anew only at the start of one.
  void set_constraint(int lane, const link::Sampling& sampling, std::shared_ptr<Alternating> grammar, bool use_draft,
                      int already) {
    if (already > 0) return void(live_[lane]->accept_all(*grammar));
    live_[lane] = std::make_shared<Shared>(grammar);
    opened_->model->start_lane(lane, {.sampling = sampling, .constraint = live_[lane], .use_draft = use_draft});
    opened_->model->restore(lane, 0);
  }
  // Forwards to whatever grammar state the test has put there.
  class Shared final : public link::TokenConstraint {
   public:
    explicit Shared(std::shared_ptr<Alternating> grammar) : grammar_(*grammar) {}
    void accept_all(const Alternating& grammar) { grammar_ = grammar; }
    int mask_words() const override { return grammar_.mask_words(); }
    int masks_along(std::span<const Token> proposals, std::span<std::uint32_t> masks) override {
      return grammar_.masks_along(proposals, masks);
    }
    bool accept(Token token) override { return grammar_.accept(token); }

   private:
    Alternating grammar_;
  };

  RandomModel random_;
  Device device_;
  std::unique_ptr<Opened> opened_;
  std::vector<Token> text_;
  std::vector<std::vector<model::PageId>> pages_;
  std::shared_ptr<Shared> live_[8];
  std::int64_t accepted_ = 0, steps_ = 0;
};

TEST(Step, SampledLawIsTheModelsOwn) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const int draws = 800;
#else
  const int draws = on_cuda() ? 8'000 : 40'000;
#endif
  const RandomModel random = ours({.seed = 71,
                                   .vocab = 10,
                                   .hidden = 64,
                                   .layers = "ga",
                                   .value_heads = 1,
                                   .sharpness = 1.2,
                                   .window = 8,
                                   .block = 4,
                                   .taps = {0},
                                   .top_k = 6,
                                   .skill = 0.7});
  LawThroughTheStep through(random, few_devices().back());
  const struct {
    const char* name;
    link::Sampling sampling;
    bool constrained = false;
  } settings[] = {{"temperature 1", {}},
                  {"top_k 4", {.top_k = 4}},
                  {"top_p 0.8", {.top_p = 0.8f}},
                  {"min_p 0.2", {.min_p = 0.2f}},
                  {"t 0.7 k 6 p 0.9 min 0.05", {.temperature = 0.7f, .top_k = 6, .top_p = 0.9f, .min_p = 0.05f}},
                  {"constrained", {}, true}};
  for (const auto& [name, sampling, constrained] : settings) {
    const auto law = through.law(sampling, constrained);
    for (const bool use_draft : {true, false}) {
      const auto result = chi_square(through.counts(sampling, draws, constrained, use_draft), law);
      fmt::print("chi-square through the step, {:<24} {}: p = {:.4f} ({} degrees)\n", name,
                 use_draft ? "drafted" : "plain  ", result.p, result.degrees);
      EXPECT_FALSE(result.impossible) << name;
      EXPECT_GT(result.p, 1e-4) << name;
    }
  }
  fmt::print("tokens per step over all of it: {:.2f}\n", through.tokens_per_step());
}

}  // namespace
}  // namespace splash::test
