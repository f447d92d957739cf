// The bounds of issue 3 section 3: ref against transformers and numpy, cpu against ref, for every instruction set,
// thread count and chunk size.
#include "golden/golden.h"

#include <fmt/format.h>

#include <numeric>

#include "support/agreement.h"

namespace splash::test {
namespace {

using models::Backend;
using models::Device;

models::Scores scored(const pack::Package& package, const Device& device, std::span<const Token> ids,
                      const models::ScoreOptions& options = {}) {
  auto scores = models::score(package, device, ids, options);
  SPLASH_CHECK(scores.has_value(), "{}", scores.error().message);
  return std::move(*scores);
}

// Ids chosen greedily, token by token through the step, after a prompt given in prefill slices of `chunk` rows.
std::vector<Token> greedy(const std::shared_ptr<const pack::Package>& package, const Device& device,
                          std::span<const Token> prompt, int count, int chunk, bool use_draft) {
  auto opened = models::open(package, {.backend = device.backend,
                                       .threads = device.threads,
                                       .isa = device.isa,
                                       .lanes = 1,
                                       .pages = 8,
                                       .max_prefill_rows = 512});
  SPLASH_CHECK(opened.has_value(), "{}", opened.error().message);
  model::Model& model = **opened;
  std::vector<model::PageId> pages(8);
  std::iota(pages.begin(), pages.end(), 0);
  model.start_lane(0, {.sampling = {.temperature = 0}, .use_draft = use_draft});
  std::vector<Token> reply;
  int position = 0;
  while (position < std::ssize(prompt)) {
    const int rows = std::min<int>(chunk, static_cast<int>(std::ssize(prompt)) - position);
    model::StepPlan plan;
    plan.prefill.push_back({0, position, prompt.subspan(position, rows), pages, position + rows == std::ssize(prompt)});
    auto result = model.step(plan);
    SPLASH_CHECK(result.has_value(), "{}", result.error().message);
    position += rows;
    for (const Token token : result->prefill[0].chosen) reply.push_back(token);
  }
  while (std::ssize(reply) < count) {
    model::StepPlan plan;
    plan.decode.push_back({0, position, reply.back(), pages, count - static_cast<int>(std::ssize(reply)), 8});
    auto result = model.step(plan);
    SPLASH_CHECK(result.has_value(), "{}", result.error().message);
    position += result->decode[0].committed;
    for (const Token token : result->decode[0].chosen) reply.push_back(token);
  }
  return reply;
}

TEST(GoldenRef, DenseMatchesTransformers) {
  const auto package = golden("dense");
  const Expected expected("dense");
  for (const int chunk : {512, 7}) {
    const auto scores = scored(*package, {.backend = Backend::ref}, expected.ints("ids"), {chunk, true});
    const double logits = distance(scores.logits, expected.floats("logits"));
    double hidden = 0;
    for (int i = 0; i <= 4; ++i) {
      hidden = std::max(hidden, distance(scores.hidden[i], expected.floats(fmt::format("hidden.{}", i))));
    }
    fmt::print("ref dense, chunk {}: logits {:.2e}, hidden {:.2e}\n", chunk, logits, hidden);
    EXPECT_LE(logits, 1e-3);
    EXPECT_LE(hidden, 1e-3);
  }
}

TEST(GoldenRef, DenseGreedyIdsThroughTheStep) {
  const Expected expected("dense");
  const auto want = expected.ints("greedy_ids");
  const auto got = greedy(golden("dense"), {.backend = Backend::ref}, expected.ints("ids"), 24, 512, false);
  EXPECT_EQ(got, std::vector<Token>(want.begin(), want.end()));
  const auto drafted =
      greedy(golden("dense", "dense-draft"), {.backend = Backend::ref}, expected.ints("ids"), 24, 7, true);
  EXPECT_EQ(drafted, got);
}

TEST(GoldenRef, Mlx4MatchesNumpy) {
  const auto package = golden("dense-mlx4", "", pack::WeightChoice::q4);
  const Expected expected("dense-mlx4");
  const auto scores = scored(*package, {.backend = Backend::ref}, expected.ints("ids"), {512, true});
  const double logits = distance(scores.logits, expected.floats("logits"));
  double hidden = 0;
  for (int i = 0; i < 4; ++i) {  // hidden.4 of this fixture is before the final norm, ours after it
    hidden = std::max(hidden, distance(scores.hidden[i], expected.floats(fmt::format("hidden.{}", i))));
  }
  fmt::print("ref dense-mlx4: logits {:.2e}, hidden {:.2e}\n", logits, hidden);
  EXPECT_LE(logits, 1e-3);
  EXPECT_LE(hidden, 1e-3);
  for (int row = 0; row < scores.rows; ++row) {
    const auto best = [&](std::span<const float> logits_of) {
      const auto begin = logits_of.begin() + std::int64_t{row} * scores.vocab_size;
      return std::max_element(begin, begin + scores.vocab_size) - begin;
    };
    EXPECT_EQ(best(scores.logits), best(expected.floats("logits"))) << "row " << row;
  }
}

constexpr int draft_contexts[] = {5, 24, 33, 64, 95};

TEST(GoldenRef, DraftMatchesNumpy) {
  const auto package = golden("dense", "dense-draft");
  const Expected dense("dense"), expected("dense-draft");
  for (const int n : draft_contexts) {
    auto report = models::draft_report(*package, {.backend = Backend::ref}, dense.ints("ids"), n);
    ASSERT_TRUE(report) << report.error().message;
    const auto name = [&](const char* what) { return fmt::format("n{}.{}", n, what); };
    const double hidden = distance(report->hidden, expected.floats(name("hidden")));
    const double logits = distance(report->logits, expected.floats(name("logits")));
    const double scores = distance(report->scores, expected.floats(name("scores")));
    fmt::print("ref dense-draft n={}: hidden {:.2e}, logits {:.2e}, scores {:.2e}\n", n, hidden, logits, scores);
    EXPECT_LE(hidden, 1e-3);
    EXPECT_LE(logits, 1e-3);
    EXPECT_LE(scores, 1e-3);
    const auto candidates = expected.ints(name("candidates"));
    EXPECT_EQ(report->candidates, std::vector<std::int32_t>(candidates.begin(), candidates.end()));
    const auto path = expected.ints(name("path"));
    EXPECT_EQ(report->path, std::vector<std::int32_t>(path.begin(), path.end()));
  }
}

TEST(GoldenCpu, SourceWeightsWithinBoundOfRef) {
  const auto package = golden("dense");
  const Expected expected("dense");
  const auto ref = scored(*package, {.backend = Backend::ref}, expected.ints("ids"));
  for (const std::string& isa : isas()) {
    std::vector<float> first;
    for (const int threads : {1, 2}) {
      for (const int chunk : {1, 7, 32, 512}) {
        const auto cpu = scored(*package, {Backend::cpu, threads, isa}, expected.ints("ids"), {chunk});
        const double error = distance(cpu.logits, ref.logits);
        if (first.empty()) {
          first = cpu.logits;
          fmt::print("cpu dense source {}: logits {:.2e} from ref, {:.2e} from transformers\n", isa, error,
                     distance(cpu.logits, expected.floats("logits")));
        }
        EXPECT_LE(error, 2e-2) << isa << ", " << threads << " threads, chunk " << chunk;
        EXPECT_EQ(cpu.logits, first) << "bits differ: " << isa << ", " << threads << " threads, chunk " << chunk;
      }
    }
  }
}

TEST(GoldenCpu, FourBitWithinBoundOfRef) {
  const struct {
    const char* name;
    std::shared_ptr<const pack::Package> package;
  } cases[] = {{"dense q4", golden("dense", "", pack::WeightChoice::q4)},
               {"dense-mlx4", golden("dense-mlx4", "", pack::WeightChoice::q4)}};
  const Expected expected("dense");
  for (const auto& [name, package] : cases) {
    const auto ref = scored(*package, {.backend = Backend::ref}, expected.ints("ids"));
    for (const std::string& isa : isas()) {
      std::vector<float> first;
      for (const int threads : {1, 2}) {
        for (const int chunk : {1, 7, 32, 512}) {
          const auto cpu = scored(*package, {Backend::cpu, threads, isa}, expected.ints("ids"), {chunk});
          if (first.empty()) {
            first = cpu.logits;
            const Agreement got = agreement(ref.logits, cpu.logits, ref.vocab_size);
            fmt::print("cpu {} {}: mean KL {:.2e} nats, argmax agreement {:.1f} %, logits {:.2e}\n", name, isa,
                       got.kl, 100.0 * got.same / got.clear, distance(cpu.logits, ref.logits));
            EXPECT_LE(got.kl, 2e-3);
            EXPECT_GE(got.same, 0.97 * got.clear);  // 96 rows of noise-like logits; the built-in model's bound is 0.99
          }
          EXPECT_EQ(cpu.logits, first) << "bits differ: " << isa << ", " << threads << " threads, chunk " << chunk;
        }
      }
    }
  }
}

TEST(GoldenCpu, DraftWithinBoundOfRef) {
  const auto package = golden("dense", "dense-draft");
  const Expected dense("dense"), expected("dense-draft");
  for (const std::string& isa : isas()) {
    double hidden = 0, logits = 0;
    int slots = 0, same = 0;
    for (const int n : draft_contexts) {
      for (const int threads : {1, 2}) {
        auto report = models::draft_report(*package, {Backend::cpu, threads, isa}, dense.ints("ids"), n);
        ASSERT_TRUE(report) << report.error().message;
        hidden = std::max(hidden, distance(report->hidden, expected.floats(fmt::format("n{}.hidden", n))));
        logits = std::max(logits, distance(report->logits, expected.floats(fmt::format("n{}.logits", n))));
        const auto path = expected.ints(fmt::format("n{}.path", n));
        for (std::size_t i = 0; i < path.size(); ++i) same += report->path[i] == path[i];
        slots += static_cast<int>(path.size());
      }
    }
    fmt::print("cpu dense-draft {}: hidden {:.2e}, logits {:.2e}, path slots equal {}/{}\n", isa, hidden, logits, same,
               slots);
    EXPECT_LE(hidden, 2e-2) << isa;
    EXPECT_LE(logits, 2e-2) << isa;
  }
}

TEST(GoldenCpu, GreedyContinuationWithAndWithoutTheDraft) {
  const Expected expected("dense");
  const auto want = expected.ints("greedy_ids");
  for (const std::string& isa : isas()) {
    const auto plain = greedy(golden("dense"), {Backend::cpu, 1, isa}, expected.ints("ids"), 24, 512, false);
    for (const int threads : {1, 2}) {
      for (const int chunk : {1, 7, 32, 512}) {
        EXPECT_EQ(
            greedy(golden("dense", "dense-draft"), {Backend::cpu, threads, isa}, expected.ints("ids"), 24, chunk, true),
            plain)
            << isa << ", " << threads << " threads, chunk " << chunk;
      }
    }
    const auto same = std::mismatch(plain.begin(), plain.end(), want.begin()).first - plain.begin();
    fmt::print("cpu dense source {}: first {} of {} greedy ids as transformers\n", isa, same, want.size());
  }
}

TEST(Golden, AMixtureOfExpertsIsRefusedByName) {
  TemporaryFolder folder;
  const Status status = pack::pack_folder(fixture("moe"), folder.path() / "pack", {});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::unsupported);
  EXPECT_NE(status.error().message.find("mixture of experts"), std::string::npos) << status.error().message;
}

TEST(Golden, BadTextsAreErrors) {
  const auto package = golden("dense", "dense-draft");
  const Device device{.backend = Backend::ref};
  EXPECT_FALSE(models::score(*package, device, std::vector<Token>{}, {}));
  EXPECT_FALSE(models::score(*package, device, std::vector<Token>{1, 1024}, {}));
  EXPECT_FALSE(models::score(*package, device, std::vector<Token>{-1}, {}));
  EXPECT_FALSE(models::draft_report(*package, device, std::vector<Token>{1, 2, 3}, 3));
  EXPECT_TRUE(models::draft_report(*package, device, std::vector<Token>{1}, 0));
  EXPECT_FALSE(models::draft_report(*golden("dense"), device, std::vector<Token>{1, 2}, 1));
  EXPECT_FALSE(models::score(*package, {Backend::cpu, 1, "mmx"}, std::vector<Token>{1}, {}));
}

}  // namespace
}  // namespace splash::test
