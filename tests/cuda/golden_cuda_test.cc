// The golden fixtures through the CUDA backend, end to end: logits against transformers and ref, the draft block
// against numpy, greedy continuation with and without the draft, and errors that a device can give.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "backend/cuda/facts.h"
#include "golden/golden.h"
#include "support/agreement.h"

namespace splash::test {
namespace {

using models::Backend;
using models::Device;
const Device gpu{.backend = Backend::cuda};

// Says why and skips everything where there is no GPU.
class Environment final : public testing::Environment {
 public:
  void SetUp() override {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    const auto device = cuda::choose_device(-1);
    if (device) return void(fmt::print("{}\n", cuda::describe(*device)));
    fmt::print("no GPU to test on: {}\n", device.error().message);
    std::exit(0);
  }
};
[[maybe_unused]] const auto* const environment = testing::AddGlobalTestEnvironment(new Environment);

models::Scores scored(const pack::Package& package, const Device& device, std::span<const Token> ids,
                      const models::ScoreOptions& options = {}) {
  auto scores = models::score(package, device, ids, options);
  SPLASH_CHECK(scores.has_value(), "{}", scores.error().message);
  return std::move(*scores);
}

// Mean KL(ref || ours) in nats; the share of rows with ref's argmax where ref's top two differ by more than 0.05.
void expect_agreement(const char* name, const models::Scores& ref, const models::Scores& ours) {
  ASSERT_EQ(ref.logits.size(), ours.logits.size());
  const Agreement got = agreement(ref.logits, ours.logits, ref.vocab_size);
  fmt::print("cuda {}: mean KL {:.2e} nats, argmax {} of {} clear rows, logits {:.2e} from ref\n", name, got.kl, got.same,
             got.clear, distance(ours.logits, ref.logits));
  EXPECT_LE(got.kl, 2e-3) << name;
  EXPECT_GE(got.same, 0.97 * got.clear) << name;
}

TEST(GoldenCuda, SourceWeights) {
  const auto package = golden("dense");
  const Expected expected("dense");
  std::vector<float> first;
  for (const int chunk : {512, 32, 7, 1}) {
    const auto scores = scored(*package, gpu, expected.ints("ids"), {chunk, true});
    const double logits = distance(scores.logits, expected.floats("logits"));
    double hidden = 0;
    for (int i = 0; i <= 4; ++i) {
      hidden = std::max(hidden, distance(scores.hidden[i], expected.floats(fmt::format("hidden.{}", i))));
    }
    fmt::print("cuda dense source, chunk {}: logits {:.2e} from transformers, hidden {:.2e}\n", chunk, logits, hidden);
    EXPECT_LE(logits, 2e-2);
    EXPECT_LE(hidden, 2e-2);
    if (first.empty()) first = scores.logits;
    EXPECT_EQ(scores.logits, first) << "bits differ, chunk " << chunk;
  }
}

TEST(GoldenCuda, FourBitWeights) {
  const Expected expected("dense");
  for (const auto& [name, package] : {std::pair{"dense q4", golden("dense", "", pack::WeightChoice::q4)},
                                      {"dense-mlx4", golden("dense-mlx4", "", pack::WeightChoice::q4)}}) {
    const auto ref = scored(*package, {.backend = Backend::ref}, expected.ints("ids"));
    std::vector<float> first;
    for (const int chunk : {32, 8, 1, 512}) {
      const auto ours = scored(*package, gpu, expected.ints("ids"), {chunk});
      expect_agreement(fmt::format("{}, chunk {}", name, chunk).c_str(), ref, ours);
      if (first.empty()) first = ours.logits;
      EXPECT_EQ(ours.logits, first) << name << ": bits differ, chunk " << chunk;
    }
  }
}

TEST(GoldenCuda, DraftBlock) {
  const auto package = golden("dense", "dense-draft");
  const Expected dense("dense"), expected("dense-draft");
  double hidden = 0, logits = 0, scores = 0;
  int slots = 0, same = 0;
  for (const int n : {5, 24, 33, 64, 95}) {
    auto report = models::draft_report(*package, gpu, dense.ints("ids"), n);
    ASSERT_TRUE(report) << report.error().message;
    const auto name = [&](const char* what) { return fmt::format("n{}.{}", n, what); };
    hidden = std::max(hidden, distance(report->hidden, expected.floats(name("hidden"))));
    logits = std::max(logits, distance(report->logits, expected.floats(name("logits"))));
    scores = std::max(scores, distance(report->scores, expected.floats(name("scores"))));
    const auto path = expected.ints(name("path"));
    for (std::size_t i = 0; i < path.size(); ++i) same += report->path[i] == path[i];
    slots += static_cast<int>(path.size());
  }
  fmt::print("cuda dense-draft: hidden {:.2e}, logits {:.2e}, scores {:.2e}, path slots equal {}/{}\n", hidden, logits,
             scores, same, slots);
  EXPECT_LE(hidden, 2e-2);
  EXPECT_LE(logits, 2e-2);
}

std::vector<Token> greedy(const std::shared_ptr<const pack::Package>& package, std::span<const Token> prompt, int count,
                          int chunk, bool use_draft) {
  auto opened = models::open(package, {.backend = Backend::cuda, .lanes = 1, .pages = 8, .max_prefill_rows = 512});
  SPLASH_CHECK(opened.has_value(), "{}", opened.error().message);
  model::Model& model = **opened;
  std::vector<model::PageId> pages(8);
  std::iota(pages.begin(), pages.end(), 0);
  SPLASH_CHECK(model.back_pages(8).has_value());
  model.start_lane(0, {.sampling = {.temperature = 0}, .use_draft = use_draft});
  std::vector<Token> reply;
  for (int position = 0; std::ssize(reply) < count;) {
    model::StepPlan plan;
    if (position < std::ssize(prompt)) {
      const int rows = std::min<int>(chunk, static_cast<int>(std::ssize(prompt)) - position);
      plan.prefill.push_back(
          {0, position, prompt.subspan(position, rows), pages, position + rows == std::ssize(prompt)});
    } else {
      plan.decode.push_back({0, position, reply.back(), pages, count - static_cast<int>(std::ssize(reply)), 8});
    }
    auto result = model.step(plan);
    SPLASH_CHECK(result.has_value(), "{}", result.error().message);
    for (const auto* slices : {&result->prefill, &result->decode}) {
      for (const model::SliceResult& slice : *slices) {
        position += slice.committed;
        reply.insert(reply.end(), slice.chosen.begin(), slice.chosen.end());
      }
    }
  }
  return reply;
}

TEST(GoldenCuda, GreedyContinuation) {
  const Expected expected("dense");
  const auto want = expected.ints("greedy_ids");
  const auto plain = greedy(golden("dense"), expected.ints("ids"), 24, 512, false);
  const auto same = std::mismatch(plain.begin(), plain.end(), want.begin()).first - plain.begin();
  fmt::print("cuda dense source: first {} of {} greedy ids as transformers\n", same, want.size());
  EXPECT_GE(same, 12);
  for (const int chunk : {1, 7, 32, 512}) {
    EXPECT_EQ(greedy(golden("dense", "dense-draft"), expected.ints("ids"), 24, chunk, true), plain) << chunk;
  }
}

TEST(GoldenCuda, MoreMemoryThanThereIsIsAnError) {
  const auto package = golden("dense");
  constexpr int pages = 1 << 25;
  const auto opened =
      models::open(package, {.backend = Backend::cuda, .lanes = 1, .pages = pages, .max_prefill_rows = 64, .max_context = 4096});
  ASSERT_TRUE(opened) << "addresses cost nothing: " << opened.error().message;
  model::Model& model = **opened;
  EXPECT_TRUE(model.back_pages(2));
  const Status refused = model.back_pages(pages);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::overloaded);
  fmt::print("{}\n", refused.error().message);

