// The built-in model as it is committed against what transformers (target) and PyTorch (draft) compute with the same
// 4-bit weights: train/golden/tiny.safetensors, written by train/golden.py. This is where the exported model, the pack
// and the forward passes meet, and how a draft that this repository trained is shown to be the same here and there.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "golden/golden.h"

namespace splash::test {
namespace {

using models::Backend;

std::filesystem::path source_folder() {
  const char* source = std::getenv("SPLASH_SOURCE");
  return source ? source : ".";
}

class Tiny : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto opened = pack::Package::open(source_folder() / "models" / "tiny");
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    package() = *opened;
    auto file = pack::SafetensorsFile::open(source_folder() / "train" / "golden" / "tiny.safetensors");
    ASSERT_TRUE(file.has_value()) << file.error().message;
    expected() = *file;
  }
  static std::shared_ptr<const pack::Package>& package() {
    static std::shared_ptr<const pack::Package> value;
    return value;
  }
  static std::shared_ptr<const pack::SafetensorsFile>& expected() {
    static std::shared_ptr<const pack::SafetensorsFile> value;
    return value;
  }
  template <class T>
  static std::span<const T> values(const std::string& name) {
    const pack::TensorView* tensor = expected()->find(name);
    SPLASH_CHECK(tensor != nullptr, "{}", name);
    return {reinterpret_cast<const T*>(tensor->data.data()), static_cast<std::size_t>(tensor->elements())};
  }
  static std::vector<Token> text() {
    const auto ids = values<std::int32_t>("ids");
    return {ids.begin(), ids.end()};
  }
};

// How far the logits of q are from those of p: mean KL(p || q) in nats, and rows whose best id differs although p's
// best two are more than 0.05 apart.
struct Gap {
  double kl = 0.0;
  int rows = 0, changed = 0;
};

Gap gap(std::span<const float> p, std::span<const float> q, int vocab) {
  Gap found{.rows = static_cast<int>(p.size()) / vocab};
  const auto log_sum = [](std::span<const float> row) {
    const double most = *std::ranges::max_element(row);
    double sum = 0.0;
    for (float x : row) sum += std::exp(x - most);
    return most + std::log(sum);
  };
  for (int row = 0; row < found.rows; ++row) {
    const auto a = p.subspan(std::size_t(row) * vocab, vocab), b = q.subspan(std::size_t(row) * vocab, vocab);
    const double a_sum = log_sum(a), b_sum = log_sum(b);
    for (int i = 0; i < vocab; ++i) found.kl += std::exp(a[i] - a_sum) * ((a[i] - a_sum) - (b[i] - b_sum)) / found.rows;
    std::vector<float> top(a.begin(), a.end());
    std::partial_sort(top.begin(), top.begin() + 2, top.end(), std::greater<>());
    if (top[0] - top[1] > 0.05f) {
      found.changed += std::ranges::max_element(a) - a.begin() != std::ranges::max_element(b) - b.begin();
    }
  }
  return found;
}

TEST_F(Tiny, RefLogitsAreThoseOfTransformers) {
  const auto scores = models::score(*package(), {.backend = Backend::ref}, text(), {});
  ASSERT_TRUE(scores.has_value()) << scores.error().message;
  const double most = distance(scores->logits, values<float>("logits"));
  std::printf("ref: largest difference %.2e\n", most);
  EXPECT_LE(most, 1e-3);
}

// 8-bit activations: the q4 bound of the CPU path.
TEST_F(Tiny, CpuLogitsAreWithinTheQ4Bound) {
  for (const std::string& isa : isas()) {
    const auto scores = models::score(*package(), {.threads = 2, .isa = isa}, text(), {});
    ASSERT_TRUE(scores.has_value()) << scores.error().message;
    const Gap found = gap(values<float>("logits"), scores->logits, scores->vocab_size);
    std::printf("%s: mean KL %.2e nats over %d rows\n", isa.c_str(), found.kl, found.rows);
    EXPECT_LE(found.kl, 2e-3) << isa;
    EXPECT_EQ(found.changed, 0) << isa;
  }
}

TEST_F(Tiny, TheTrainedDraftIsPytorchs) {
  for (const int context : {27, 42}) {
    const auto report = models::draft_report(*package(), {.backend = Backend::ref}, text(), context);
    ASSERT_TRUE(report.has_value()) << report.error().message;
    const std::string name = "draft." + std::to_string(context);
    EXPECT_LE(distance(report->hidden, values<float>(name + ".hidden")), 1e-3) << context;
    EXPECT_LE(distance(report->logits, values<float>(name + ".logits")), 1e-3) << context;
    EXPECT_LE(distance(report->scores, values<float>(name + ".scores")), 1e-3) << context;
    EXPECT_TRUE(std::ranges::equal(report->candidates, values<std::int32_t>(name + ".candidates"))) << context;
    EXPECT_TRUE(std::ranges::equal(report->path, values<std::int32_t>(name + ".path"))) << context;
  }
}

}  // namespace
}  // namespace splash::test
