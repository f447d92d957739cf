// clang-format off
#include "ops/fused_cuda.h"
// clang-format on

#include "ops/draft/draft_cuda.h"
#include "ops/testing_cuda.h"

namespace splash::ops {
namespace {

using namespace cuda::testing;

TEST(DraftCuda, BlockConv) {
  Numbers numbers(43);
  Memory memory;
  ref::Stream ref;
  const int hidden = 256, rows = 16;
  const std::vector<float> base = numbers.normals(4 * hidden), p = numbers.normals(std::size_t(rows) * 4 * hidden / 16),
                           y = numbers.normals(std::size_t(rows) * hidden),
                           residual = numbers.normals(std::size_t(rows) * hidden);
  const std::span<const float> device_base = memory.vector(base);
  for (const int stage : {0, 1}) {
    stream().reset();
    std::vector<float> want = residual;
    block_conv(ref, {base, 16, stage, 8}, {p.data(), rows, hidden / 4}, {y.data(), rows, hidden}, stage == 1,
               {want.data(), rows, hidden});
    const MatrixView<float> out = memory.matrix(residual, rows, hidden);
    block_conv(stream(), {device_base, 16, stage, 8}, memory.matrix(p, rows, hidden / 4),
               memory.matrix(y, rows, hidden), stage == 1, out);
    expect_close("block_conv", download(out), want, 1e-6);
    if (out.cols % cuda::Panel::group == 0) expect_panel("block_conv", out);
  }
}

// A boundary as ref makes it with every input of the projection rounded as panels are; at several widths, whose rows have
// the bits that they have alone.
TEST(DraftCuda, Boundary) {
  Numbers numbers(71);
  constexpr int block = 8, most = 64;
  for (const int hidden : {256, 512, 1792}) {
    ref::Stream ref;
    const int wide = hidden / 4;
    const HostWeight projection = random_q4(numbers, wide, hidden);
    const std::vector<float> base = numbers.normals(std::size_t(4) * hidden),
                             end_base = numbers.normals(std::size_t(4) * hidden), gain = numbers.normals(hidden), x = numbers.normals(std::size_t(most) * hidden, 3),
                             y = numbers.normals(std::size_t(most) * hidden), p = numbers.normals(std::size_t(most) * wide);
    for (const bool ends : {true, false}) {
      std::vector<float> rows_alone[3];
      for (const int rows : {8, 16, 24, 40, most}) {
        Memory memory;
        stream().reset();
        const auto some = [&](const std::vector<float>& all, int cols) {
          return std::vector<float>(all.begin(), all.begin() + std::ptrdiff_t{rows} * cols);
        };
        std::vector<float> want_x = some(x, hidden), normed(want_x.size()), want_p(std::size_t(rows) * wide),
                           want(want_x.size());
        const std::vector<float> host_y = some(y, hidden), host_p = some(p, wide);
        const MatrixView<float> host_x{want_x.data(), rows, hidden};
        DraftBoundary on_host{.gain = gain,
                              .eps = 1e-6f,
                              .conv = {base, projection.view},
                              .normed = {normed.data(), rows, hidden},
                              .coefficients = {want_p.data(), rows, wide},
                              .convolved = {want.data(), rows, hidden}};
        if (ends) on_host.end = {end_base, {host_p.data(), rows, wide}, {host_y.data(), rows, hidden}};
        draft_boundary(ref, host_x, {}, on_host);

        DraftBoundary b{.gain = memory.vector(gain),
                        .eps = 1e-6f,
                        .conv = {memory.vector(base), memory.weight(projection.view)},
                        .normed = memory.matrix(rows, hidden),
                        .coefficients = memory.matrix(rows, wide),
                        .convolved = memory.matrix(rows, hidden)};
        if (ends) b.end = {memory.vector(end_base), memory.matrix(host_p, rows, wide), memory.matrix(host_y, rows, hidden)};
        const MatrixView<float> dx = memory.matrix(some(x, hidden), rows, hidden), spare = memory.matrix(rows, hidden);
        const MatrixView<float> now = draft_boundary(stream(), dx, spare, b);
        expect_close("x", download(now), want_x, 1e-6);
        std::vector<float> got_p, wanted_p;
        const std::vector<float> all_p = download(b.coefficients);
        for (int r = 0; r < rows; ++r) {  // of the stage behind the sublayer: the other's need not be written
          const std::ptrdiff_t half = std::ptrdiff_t{r} * wide + wide / 2;
          got_p.insert(got_p.end(), all_p.begin() + half, all_p.begin() + half + wide / 2);
          wanted_p.insert(wanted_p.end(), want_p.begin() + half, want_p.begin() + half + wide / 2);
        }
        expect_close("coefficients", got_p, wanted_p, 4e-3);
        expect_close("convolved", download(b.convolved), want, 4e-3);
        expect_panel("convolved", b.convolved);
        std::vector<float> got[3] = {download(now), got_p, download(b.convolved)};
        for (int i = 0; i < 3; ++i) {
          got[i].resize(got[i].size() / rows * block);
          if (rows_alone[i].empty()) rows_alone[i] = got[i];
          if (!stream().portable()) expect_same("the same rows alone", got[i], rows_alone[i]);
        }
      }
    }
  }
}

TEST(DraftCuda, FinishAndFeatures) {
  Numbers numbers(73);
  constexpr int block = 8, hidden = 512, lanes = 3, rows = lanes * block;
  ref::Stream ref;
  const std::vector<float> base = numbers.normals(4 * hidden), gain = numbers.normals(hidden),
                           x = numbers.normals(rows * hidden, 3), y = numbers.normals(rows * hidden),
                           p = numbers.normals(rows * hidden / 4);
  for (const auto& [first, kept] : {std::pair{0, 8}, {1, 7}, {1, 3}}) {
    Memory memory;
    stream().reset();
    std::vector<float> host_x = x, want(std::size_t(lanes) * kept * hidden);
    draft_finish(ref, MatrixView<float>{host_x.data(), rows, hidden},
                 {base, {p.data(), rows, hidden / 4}, {y.data(), rows, hidden}}, 16, block, gain, 1e-6f, first,
                 MatrixView<float>{want.data(), lanes * kept, hidden});
    const MatrixView<float> out = memory.matrix(lanes * kept, hidden);
    draft_finish(stream(), memory.matrix(x, rows, hidden),
                 {memory.vector(base), memory.matrix(p, rows, hidden / 4), memory.matrix(y, rows, hidden)}, 16, block,
                 memory.vector(gain), 1e-6f, first, out);
    expect_close("finish", download(out), want, 1e-6);
    expect_panel("finish", out);
  }
  Memory memory;
  stream().reset();
  const MatrixView<float> features = memory.matrix(rows, 2 * hidden);
  draft_feature(stream(), memory.matrix(x, rows, hidden), features, 0);
  draft_feature(stream(), memory.matrix(y, rows, hidden), features, 1);
  std::vector<float> want;
  for (int r = 0; r < rows; ++r) {
    want.insert(want.end(), x.begin() + r * hidden, x.begin() + (r + 1) * hidden);
    want.insert(want.end(), y.begin() + r * hidden, y.begin() + (r + 1) * hidden);
  }
  expect_same("features", download(features), want);
  expect_panel("features", features);
}

// fc, norm, keys and values of several layers: at once as one by one, but for the order in which their linears add up.
TEST(DraftCuda, ContextsOfAllLayers) {
  Numbers numbers(79);
  constexpr int hidden = 512, taps = 2, layers = 7, capacity = 64;
  DraftAttentionGeometry g;
  g.query_heads = 8, g.kv_heads = 2, g.head_dim = 128, g.window = 64;
  const int width = g.kv_heads * g.head_dim;
  const HostWeight fc = random_q4(numbers, hidden, taps * hidden);
  std::vector<HostWeight> kv;
  for (int i = 0; i < 2 * layers; ++i) kv.push_back(random_q4(numbers, width, hidden));
  const std::vector<float> gain = numbers.normals(hidden), k_norm = numbers.normals(g.head_dim);
  for (const int rows : {8, 24, 48}) {
    Memory memory;
    const std::vector<float> features = numbers.normals(std::size_t(rows) * taps * hidden);
    std::vector<std::vector<float>> rings[2];
    for (const bool together : {true, false}) {
      stream().reset();
      const std::vector<float> empty(std::size_t(capacity) * width);
      std::vector<std::vector<DraftContextSegment>> segments(layers);
      std::vector<DraftContextLayer> of;
      const std::span<const float> norm = memory.vector(k_norm);
      for (int l = 0; l < layers; ++l) {
        for (int lane = 0; lane < rows / 8; ++lane)
          segments[l].push_back(
              {lane * 8, 8 - lane % 3, 100 + 3 * lane, {memory.copy(empty), memory.copy(empty), capacity}});
        of.push_back({memory.weight(kv[2 * l].view), memory.weight(kv[2 * l + 1].view), norm, segments[l]});
      }
      const MatrixView<float> context = memory.matrix(rows, hidden), normed = memory.matrix(rows, hidden),
                              f = memory.matrix(features, rows, taps * hidden);
      if (together) {
        const FoldsNorms folds;
        linear_norm(stream(), f, memory.weight(fc.view), context, memory.vector(gain), 1e-6f, normed);
        draft_contexts(stream(), g, normed, of);
      } else {
        linear(stream(), f, memory.weight(fc.view), context);
        rms_norm(stream(), context, memory.vector(gain), 1e-6f, normed);
        draft_contexts<cuda::Stream>(stream(), g, normed, of);
      }
      for (const auto& layer : segments) {
        for (const DraftContextSegment& segment : layer) {
          rings[together].push_back(download(segment.ring.keys, empty.size()));
          rings[together].push_back(download(segment.ring.values, empty.size()));
        }
      }
    }
    for (std::size_t i = 0; i < rings[0].size(); ++i) expect_close("ring", rings[1][i], rings[0][i], 5e-3);
  }
}

void run_attention(int dim, int query_heads, int kv_heads, int window, int capacity) {
  Numbers numbers(47 + dim + window);
  Memory memory;
  ref::Stream ref;
  DraftAttentionGeometry g;
  g.query_heads = query_heads, g.kv_heads = kv_heads, g.head_dim = dim, g.window = window;
  const int width = kv_heads * dim, block = 8;
  const std::vector<float> q_norm = numbers.normals(dim), k_norm = numbers.normals(dim);
  const std::span<const float> dq_norm = memory.vector(q_norm), dk_norm = memory.vector(k_norm);
  std::vector<float> keys(std::size_t(capacity) * width), values(keys.size());
  const DraftRing host{keys.data(), values.data(), capacity}, device{memory.copy(keys), memory.copy(values), capacity};
  int position = 0;
  for (const int context : {0, 5, 20, 1, 36, 54, capacity}) {  // at 62 the block lies in two chunks
    if (window == 0 && position + context > capacity) continue;  // full attention: the ring holds the whole context
    stream().reset();
    if (context > 0) {
      const std::vector<float> k = numbers.normals(std::size_t(context) * width),
                               v = numbers.normals(std::size_t(context) * width);
      const DraftContextSegment on_host{0, context, position, host}, on_device{0, context, position, device};
      draft_context(ref, g, k_norm, {k.data(), context, width}, {v.data(), context, width}, std::span(&on_host, 1));
      draft_context(stream(), g, dk_norm, memory.matrix(k, context, width), memory.matrix(v, context, width),
                    std::span(&on_device, 1));
      position += context;
      expect_close("ring keys", download(device.keys, keys.size()), keys, 3e-4);  // rounded to tf32
    }
    const std::vector<float> q = numbers.normals(std::size_t(block) * query_heads * dim),
                             k = numbers.normals(std::size_t(block) * width),
                             v = numbers.normals(std::size_t(block) * width);
    std::vector<float> want(std::size_t(block) * query_heads * dim);
    const DraftBlockSegment on_host{0, position, host}, on_device{0, position, device};
    draft_attention(ref, g, q_norm, k_norm, {q.data(), block, query_heads * dim}, {k.data(), block, width},
                    {v.data(), block, width}, block, std::span(&on_host, 1), {want.data(), block, query_heads * dim});
    const MatrixView<float> out = memory.matrix(block, query_heads * dim);
    draft_attention(stream(), g, dq_norm, dk_norm, memory.matrix(q, block, query_heads * dim),
                    memory.matrix(k, block, width), memory.matrix(v, block, width), block, std::span(&on_device, 1),
                    out);
    expect_close("draft attention", download(out), want, 1e-3);
    expect_panel("draft attention", out);
  }
}
TEST(DraftCuda, AttentionFixtureShape) { run_attention(64, 4, 2, 32, 32); }
TEST(DraftCuda, AttentionWideWindow) { run_attention(128, 8, 2, 100, 130); }
TEST(DraftCuda, AttentionFull) { run_attention(128, 4, 1, 0, 256); }

void expect_top_k_as_ref(Memory& memory, std::vector<float>& logits, int rows, int vocabulary, int limit, int k) {
  ref::Stream ref;
  std::vector<Token> tokens(rows * k);
  std::vector<float> values(rows * k);
  top_k(ref, {logits.data(), rows, vocabulary}, limit, {tokens.data(), rows, k}, {values.data(), rows, k});
  const MatrixView<Token> got{memory.empty<Token>(rows * k), rows, k};
  const MatrixView<float> got_values = memory.matrix(rows, k);
  top_k(stream(), memory.matrix(logits, rows, vocabulary), limit, got, got_values);
  expect_same("tokens", download(got.data, rows * k), tokens);
  for (float& value : values) value += 0.0f;  // -0 counts as 0
  expect_same("values", download(got_values), values);
}

TEST(DraftCuda, TopK) {
  Numbers numbers(53);
  Memory memory;
  for (const auto [vocabulary, limit, k] :
       {std::array{1024, 1000, 16}, std::array{40, 40, 16}, std::array{24832, 24832, 1}, std::array{6, 5, 1},
        std::array{9000, 8999, 32}}) {
    stream().reset();
    const int rows = 5;
    std::vector<float> logits = numbers.normals(std::size_t(rows) * vocabulary);
    for (float& value : logits) value = std::round(value * 8) / 8;  // many ties, zeros of both signs
    logits[3] = std::numeric_limits<float>::quiet_NaN();
    logits[7] = -std::numeric_limits<float>::infinity();
    for (int i = 0; i < vocabulary; ++i) logits[std::size_t(4) * vocabulary + i] = i % 2 ? 0.0f : -0.0f;
    for (int i = 0; k == 1 && i < vocabulary; ++i)
      logits[std::size_t(3) * vocabulary + i] = -std::numeric_limits<float>::infinity();
    expect_top_k_as_ref(memory, logits, rows, vocabulary, limit, k);
  }
}

// Vocabularies of a true head, and logits that leave a block's bound with thousands of entries above it: all but the
// lowest of its warps' largest lie far above that one.
TEST(DraftCuda, TopKOfAWholeHead) {
  Numbers numbers(59);
  Memory memory;
  constexpr int vocabulary = 248320, limit = 248077, rows = 3;
  for (const int k : {1, 16, 20, 32}) {
    stream().reset();
    std::vector<float> logits(std::size_t(rows) * vocabulary);
    for (int i = 0; i < vocabulary; ++i) {
      const int warp = i % 1024 / 32;
      logits[i] = numbers.normal();
      logits[std::size_t(1) * vocabulary + i] = warp < k - 1 ? 5 + static_cast<float>(i % 7) : -static_cast<float>(warp);
      logits[std::size_t(2) * vocabulary + i] = i < 40000 ? 1.0f : std::round(numbers.normal());
    }
    for (int i = limit; i < vocabulary; ++i) logits[i] = 100;  // padding of the vocabulary never counts
    expect_top_k_as_ref(memory, logits, rows, vocabulary, limit, k);
  }
}

// Several lanes at once: the bits of each alone, run after run, whatever the partial sums held before.
TEST(DraftCuda, CompanyChangesNoBit) {
  Numbers numbers(61);
  Memory memory;
  DraftAttentionGeometry g;
  g.query_heads = 32, g.kv_heads = 8, g.head_dim = 128, g.window = 2048;
  constexpr int block = 8, lanes = 4;
  const int width = g.kv_heads * g.head_dim, wide = g.query_heads * g.head_dim;
  const std::span<const float> q_norm = memory.vector(numbers.normals(128)), k_norm = memory.vector(numbers.normals(128));
  const MatrixView<float> q = memory.matrix(numbers.normals(std::size_t(lanes) * block * wide), lanes * block, wide),
                          k = memory.matrix(numbers.normals(std::size_t(lanes) * block * width), lanes * block, width),
                          v = memory.matrix(numbers.normals(std::size_t(lanes) * block * width), lanes * block, width);
  std::vector<DraftBlockSegment> segments;
  const int positions[lanes] = {2048 + 100, 63, 5000, 1025};
  for (int lane = 0; lane < lanes; ++lane) {
    const std::size_t ring = std::size_t(g.window) * width;
    segments.push_back({lane * block, positions[lane],
                        {memory.copy(numbers.normals(ring)), memory.copy(numbers.normals(ring)), g.window}});
  }
  auto run = [&](std::span<const DraftBlockSegment> some, int poison) {
    stream().reset();
    Memory::check(cudaMemsetAsync(stream().partials(), poison, stream().partials_bytes(), stream().native()));
    const MatrixView<float> out = memory.matrix(lanes * block, wide);
    draft_attention(stream(), g, q_norm, k_norm, q, k, v, block, some, out);
    return download(out);
  };
  const std::vector<float> want = run(segments, 0);
  for (const int poison : {0xff, 0x7f, 0x3f}) expect_same("draft attention again", run(segments, poison), want);
  for (int lane = 0; lane < lanes; ++lane) {
    const std::vector<float> alone = run(std::span(segments).subspan(lane, 1), 0xff);
    const std::size_t from = std::size_t(lane) * block * wide, to = from + std::size_t(block) * wide;
    expect_same("draft attention alone", std::vector<float>(alone.begin() + from, alone.begin() + to),
                std::vector<float>(want.begin() + from, want.begin() + to));
  }
}

}  // namespace
}  // namespace splash::ops