  // It goes on: with the pages that it had, and with more of them where the device has room.
  const auto first_token = [&](std::vector<model::PageId> ids) {
    const std::vector<Token> text(50, 7);
    model.start_lane(0, {.sampling = {.temperature = 0}});
    model::StepPlan plan;
    plan.prefill.push_back({0, 0, text, ids, true});
    const auto result = model.step(plan);
    return result ? result->prefill[0].chosen : std::vector<Token>{-1};
  };
  const std::vector<Token> chosen = first_token({0, 1});
  EXPECT_GE(chosen[0], 0);
  EXPECT_EQ(first_token({100'000, 1}), std::vector<Token>{-1}) << "a page without memory is an error, not a fault";
  // Growing in place: many parts, and pages behind every border between them.
  constexpr int most = 1 << 17;
  const auto begun = std::chrono::steady_clock::now();
  for (int count = 4; count <= most; count += count / 3) {
    ASSERT_TRUE(model.back_pages(count));
    EXPECT_EQ(first_token({count - 1, count / 2}), chosen) << count;
  }
  fmt::print("grown to {} pages in {:.1f} ms\n", most,
             std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun).count());
}

TEST(GoldenCuda, ADeviceThatIsNotThereIsAnError) {
  const auto opened = models::open(golden("dense"), {.backend = Backend::cuda, .index = 99, .lanes = 1, .pages = 8});
  ASSERT_FALSE(opened);
  fmt::print("{}\n", opened.error().message);
}

}  // namespace
}  // namespace splash::test
