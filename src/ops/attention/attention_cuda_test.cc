#include "ops/attention/attention_cuda.h"

#include <algorithm>
#include <numeric>

#include "ops/rotary_ref.h"
#include "ops/testing_cuda.h"

namespace splash::ops {
namespace {

using namespace cuda::testing;

// One lane's keys and values as the int8 rule stores them, and the attention over them in double.
struct HostLane {
  std::vector<float> keys, values;  // [position][kv head][256]
  std::vector<PageId> pages;
};

struct Lanes {
  AttentionGeometry g;
  Numbers numbers;
  Memory memory;
  std::vector<float> q_norm, k_norm;
  KvPool pool;
  int pages;
  std::vector<HostLane> lanes;

  Lanes(int query_heads, int kv_heads, int page_count, int lane_count)
      : numbers(query_heads * 7 + kv_heads), pages(page_count), lanes(lane_count) {
    g.query_heads = query_heads, g.kv_heads = kv_heads;
    q_norm = numbers.normals(256), k_norm = numbers.normals(256);
    pool.geometry = {KvFormat::int8, 2, kv_heads, 256};
    pool.base = memory.empty<std::byte>(static_cast<std::size_t>(pool.geometry.page_bytes() * page_count));
    // Pages are dealt in a scattered order.
    std::vector<PageId> order(page_count);
    std::iota(order.begin(), order.end(), 0);
    for (int i = page_count - 1; i > 0; --i) std::swap(order[i], order[numbers.below(i + 1)]);
    for (int i = 0; i < page_count; ++i) lanes[i % lane_count].pages.push_back(order[i]);
  }
  static void store(std::span<const float> x, std::vector<float>& to) {
    float top = 0;
    for (const float value : x) top = std::max(top, std::fabs(value));
    const float scale = std::max(top / 127.0f, 1e-20f);
    for (const float value : x) to.push_back(std::nearbyint(value / scale) * scale);
  }

  // A lane's first `count` positions hold any codes: in the pages (attention_cuda.h says how) and here.
  void fill(int lane_index, int count) {
    HostLane& lane = lanes[lane_index];
    const int heads = g.kv_heads, tokens = link::page_tokens;
    ASSERT_EQ(count % tokens, 0);
    lane.keys.resize(std::size_t(count) * heads * 256), lane.values.resize(lane.keys.size());
    std::uint32_t seed = 1;
    const auto next = [&] { return (seed = seed * 1664525u + 1013904223u) >> 8; };
    const auto layer_bytes = static_cast<std::size_t>(pool.geometry.layer_bytes()), head_bytes = layer_bytes / heads;
    std::vector<std::uint8_t> page(layer_bytes);
    for (int first = 0; first < count; first += tokens) {
      for (int h = 0; h < heads; ++h) {
        std::uint8_t* keys = page.data() + h * head_bytes;
        std::uint8_t* values = keys + tokens * 256;
        auto* scales = reinterpret_cast<float*>(values + tokens * 256);
        for (int i = 0; i < tokens; ++i) {
          const float key_scale = 0.01f + 1e-9f * next(), value_scale = 0.002f + 1e-9f * next();
          scales[i] = key_scale, scales[tokens + i] = value_scale;
          for (int d = 0; d < 256; ++d) {
            const int key = static_cast<int>(next() % 255) - 127, value = static_cast<int>(next() % 255) - 127;
            keys[i * 256 + (d / 16 ^ i % 2 * 4) * 16 + d % 16] = static_cast<std::uint8_t>(key + 128);
            values[d * tokens + i] = static_cast<std::uint8_t>(value + 128);
            const std::size_t at = (std::size_t(first + i) * heads + h) * 256 + d;
            lane.keys[at] = key * key_scale, lane.values[at] = value * value_scale;
          }
        }
      }
      std::byte* to = pool.at(lane.pages[first / tokens], 1);
      Memory::check(cudaMemcpy(to, page.data(), layer_bytes, cudaMemcpyHostToDevice));
    }
  }

