// The built-in model as it is committed against what transformers (target) and PyTorch (draft) compute with the same
// 4-bit weights: train/golden/tiny.safetensors, written by train/golden.py. This is where the exported model, the pack
// and the forward passes meet, and how a draft that this repository trained is shown to be the same here and there.
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "golden/golden.h"
#include "support/agreement.h"

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
    const Agreement found = agreement(values<float>("logits"), scores->logits, scores->vocab_size);
    std::printf("%s: mean KL %.2e nats over %d rows\n", isa.c_str(), found.kl, found.rows);
    EXPECT_LE(found.kl, 2e-3) << isa;
    EXPECT_EQ(found.same, found.clear) << isa;
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
