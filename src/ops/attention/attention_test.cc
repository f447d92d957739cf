#include "ops/attention/attention.h"

#include <algorithm>
#include <numeric>

#include "ops/conformance.h"

namespace splash::ops::conformance {
namespace {

struct Pool {
  std::vector<std::byte> memory;
  KvPool view;
  Pool(KvFormat format, const AttentionGeometry& geometry, int pages) {
    view.geometry = {format, 2, geometry.kv_heads, geometry.head_dim};
    const auto bytes = static_cast<std::size_t>(view.geometry.page_bytes()) * pages;
    memory.resize(bytes + 64, std::byte{0xff});  // NaN scales: what a row must never read
    view.base = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) & ~std::uintptr_t{63});
  }
};

struct Inputs {
  AttentionGeometry geometry;
  Matrix q_gate, k, v, q_norm, k_norm;
  Inputs(const AttentionGeometry& g, int rows)
      : geometry(g), q_gate(random_matrix(rows, g.query_heads * 2 * g.head_dim, 1)),
        k(random_matrix(rows, g.kv_heads * g.head_dim, 2)), v(random_matrix(rows, g.kv_heads * g.head_dim, 3)),
        q_norm(random_matrix(1, g.head_dim, 4)), k_norm(random_matrix(1, g.head_dim, 5)) {}
  Matrix out() const { return Matrix(q_gate.rows, geometry.query_heads * geometry.head_dim); }
};

template <class Stream>
void run(Stream& stream, const Inputs& in, std::span<const Segment> segments, const KvPool& pool, Matrix& out) {
  attention(stream, in.geometry, {in.q_norm.values, in.k_norm.values}, {in.q_gate.view(), in.k.view(), in.v.view()},
            segments, pool, 1, out.view());
}

std::vector<PageId> shuffled_pages(int count) {
  std::vector<PageId> pages(count);
  for (int i = 0; i < count; ++i) pages[i] = (i * 7 + 3) % count;
  return pages;
}

AttentionGeometry geometry_of(int query_heads, int kv_heads, int head_dim) {
  AttentionGeometry geometry;
  geometry.query_heads = query_heads;
  geometry.kv_heads = kv_heads;
  geometry.head_dim = head_dim;
  geometry.rotary_dim = head_dim == 64 ? 64 : head_dim / 4;
  return geometry;
}
const AttentionGeometry geometries[] = {geometry_of(2, 2, 64), geometry_of(4, 2, 128), geometry_of(8, 2, 256),
                                        geometry_of(6, 1, 256)};

// Rounds every head of every token in ref's float pages to int8 codes and back, then attends in double over them.
Matrix attend_rounded(const Inputs& in, Pool& reference, std::span<const PageId> pages) {
  const AttentionGeometry& g = in.geometry;
  const int d = g.head_dim, width = g.kv_heads * d;
  const auto row_of = [&](int position, bool value) {
    auto* base = reinterpret_cast<float*>(reference.view.at(pages[position / 32], 1));
    return base + (value ? 32 * width : 0) + position % 32 * width;
  };
  const auto round_head = [&](float* x) {
    float largest = 0;
    for (int i = 0; i < d; ++i) largest = std::max(largest, std::abs(x[i]));
    for (int i = 0; i < d; ++i) x[i] = largest > 0 ? std::nearbyint(x[i] / (largest / 127.0f)) * (largest / 127.0f) : 0.0f;
  };
  // Queries, normed and rotated, come from ref's own attention: run q as if it were k.
  Inputs as_keys = in;
  as_keys.geometry.kv_heads = g.query_heads;
  as_keys.k = Matrix(in.k.rows, g.query_heads * d);
  as_keys.v = Matrix(in.k.rows, g.query_heads * d);
  as_keys.k_norm = in.q_norm;
  for (int r = 0; r < in.k.rows; ++r) {
    for (int h = 0; h < g.query_heads; ++h) {
      std::copy_n(in.q_gate.view().row(r) + 2 * h * d, d, as_keys.k.view().row(r) + h * d);
    }
  }
  Pool queries(KvFormat::f32, as_keys.geometry, static_cast<int>(pages.size()));
  Segment segment{0, 0, in.k.rows, 0, pages};
  Matrix ignored = as_keys.out();
  ref::Stream stream;
  run(stream, as_keys, std::span(&segment, 1), queries.view, ignored);

  for (int p = 0; p < in.k.rows; ++p) {
    for (int h = 0; h < g.kv_heads; ++h) round_head(row_of(p, false) + h * d), round_head(row_of(p, true) + h * d);
  }
  Matrix out = in.out();
  for (int r = 0; r < in.k.rows; ++r) {
    for (int h = 0; h < g.query_heads; ++h) {
      const float* q = reinterpret_cast<float*>(queries.view.at(pages[r / 32], 1)) + (r % 32 * g.query_heads + h) * d;
      const int kv = h / (g.query_heads / g.kv_heads) * d;
      std::vector<double> p(r + 1), sum(d);
      for (int j = 0; j <= r; ++j) {
        p[j] = std::inner_product(q, q + d, row_of(j, false) + kv, 0.0) / std::sqrt(double(d));
      }
      const double top = *std::max_element(p.begin(), p.end());
      double total = 0;
      for (int j = 0; j <= r; ++j) {
        total += p[j] = std::exp(p[j] - top);
        for (int i = 0; i < d; ++i) sum[i] += p[j] * row_of(j, true)[kv + i];
      }
      for (int i = 0; i < d; ++i) {
        const double gate = 1 / (1 + std::exp(-double{in.q_gate.view().row(r)[(2 * h + 1) * d + i]}));
        out.view().row(r)[h * d + i] = static_cast<float>(sum[i] / total * gate);
      }
    }
  }
  return out;
}