  struct Part {
    int lane, rows;
  };
  // Runs the parts on the device, and checks every `stride`-th row.
  std::vector<float> pass(const char* what, const std::vector<Part>& parts, int stride = 1, double bound = 1.5e-3) {
    const int d = 256, group = g.query_heads / g.kv_heads;
    int rows = 0;
    std::vector<Segment> segments;
    for (const Part& part : parts) {
      HostLane& lane = lanes[part.lane];
      const int position = static_cast<int>(lane.keys.size()) / (g.kv_heads * d);
      segments.push_back({part.lane, rows, part.rows, position, lane.pages});
      rows += part.rows;
    }
    const std::vector<float> q = numbers.normals(std::size_t(rows) * g.query_heads * 2 * d);
    std::vector<float> k = numbers.normals(std::size_t(rows) * g.kv_heads * d),
                       v = numbers.normals(std::size_t(rows) * g.kv_heads * d);
    for (int r = 0; r < rows; r += 3) {  // value rows of very different size: some tiny, some zero
      const float scale = r % 2 ? 1e-4f : r % 9 == 0 ? 0.0f : 30.0f;
      for (int i = 0; i < g.kv_heads * d; ++i) v[std::size_t(r) * g.kv_heads * d + i] *= scale;
    }
    stream().reset();
    const MatrixView<float> out = memory.matrix(rows, g.query_heads * d);
    const AttentionWeights weights{memory.vector(q_norm), memory.vector(k_norm)};
    attention(stream(), g, weights,
              {memory.matrix(q, rows, g.query_heads * 2 * d), memory.matrix(k, rows, g.kv_heads * d),
               memory.matrix(v, rows, g.kv_heads * d)},
              segments, pool, 1, out);
    const std::vector<float> got = download(out);
    expect_panel("attention", out);
    std::vector<float> checked, want, head(d);
    for (const Segment& segment : segments) {
      HostLane& lane = lanes[segment.lane];
      for (int i = 0; i < segment.rows; ++i) {
        const int r = segment.first_row + i;
        for (int h = 0; h < g.kv_heads; ++h) {
          reference::norm_head(std::span(k).subspan((std::size_t(r) * g.kv_heads + h) * d, d), k_norm, g.rms_eps, head);
          reference::rotate_head(head, g.rotary_dim, g.rope_theta, segment.position + i);
          store(head, lane.keys);
          store(std::span(v).subspan((std::size_t(r) * g.kv_heads + h) * d, d), lane.values);
        }
      }
      for (int i = 0; i < segment.rows; ++i) {
        if (i % stride != 0 && i != segment.rows - 1) continue;
        const int r = segment.first_row + i, count = segment.position + i + 1;
        for (int h = 0; h < g.query_heads; ++h) {
          const float* from = q.data() + (std::size_t(r) * g.query_heads + h) * 2 * d;
          reference::norm_head({from, std::size_t(d)}, q_norm, g.rms_eps, head);
          reference::rotate_head(head, g.rotary_dim, g.rope_theta, segment.position + i);
          std::vector<double> p(count), sum(d);
          double top = -1e300, total = 0;
          for (int j = 0; j < count; ++j) {
            const float* key = lane.keys.data() + (std::size_t(j) * g.kv_heads + h / group) * d;
            for (int e = 0; e < d; ++e) p[j] += double{head[e]} * key[e] / 16;
            top = std::max(top, p[j]);
          }
          for (int j = 0; j < count; ++j) {
            const float* value = lane.values.data() + (std::size_t(j) * g.kv_heads + h / group) * d;
            const double weight = std::exp(p[j] - top);
            total += weight;
            for (int e = 0; e < d; ++e) sum[e] += weight * value[e];
          }
          for (int e = 0; e < d; ++e) {
            want.push_back(static_cast<float>(sum[e] / total / (1 + std::exp(-double{from[d + e]}))));
            checked.push_back(got[std::size_t(r) * g.query_heads * d + h * d + e]);
          }
        }
      }
    }
    expect_close(what, checked, want, bound);
    return got;
  }
};

void run_sequence(int query_heads, int kv_heads) {
  Lanes setup(query_heads, kv_heads, 40, 2);
  setup.pass("first row", {{0, 1}});
  setup.pass("verify 8 at 1, prefill 40 at 0", {{0, 8}, {1, 40}});
  setup.pass("verify 8 and 5", {{1, 8}, {0, 5}});
  setup.pass("prefill 300", {{0, 300}}, 7);
  setup.pass("verify 16 across a page", {{0, 16}});
  setup.pass("verify 8, chunks of 128", {{0, 8}, {1, 8}});
  setup.pass("tiles of two lanes", {{0, 70}, {1, 9}}, 3);
}
TEST(AttentionCuda, GroupOf6) { run_sequence(6, 1); }
TEST(AttentionCuda, GroupOf6TwoHeads) { run_sequence(12, 2); }
TEST(AttentionCuda, GroupOf8) { run_sequence(8, 1); }
TEST(AttentionCuda, GroupOf4) { run_sequence(4, 1); }
TEST(AttentionCuda, GroupOf2) { run_sequence(2, 1); }

TEST(AttentionCuda, LongContext) {
  Lanes setup(6, 1, 290, 1);
  setup.pass("prefill 2100", {{0, 2100}}, 211);
  setup.pass("prefill 700 behind it", {{0, 700}}, 97);
  setup.pass("verify 8 at 2800", {{0, 8}});
  setup.pass("prefill 1500 across a long chunk", {{0, 1500}}, 131);
  setup.pass("prefill 80 behind it, split", {{0, 80}}, 11);
  setup.pass("prefill 4700 behind that", {{0, 4700}}, 997);
  setup.pass("verify 8 at 9088", {{0, 8}});
  setup.pass("verify 8 behind", {{0, 8}}, 3);
}

// Beyond every kind of chunk, against double.
TEST(AttentionCuda, FarContext) {
  Lanes setup(6, 1, 4200, 1);
  setup.fill(0, 40000);
  setup.pass("verify 8 at 40,000", {{0, 8}}, 4);
  setup.fill(0, 134016);
  setup.pass("verify 8 at 134,016", {{0, 8}}, 7);
  setup.pass("one row behind", {{0, 1}});
}

// The same rows whatever the cut of the prefix and the width of the step: narrow passes and wide ones each among
// themselves, and among each other where wide passes are not apart.
void expect_cuts_equal(int group, int rows, const std::vector<std::vector<int>>& cuts, int compared_rows) {
  AttentionGeometry g;
  g.query_heads = group, g.kv_heads = 1;
  Numbers numbers(41);
  Memory memory;
  constexpr int d = 256;
  const std::vector<float> q_norm = numbers.normals(d), k_norm = numbers.normals(d);
  const AttentionWeights weights{memory.vector(q_norm), memory.vector(k_norm)};
  const MatrixView<float> q = memory.matrix(numbers.normals(std::size_t(rows) * group * 2 * d), rows, group * 2 * d),
                          k = memory.matrix(numbers.normals(std::size_t(rows) * d), rows, d),
                          v = memory.matrix(numbers.normals(std::size_t(rows) * d), rows, d);
  KvPool pool;
  pool.geometry = {KvFormat::int8, 1, 1, 256};
  const int page_count = rows / link::page_tokens + 1;
  std::vector<float> want;
  for (const std::vector<int>& cut : cuts) {
    pool.base = memory.empty<std::byte>(static_cast<std::size_t>(pool.geometry.page_bytes() * page_count));
    std::vector<PageId> pages(page_count);
    std::iota(pages.rbegin(), pages.rend(), 0);
    const MatrixView<float> out = memory.matrix(rows, group * d);
    int first = 0;
    for (const int count : cut) {
      stream().reset();
      const Segment segment{0, 0, count, first, pages};
      attention(stream(), g, weights,
                {q.slice_rows(first, count), k.slice_rows(first, count), v.slice_rows(first, count)},
                std::span(&segment, 1), pool, 0, out.slice_rows(first, count));
      first += count;
    }
    ASSERT_EQ(first, rows);
    const std::vector<float> got = download(out.slice_rows(rows - compared_rows, compared_rows));
    if (want.empty()) want = got;
    expect_same("attention in cuts", got, want);
  }
}
TEST(AttentionCuda, CutsChangeNoBit) {
  stream().set_wide_passes_apart(false);
  expect_cuts_equal(6, 420, {{420}, {100, 320}, {1, 7, 392, 8, 8, 4}, {411, 1, 1, 1, 1, 1, 1, 1, 1, 1}}, 420);
  // Many tiles are not split; few are, and a step's have pairs of consumers.
  expect_cuts_equal(6, 1500, {{1500}, {800, 692, 8}, {1400, 90, 10}, {1492, 1, 1, 1, 1, 1, 1, 1, 1}}, 300);
  stream().set_wide_passes_apart(true);
}
TEST(AttentionCuda, CutsOfWidePassesChangeNoBit) {
  expect_cuts_equal(6, 420, {{420}, {100, 320}, {65, 90, 66, 199}}, 420);
  expect_cuts_equal(8, 420, {{420}, {77, 343}}, 420);
  // Beyond the first chunk; short passes are split at chunks, long ones are not.
  expect_cuts_equal(6, 4400, {{4400}, {2000, 2300, 100}, {4096, 304}, {4095, 305}, {4200, 70, 65, 65}}, 300);
}

// A step's lanes at once: the bits of each alone and of the same rows read one by one, run after run, whatever partial
// sums held before. True geometry, contexts up to the long chunks.
TEST(AttentionCuda, CompanyChangesNoBit) {
  AttentionGeometry g;
  g.query_heads = 24, g.kv_heads = 4;
  constexpr int lanes = 8, width = 8, d = 256;
  const int positions[lanes] = {1024, 0, 9000, 127, 2047, 33000, 140000, 4090};
  Numbers numbers(67);
  Memory memory;
  const AttentionWeights weights{memory.vector(numbers.normals(d)), memory.vector(numbers.normals(d))};
  const int rows = lanes * width;
  const MatrixView<float> q = memory.matrix(numbers.normals(std::size_t(rows) * 24 * 2 * d), rows, 24 * 2 * d),
                          k = memory.matrix(numbers.normals(std::size_t(rows) * 4 * d), rows, 4 * d),
                          v = memory.matrix(numbers.normals(std::size_t(rows) * 4 * d), rows, 4 * d);
  KvPool pool;
  pool.geometry = {KvFormat::int8, 1, 4, d};
  std::vector<std::vector<PageId>> pages(lanes);
  int page_count = 0;
  for (int lane = 0; lane < lanes; ++lane) {
    for (int i = 0; i <= (positions[lane] + width) / link::page_tokens; ++i) pages[lane].push_back(page_count++);
  }
  // Any codes; scales between 2^-7 and 2^-6.
  std::vector<std::uint32_t> noise(static_cast<std::size_t>(pool.geometry.page_bytes() * page_count) / 4);
  for (std::size_t i = 0; i < noise.size(); ++i)
    noise[i] = 0x3c000000u | static_cast<std::uint32_t>((i * 2654435761u) >> 3 & 0x7fffff);
  pool.base = reinterpret_cast<std::byte*>(memory.copy(noise));
  auto run = [&](int lane, int first, int count, int poison) {  // lane -1: all
    stream().reset();
    Memory::check(cudaMemsetAsync(stream().partials(), poison, stream().partials_bytes(), stream().native()));
    std::vector<Segment> segments;
    for (int i = 0; i < lanes; ++i) {
      if (lane >= 0 && lane != i) continue;
      segments.push_back({i, i * width + first, count, positions[i] + first, pages[i]});
    }
    const MatrixView<float> out = memory.matrix(rows, 24 * d);
    attention(stream(), g, weights, {q, k, v}, segments, pool, 0, out);
    return download(out);
  };
  const std::vector<float> want = run(-1, 0, width, 0);
  for (const int poison : {0xff, 0x7f, 0x3f}) expect_same("attention again", run(-1, 0, width, poison), want);
  const std::size_t row = std::size_t(24) * d;
  auto part = [&](const std::vector<float>& from, int first, int count) {
    return std::vector<float>(from.begin() + std::ptrdiff_t(first * row), from.begin() + std::ptrdiff_t((first + count) * row));
  };
  for (int lane = 0; lane < lanes; ++lane) {
    expect_same("attention alone", part(run(lane, 0, width, 0xff), lane * width, width), part(want, lane * width, width));
    for (int i = 0; i < width; i += 3) {
      expect_same("attention of one row", part(run(lane, i, 1, 0xff), lane * width + i, 1),
                  part(want, lane * width + i, 1));
    }
  }
}

}  // namespace
}  // namespace splash::ops
