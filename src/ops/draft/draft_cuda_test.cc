#include "ops/draft/draft_cuda.h"

#include "ops/sampling/sampling_cuda.h"
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
  for (const int context : {0, 5, 20, 1, 90, capacity}) {
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
      expect_close("ring keys", download(device.keys, keys.size()), keys, 1e-5);
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
    expect_close("draft attention", download(out), want, 2e-5);
  }
}
TEST(DraftCuda, AttentionFixtureShape) { run_attention(64, 4, 2, 32, 32); }
TEST(DraftCuda, AttentionWideWindow) { run_attention(128, 8, 2, 100, 130); }
TEST(DraftCuda, AttentionFull) { run_attention(128, 4, 1, 0, 256); }

TEST(DraftCuda, TopK) {
  Numbers numbers(53);
  Memory memory;
  ref::Stream ref;
  for (const auto [vocabulary, limit, k] :
       {std::array{1024, 1000, 16}, std::array{40, 40, 16}, std::array{24832, 24832, 1}, std::array{9000, 8999, 32}}) {
    stream().reset();
    const int rows = 5;
    std::vector<float> logits = numbers.normals(std::size_t(rows) * vocabulary);
    for (float& value : logits) value = std::round(value * 8) / 8;  // many ties, zeros of both signs
    logits[3] = std::numeric_limits<float>::quiet_NaN();
    logits[7] = -std::numeric_limits<float>::infinity();
    for (int i = 0; i < vocabulary; ++i) logits[std::size_t(4) * vocabulary + i] = i % 2 ? 0.0f : -0.0f;
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
}

TEST(DraftCuda, WalkAndAccept) {
  Numbers numbers(59);
  Memory memory;
  stream().reset();
  const int lanes = 3, slots = 7, k = 16, rank = 64, vocabulary = 200;
  const std::vector<float> a = numbers.normals(vocabulary * rank), b = numbers.normals(vocabulary * rank),
                           g = numbers.normals(lanes * slots * rank), values = numbers.normals(lanes * slots * k);
  std::vector<Token> candidates, anchors = {5, 17, 60}, tokens(lanes * (slots + 1), -1);
  for (int row = 0; row < lanes * slots; ++row) {
    const int first = numbers.below(vocabulary - k);
    for (int i = 0; i < k; ++i) candidates.push_back(first + i);
  }
  const pack::Table host_a{pack::Format::f32, vocabulary, rank, reinterpret_cast<const std::byte*>(a.data())},
      host_b{pack::Format::f32, vocabulary, rank, reinterpret_cast<const std::byte*>(b.data())};
  std::vector<Token> chosen, want, kept_want;
  for (int lane = 0; lane < lanes; ++lane) {
    std::vector<Proposal> proposals;
    selector_walk({host_a, host_b}, {candidates.data() + lane * slots * k, slots, k},
                  {values.data() + lane * slots * k, slots, k}, {g.data() + lane * slots * rank, slots, rank},
                  anchors[lane], {.temperature = 0}, 0, proposals);
    tokens[lane * (slots + 1)] = anchors[lane];
    const int accepted = lane * 3 + 1;  // 1, 4, 7
    want.push_back(anchors[lane]);
    for (int j = 0; j < slots; ++j) want.push_back(proposals[j].token);
    for (int j = 0; j <= slots; ++j)
      chosen.push_back(j < accepted ? proposals[j].token : 199 - (j < slots ? proposals[j].token == 199 : 0));
    kept_want.push_back(accepted + 1);
  }
  GreedyWalk walk;
  walk.weights = {{pack::Format::f32, vocabulary, rank, reinterpret_cast<const std::byte*>(memory.copy(a))},
                  {pack::Format::f32, vocabulary, rank, reinterpret_cast<const std::byte*>(memory.copy(b))}};
  walk.candidates = {memory.copy(candidates), lanes * slots, k};
  walk.values = memory.matrix(values, lanes * slots, k);
  walk.projections = memory.matrix(g, lanes * slots, rank);
  walk.lanes = lanes, walk.slots = slots, walk.tokens = memory.copy(tokens);
  selector_walk_greedy(stream(), walk);
  expect_same("walk", download(walk.tokens, want.size()), want);
  int* kept = memory.empty<int>(lanes);
  const std::vector<int*> pointers = {kept, kept + 1, kept + 2};
  GreedyAcceptance acceptance{
      {memory.copy(chosen), lanes * (slots + 1), 1}, lanes, slots, walk.tokens, memory.copy(pointers), nullptr,
      memory.empty<int>(lanes * (slots + 2))};
  accept_greedy(stream(), acceptance);
  expect_same("kept", download(kept, lanes), kept_want);
  const std::vector<int> results = download(acceptance.results, lanes * (slots + 2));
  for (int lane = 0; lane < lanes; ++lane) {
    const int accepted = kept_want[lane] - 1;
    EXPECT_EQ(results[lane * (slots + 2)], kept_want[lane]);
    EXPECT_EQ(results[lane * (slots + 2) + 1 + accepted], chosen[lane * (slots + 1) + accepted]);
  }
}

}  // namespace
}  // namespace splash::ops