class Attention : public EveryIsa {};

TEST_P(Attention, MatchesRefWithinTheRoundingOfThePages) {
  for (const AttentionGeometry& geometry : geometries) {
    const Inputs in(geometry, 70);
    const std::vector<PageId> pages = shuffled_pages(4);
    Pool ref_pool(KvFormat::f32, geometry, 4), cpu_pool(KvFormat::int8, geometry, 4);
    const Segment segment{0, 0, 70, 0, pages};
    Matrix expected = in.out(), out = in.out();
    ref::Stream reference;
    cpu::Stream cpu = stream(2);
    run(reference, in, std::span(&segment, 1), ref_pool.view, expected);
    run(cpu, in, std::span(&segment, 1), cpu_pool.view, out);
    expect_near(out, expected, 0.06, 0.02, "against float pages");
    expect_near(out, attend_rounded(in, ref_pool, pages), 2e-3, 1e-3, "against rounded pages");
    double error = 0, size = 0;
    for (std::size_t i = 0; i < out.values.size(); ++i) {
      error += std::pow(out.values[i] - expected.values[i], 2), size += std::pow(expected.values[i], 2);
    }
    EXPECT_LT(std::sqrt(error / size), 0.015);
  }
}

TEST_P(Attention, CutsThreadsAndCompanyLeaveNoTrace) {
  for (const AttentionGeometry& geometry : geometries) {
    const Inputs in(geometry, 100);
    const std::vector<PageId> pages = shuffled_pages(8);
    const std::span<const PageId> mine = std::span(pages).first(4), others = std::span(pages).last(4);
    Matrix whole = in.out();
    {
      Pool pool(KvFormat::int8, geometry, 8);
      cpu::Stream cpu = stream(1);
      const Segment segment{0, 0, 100, 0, mine};
      run(cpu, in, std::span(&segment, 1), pool.view, whole);
    }
    for (int threads : {1, 2, 3}) {
      Pool pool(KvFormat::int8, geometry, 8);
      cpu::Stream cpu = stream(threads);
      Matrix out = in.out(), ignored = in.out();
      int at = 0;
      for (int rows : {1, 7, 23, 1, 1, 31, 36}) {  // cuts at 1, 8, 31, 32, 33, 64, 100
        const Segment alone{0, at, rows, at, mine};
        run(cpu, in, std::span(&alone, 1), pool.view, out);
        at += rows;
      }
      EXPECT_TRUE(same_bits(out, whole)) << threads << " threads";
      const Segment both[] = {{1, 0, 50, 0, others}, {0, 50, 50, 50, mine}};
      run(cpu, in, both, pool.view, ignored);
      EXPECT_TRUE(same_bits(&ignored.values[std::size_t{50} * out.cols], &whole.values[std::size_t{50} * out.cols],
                            std::size_t{50} * out.cols));
    }
  }
}

TEST_P(Attention, ZerosOutliersAndNan) {
  Inputs in(geometries[2], 40);
  const int cols = in.k.cols;
  std::fill_n(in.k.values.begin(), cols, 0.0f);           // a zero key
  std::fill_n(in.v.values.begin() + cols, cols, 0.0f);    // a zero value
  in.k.values[std::size_t{3} * cols + 9] = 1e4f;
  in.v.values[std::size_t{4} * cols + 9] = 1e4f;
  const std::vector<PageId> pages = shuffled_pages(2);
  const Segment segment{0, 0, 40, 0, pages};
  Pool pool(KvFormat::int8, in.geometry, 2);
  cpu::Stream cpu = stream();
  Matrix out = in.out();
  run(cpu, in, std::span(&segment, 1), pool.view, out);
  for (float value : out.values) ASSERT_TRUE(std::isfinite(value));
  const Matrix clean = out;
  in.q_gate.values[std::size_t{20} * in.q_gate.cols + 5] = std::nanf("");  // query of row 20, head 0
  run(cpu, in, std::span(&segment, 1), pool.view, out);
  for (int r = 0; r < 40; ++r) {
    EXPECT_EQ(std::isnan(out.view().row(r)[0]), r == 20) << r;
    if (r != 20) {
      EXPECT_TRUE(same_bits(out.view().row(r), &clean.values[std::size_t(r) * out.cols], out.cols));
    }
  }
}

SPLASH_EVERY_ISA(Attention);

}  // namespace
}  // namespace splash::ops::conformance
