#include "ops/draft/draft.h"

#include "ops/conformance.h"

namespace splash::ops::conformance {
namespace {

class Draft : public EveryIsa {};

TEST_P(Draft, BlockConvMatchesRef) {
  for (const auto [hidden, group, block] : {std::array{256, 16, 8}, {96, 16, 4}, {60, 6, 5}}) {
    const Matrix base = random_matrix(4, hidden, 1), y = random_matrix(3 * block, hidden, 2),
                 p = random_matrix(3 * block, 4 * hidden / group, 3), residual = random_matrix(3 * block, hidden, 4);
    for (int stage : {0, 1}) {
      for (bool accumulate : {false, true}) {
        const BlockConv conv{base.values, group, stage, block};
        Matrix expected = residual, out = residual;
        ref::Stream reference;
        block_conv(reference, conv, p.view(), y.view(), accumulate, expected.view());
        cpu::Stream cpu = stream(3);
        block_conv(cpu, conv, p.view(), y.view(), accumulate, out.view());
        expect_near(out, expected, 3e-6, 2e-6, "block_conv");
      }
    }
  }
}

struct Ring {
  std::vector<float> keys, values;
  DraftRing view;
  Ring(const DraftAttentionGeometry& g, int capacity)
      : keys(std::size_t(capacity) * g.kv_heads * g.head_dim), values(keys.size()),
        view{keys.data(), values.data(), capacity} {}
};

TEST_P(Draft, AttentionMatchesRefAcrossWindowsAndWraps) {
  for (const auto [query_heads, kv_heads, dim] : {std::array{4, 2, 64}, {6, 1, 128}, {4, 1, 128}}) {
    for (const auto [window, capacity] : {std::array{32, 32}, {32, 45}, {0, 200}}) {
      DraftAttentionGeometry g;
      g.query_heads = query_heads, g.kv_heads = kv_heads, g.head_dim = dim, g.window = window;
      const Matrix q_norm = random_matrix(1, dim, 1), k_norm = random_matrix(1, dim, 2);
      const Matrix k = random_matrix(120, kv_heads * dim, 3), v = random_matrix(120, kv_heads * dim, 4);
      const Matrix q = random_matrix(8, query_heads * dim, 5), bk = random_matrix(8, kv_heads * dim, 6),
                   bv = random_matrix(8, kv_heads * dim, 7);
      for (const int context : {0, 1, 5, 31, 32, 33, 64, 95, 120}) {
        Ring ref_ring(g, capacity), cpu_ring(g, capacity);
        ref::Stream reference;
        cpu::Stream cpu = stream(3);
        const DraftContextSegment for_ref{0, context, 0, ref_ring.view};
        draft_context(reference, g, k_norm.values, k.view(), v.view(), std::span(&for_ref, 1));
        for (int first = 0; first < context; first += 50) {  // in pieces
          const DraftContextSegment piece{first, std::min(50, context - first), first, cpu_ring.view};
          draft_context(cpu, g, k_norm.values, k.view(), v.view(), std::span(&piece, 1));
        }
        EXPECT_EQ(cpu_ring.values, ref_ring.values);
        for (std::size_t i = 0; i < ref_ring.keys.size(); ++i) ASSERT_NEAR(cpu_ring.keys[i], ref_ring.keys[i], 5e-6);

        Matrix expected(8, query_heads * dim), out = expected, other = expected;
        const DraftBlockSegment ref_block{0, context, ref_ring.view}, cpu_block{0, context, cpu_ring.view};
        draft_attention(reference, g, q_norm.values, k_norm.values, q.view(), bk.view(), bv.view(), 8,
                        std::span(&ref_block, 1), expected.view());
        draft_attention(cpu, g, q_norm.values, k_norm.values, q.view(), bk.view(), bv.view(), 8, std::span(&cpu_block, 1),
                        out.view());
        expect_near(out, expected, 2e-5, 1e-5, "draft_attention");
        cpu::Stream one_thread = stream(1);
        draft_attention(one_thread, g, q_norm.values, k_norm.values, q.view(), bk.view(), bv.view(), 8,
                        std::span(&cpu_block, 1), other.view());
        EXPECT_TRUE(same_bits(out, other));
      }
    }
  }
}

TEST_P(Draft, TopKIsExact) {
  for (const auto [cols, limit, k] : {std::array{16, 16, 16}, {100, 40, 16}, {5000, 4990, 16}, {20'000, 20'000, 1}}) {
    Matrix logits = random_matrix(6, cols, 9);
    float* row = logits.values.data();
    for (int i = 0; i < cols; ++i) row[cols + i] = std::round(row[cols + i]);             // many ties
    std::fill_n(row + 2 * std::size_t(cols), cols, 1.5f);                                 // all tied
    for (int i = 0; i < cols; i += 2) row[3 * std::size_t(cols) + i] = std::nanf("");     // every other is NaN
    std::fill_n(row + 4 * std::size_t(cols), cols - 1, -INFINITY);
    for (int i = 0; i < cols; ++i) row[5 * std::size_t(cols) + i] = static_cast<float>(i);  // ascending: the worst case
    if (limit < cols) row[limit] = 1e30f;
    std::vector<Token> tokens(6 * k), expected_tokens(6 * k);
    Matrix values(6, k), expected(6, k);
    ref::Stream reference;
    top_k(reference, logits.view(), limit, MatrixView<Token>(expected_tokens.data(), 6, k), expected.view());
    cpu::Stream cpu = stream(2);
    top_k(cpu, logits.view(), limit, MatrixView<Token>(tokens.data(), 6, k), values.view());
    EXPECT_EQ(tokens, expected_tokens);
    EXPECT_EQ(values.values, expected.values);
  }
}

SPLASH_EVERY_ISA(Draft);

}  // namespace
}  // namespace splash::ops::conformance
