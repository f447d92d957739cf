// A step on the GPU has the same bits every time, whatever else runs and whatever memory held before: whole steps of the
// 27B's true geometry, cut to a few layers, at one to eight lanes. Between runs the scratch and the partial sums are
// filled with other patterns (zeros, NaN, huge numbers), and in every second run another stream keeps the device busy,
// so that a kernel which reads what nobody wrote, or what another is still writing, shows.
#include <fmt/format.h>

#include "device_kernels.h"
#include "ops/testing_cuda.h"
#include "synthetic_model.h"

namespace splash::bench {
namespace {

using cuda::testing::download;
using cuda::testing::stream;

constexpr int context = 3400;

// What a step leaves, named.
struct Left {
  std::vector<std::pair<std::string, std::vector<float>>> parts;
  template <class T>
  void add(std::string name, const T* data, std::size_t bytes) {
    parts.emplace_back(std::move(name), download(reinterpret_cast<const float*>(data), bytes / sizeof(float)));
  }
  const std::vector<float>& named(std::string_view name) const {
    for (const auto& [key, values] : parts) {
      if (key == name) return values;
    }
    SPLASH_CHECK(false);
  }
};

std::size_t differing(const std::vector<float>& a, const std::vector<float>& b) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) count += std::memcmp(&a[i], &b[i], sizeof(float)) != 0;
  return count;
}

class RepeatCuda : public testing::Test {
 protected:
  static SyntheticModel& model() {
    static std::unique_ptr<SyntheticModel> made = [] {
      stream().set_folds_norms(true);  // as a model's stream does
      Geometry geometry;
      geometry.layers = 8, geometry.draft_layers = 2, geometry.taps = 3;
      auto result = SyntheticModel::make(stream(), geometry, 8, context);
      SPLASH_CHECK(result.has_value(), "{}", result.error().message);
      return std::move(*result);
    }();
    return *made;
  }

  // Two steps of the lanes; before the second, five rows of the first are kept.
  static Left run(int lanes, int width, int position, int pattern, bool company) {
    static const std::unique_ptr<cuda::Stream> other =
        std::move(*cuda::Stream::open(stream().facts(), std::size_t{1} << 20));
    SyntheticModel& m = model();
    m.place(lanes, position);
    m.begin(lanes, width, true);
    auto* from = stream().allocate<std::byte>(256);
    SyntheticModel::StepViews views;
    const auto recording = stream().record([&] { views = m.step(lanes, width); });
    SPLASH_CHECK(recording.has_value(), "{}", recording.error().message);
    const auto bytes = static_cast<std::size_t>(stream().allocate<std::byte>(256) - from);
    const auto native = stream().native();
    for (int step = 0; step < 2; ++step) {
      stream().note(cudaMemsetAsync(from, pattern, bytes, native), "poison");
      stream().note(cudaMemsetAsync(stream().partials(), pattern, stream().partials_bytes(), native), "poison");
      EXPECT_TRUE(stream().synchronise());
      for (int i = 0; company && i < 4; ++i) {
        auto* sink = other->allocate<unsigned>(1);
        read_everything(*other, m.head().data, static_cast<std::size_t>(m.head().bytes()), sink, 37 + 61 * i);
        other->reset();
      }
      stream().replay(*recording);
      EXPECT_TRUE(stream().synchronise());
      EXPECT_TRUE(other->synchronise());
      if (step == 0) m.set_kept(lanes, std::min(5, width));
    }
    Left left;
    for (int tap = 0; tap < (width > 1 ? m.geometry().taps : 0); ++tap) {
      std::vector<float> rows;
      const std::vector<float> all = download(views.features);
      for (int row = 0; row < lanes * width; ++row) {
        const float* at = all.data() + std::size_t(row) * views.features.stride + tap * m.geometry().hidden;
        rows.insert(rows.end(), at, at + m.geometry().hidden);
      }
      left.parts.emplace_back(fmt::format("tap {}", tap), std::move(rows));
    }
    left.add("tokens", m.tokens(), std::size_t(lanes) * m.geometry().block * sizeof(Token));
    left.add("x", views.x.data, std::size_t(views.x.rows) * views.x.stride * 4);
    left.add("logits", views.logits.data, std::size_t(views.logits.rows) * views.logits.stride * 4);
    left.add("pages", m.pool().base, static_cast<std::size_t>(m.pool_bytes()));
    for (int l = 0; l < m.geometry().layers; ++l) {
      if (!m.layers()[l].recurrent) continue;
      for (int lane = 0; lane < lanes; ++lane) {
        left.add(fmt::format("state {} of lane {}", l, lane), m.gdn_lane(l, lane).state,
                 static_cast<std::size_t>(m.gdn_geometry().state_floats()) * 4);
      }
    }
    return left;
  }

  static void expect_repeats(int lanes, int width, int position) {
    const Left want = run(lanes, width, position, 0, false);
    std::size_t unequal = 0;
    for (int round = 1; round < 6; ++round) {
      const int patterns[] = {0x00, 0xff, 0x7f, 0x3f, 0xbf, 0xff};
      const Left got = run(lanes, width, position, patterns[round], round % 2 == 1);
      for (std::size_t i = 0; i < want.parts.size(); ++i) {
        const std::size_t count = differing(want.parts[i].second, got.parts[i].second);
        if (count) {
          fmt::print("  round {}: {}: {} of {} words differ\n", round, want.parts[i].first, count,
                     want.parts[i].second.size());
        }
        unequal += count;
      }
    }
    fmt::print("{} lanes x {} rows at {}: {} words differ in five repetitions\n", lanes, width, position, unequal);
    EXPECT_EQ(unequal, 0u);
  }
};

TEST_F(RepeatCuda, OneLane) { expect_repeats(1, 8, 1024); }
TEST_F(RepeatCuda, OneRow) { expect_repeats(1, 1, 1024); }
TEST_F(RepeatCuda, TwoLanes) { expect_repeats(2, 8, 1024); }
TEST_F(RepeatCuda, FourLanes) { expect_repeats(4, 8, 1021); }
TEST_F(RepeatCuda, FourLanesFartherOn) { expect_repeats(4, 8, 3300); }
TEST_F(RepeatCuda, EightLanes) { expect_repeats(8, 8, 1024); }
TEST_F(RepeatCuda, EightLanesOfOneRow) { expect_repeats(8, 1, 3001); }

// A lane's rows do not depend on the lanes beside it, up to 32 rows a step (0006).
TEST_F(RepeatCuda, CompanyChangesNoBit) {
  for (const int position : {1024, 3300}) {
    const Left alone = run(1, 8, position, 0xff, false);
    for (const int lanes : {2, 3, 4}) {
      const Left got = run(lanes, 8, position, 0x7f, true);
      for (const char* part : {"tap 0", "tap 1", "tap 2", "tokens", "x", "logits", "state 0 of lane 0", "state 6 of lane 0"}) {
        const std::size_t count = differing(alone.named(part), got.named(part));
        if (count) fmt::print("  {} lanes at {}: {} of lane 0: {} words differ\n", lanes, position, part, count);
        EXPECT_EQ(count, 0u);
      }
    }
  }
}

}  // namespace
}  // namespace splash::bench
