#include "ops/linear/linear_cuda.h"

#include <fmt/format.h>

#include "ops/embed/embed_cuda.h"
#include "ops/norm/norm_cuda.h"
#include "ops/swiglu/swiglu_cuda.h"
#include "ops/testing_cuda.h"

namespace splash::ops {
namespace {

using namespace cuda::testing;

// y = W x in double, with x rounded to bf16 where the device rounds it.
std::vector<float> product(const pack::Weight& weight, const std::vector<float>& x, int tokens, bool rounded,
                           const std::vector<float>* onto = nullptr) {
  std::vector<float> y(std::size_t(tokens) * weight.rows), w(weight.cols);
  for (int n = 0; n < weight.rows; ++n) {
    for (int k = 0; k < weight.cols; ++k) w[k] = weight_at(weight, n, k);
    for (int r = 0; r < tokens; ++r) {
      double sum = 0;
      for (int k = 0; k < weight.cols; ++k) {
        const float value = x[std::size_t(r) * weight.cols + k];
        sum += double{w[k]} * (rounded ? to_float(to_bf16(value)) : value);
      }
      y[std::size_t(r) * weight.rows + n] =
          static_cast<float>(sum + (onto ? (*onto)[std::size_t(r) * weight.rows + n] : 0.0f));
    }
  }
  return y;
}

// silu(gate) * up.
std::vector<float> silu_times(std::vector<float> gate, const std::vector<float>& up) {
  for (std::size_t i = 0; i < gate.size(); ++i)
    gate[i] = static_cast<float>(gate[i] / (1 + std::exp(-double{gate[i]})) * up[i]);
  return gate;
}

struct Case {
  int rows, cols, tokens;
  bool accumulate;
};
class LinearCuda : public ::testing::TestWithParam<Case> {};

TEST_P(LinearCuda, AgreesWithDouble) {
  const Case c = GetParam();
  Numbers numbers(c.rows * 31 + c.cols + c.tokens);
  Memory memory;
  stream().reset();
  const HostWeight weight = random_q4(numbers, c.rows, c.cols);
  std::vector<float> x = numbers.normals(std::size_t(c.tokens) * c.cols);
  x[5] = 300;  // an outlier
  const std::vector<float> before = numbers.normals(std::size_t(c.tokens) * c.rows);
  const MatrixView<float> dx = memory.matrix(x, c.tokens, c.cols);
  const MatrixView<float> out =
      c.accumulate ? memory.matrix(before, c.tokens, c.rows) : memory.matrix(c.tokens, c.rows);
  const LinearTarget target{memory.weight(weight.view), out, c.accumulate};
  linear(stream(), dx, std::span(&target, 1));
  const std::vector<float> want = product(weight.view, x, c.tokens, true, c.accumulate ? &before : nullptr);
  // Up to 32 tokens only float32 sums round; beyond, each weight is rounded to bf16.
  expect_close("q4", download(out), want, c.tokens <= 32 ? 1e-5 : 3e-3);
  // The same launch again: counters were left at zero, bits repeat.
  if (!c.accumulate) {
    const std::vector<float> first = download(out);
    linear(stream(), dx, std::span(&target, 1));
    expect_same("repeated", download(out), first);
  }
}
INSTANTIATE_TEST_SUITE_P(
    Shapes, LinearCuda,
    ::testing::Values(Case{16, 64, 1, false}, Case{48, 256, 8, false}, Case{40, 320, 3, true},
                      Case{1024, 256, 8, false}, Case{5120, 1024, 8, true}, Case{2048, 5120, 8, false},
                      Case{256, 17408, 8, true}, Case{512, 1024, 16, false}, Case{520, 1024, 13, true},
                      Case{512, 2048, 32, false}, Case{512, 2048, 25, true}, Case{512, 1024, 33, false},
                      Case{512, 1024, 64, true}, Case{520, 1024, 100, false}, Case{512, 1024, 128, true},
                      Case{512, 1024, 250, false}, Case{640, 512, 512, true}, Case{300, 256, 700, false},
                      Case{13008, 256, 8, false}, Case{27216, 128, 5, true},  // several uneven row blocks
                      Case{13008, 64, 20, true}, Case{27216, 192, 16, false}, Case{512, 2048, 40, true},
                      Case{520, 1664, 64, false}, Case{512, 2048, 100, true},
                      Case{520, 1664, 300, false},  // K in parts
                      // More row blocks than multiprocessors (132): few left over, cut in parts of one, three and nine
                      // tiles that others finish; many, in two parts that their blocks finish; too many to cut; too
                      // many not to cut, by stream-K.
                      Case{34900, 640, 8, false}, Case{34816, 2560, 3, true}, Case{34816, 8192, 2, false},
                      Case{49152, 1024, 12, false}, Case{49152, 1280, 20, true}, Case{60000, 128, 8, true},
                      Case{60000, 2560, 4, false}));

// Four matrices that share x, of which two are narrow, as in a GDN layer.
TEST(LinearCuda, SharedInput) {
  Numbers numbers(11);
  Memory memory;
  for (const int tokens : {8, 20, 40, 300}) {
    stream().reset();
    const std::vector<float> x = numbers.normals(std::size_t(tokens) * 512);
    const int sizes[] = {640, 384, 6, 6};
    std::vector<HostWeight> weights;
    std::vector<LinearTarget> targets;
    for (const int rows : sizes) {
      weights.push_back(random_q4(numbers, rows, 512));
      targets.push_back({memory.weight(weights.back().view), memory.matrix(tokens, rows), false});
    }
    linear(stream(), memory.matrix(x, tokens, 512), targets);
    for (int i = 0; i < 4; ++i) {
      expect_close("shared", download(targets[i].out), product(weights[i].view, x, tokens, true),
                   tokens <= 32 ? 1e-5 : 3e-3);
    }
  }
}

// Fourteen parts of K, of 1 to 17 tiles each: every number of turns that a block's sides take, of whole groups of
// strips and of fewer, in row blocks of eight strips and (gated) of sixteen. Widths have the same bits.
TEST(LinearCuda, PartsOfEveryLength) {
  Numbers numbers(23);
  Memory memory;
  constexpr int rows = 272, gated_rows = 192, most = 20;
  for (int tiles = 1; tiles <= 17; ++tiles) {
    const int cols = tiles * 14 * 64;
    const HostWeight weight = random_q4(numbers, rows, cols), gate = random_q4(numbers, gated_rows, cols),
                     up = random_q4(numbers, gated_rows, cols);
    const pack::Weight device = memory.weight(weight.view), device_gate = memory.weight(gate.view),
                       device_up = memory.weight(up.view);
    const std::vector<float> x = numbers.normals(std::size_t{most} * cols, 1 / std::sqrt(static_cast<float>(cols)));
    const std::vector<float> want = product(weight.view, x, most, true);
    const std::vector<float> want_gated =
        silu_times(product(gate.view, x, most, true), product(up.view, x, most, true));
    std::vector<float> narrow, narrow_gated;
    for (const int tokens : {3, 12, most}) {
      stream().reset();
      const MatrixView<float> out = memory.matrix(tokens, rows), gated = memory.matrix(tokens, gated_rows);
      const std::vector<float> some(x.begin(), x.begin() + std::ptrdiff_t{tokens} * cols);
      const MatrixView<float> in = memory.matrix(some, tokens, cols);
      linear(stream(), in, device, out);
      linear_swiglu(stream(), in, device_gate, device_up, memory.matrix(tokens, gated_rows), gated);
      std::vector<float> got = download(out), got_gated = download(gated);
      expect_close("parts", got, {want.begin(), want.begin() + tokens * rows}, 1e-5);
      expect_close("gated parts", got_gated, {want_gated.begin(), want_gated.begin() + tokens * gated_rows}, 3e-4);
      got.resize(3 * rows), got_gated.resize(3 * gated_rows);
      if (narrow.empty()) narrow = got, narrow_gated = got_gated;
      if (stream().portable()) continue;
      expect_same("parts at other widths", got, narrow);
      expect_same("gated parts at other widths", got_gated, narrow_gated);
    }
  }
}

// A row's bits do not depend on the rows beside it, up to 32.
TEST(LinearCuda, RowsAreIndependent) {
  Numbers numbers(13);
  Memory memory;
  const HostWeight weight = random_q4(numbers, 2048, 1024);
  const pack::Weight device = memory.weight(weight.view);
  const std::vector<float> x = numbers.normals(32 * 1024);
  std::vector<float> alone;
  for (const int tokens : {1, 8, 9, 16, 24, 32}) {
    stream().reset();
    const MatrixView<float> out = memory.matrix(tokens, 2048);
    linear(stream(), memory.matrix({x.begin(), x.begin() + tokens * 1024}, tokens, 1024), device, out);
    std::vector<float> got = download(out);
    got.resize(2048);
    if (alone.empty()) alone = got;
    expect_same("row 0 in company", got, alone);
  }
}

TEST(LinearCuda, Strips) {
  Numbers numbers(17);
  Memory memory;
  stream().reset();
  for (const pack::Format format : {pack::Format::bf16, pack::Format::f32}) {
    pack::Weight weight{format, 40, 96, nullptr};
    std::vector<std::byte> bytes(static_cast<std::size_t>(weight.bytes()));
    for (std::size_t i = 0; i < 48 * 96; ++i) {
      const float value = numbers.normal();
      const bf16 low = to_bf16(value);
      if (format == pack::Format::bf16)
        std::memcpy(bytes.data() + i * 2, &low, 2);
      else
        std::memcpy(bytes.data() + i * 4, &value, 4);
    }
    weight.data = bytes.data();
    const std::vector<float> x = numbers.normals(19 * 96);
    const MatrixView<float> out = memory.matrix(19, 40);
    linear(stream(), memory.matrix(x, 19, 96), memory.weight(weight), out);
    expect_close("strips", download(out), product(weight, x, 19, false), 1e-6);
  }
}

// norm -> gate and up -> down through panels, against the same with every step rounded as the panels round. `at_once`:
// gate and up in one launch.
void expect_mlp_through_panels(int tokens, bool at_once) {
  Numbers numbers(19);
  Memory memory;
  stream().reset();
  const int hidden = 512, inner = 1152;
  const std::vector<float> x = numbers.normals(std::size_t(tokens) * hidden, 3), gain = numbers.normals(hidden);
  const HostWeight gate = random_q4(numbers, inner, hidden), up = random_q4(numbers, inner, hidden),
                   down = random_q4(numbers, hidden, inner);
  std::vector<float> normed(x.size());
  for (int r = 0; r < tokens; ++r) {
    double squares = 0;
    for (int i = 0; i < hidden; ++i) squares += double{x[r * hidden + i]} * x[r * hidden + i];
    for (int i = 0; i < hidden; ++i)
      normed[r * hidden + i] = static_cast<float>(x[r * hidden + i] / std::sqrt(squares / hidden + 1e-6) * gain[i]);
  }
  const std::vector<float> g =
      silu_times(product(gate.view, normed, tokens, true), product(up.view, normed, tokens, true));
  const std::vector<float> want = product(down.view, g, tokens, true, &x);

  const MatrixView<float> dx = memory.matrix(x, tokens, hidden), dn = memory.matrix(tokens, hidden),
                          inner1 = memory.matrix(tokens, inner), inner2 = memory.matrix(tokens, inner);
  const pack::Weight dgate = memory.weight(gate.view), dup = memory.weight(up.view), ddown = memory.weight(down.view);
  rms_norm(stream(), dx, memory.vector(gain), 1e-6f, dn);
  expect_close("rms_norm", download(dn), normed, 1e-6);
  expect_panel("rms_norm", dn);
  if (!at_once) {
    const LinearTarget inner_targets[] = {{dgate, inner1, false}, {dup, inner2, false}};
    linear(stream(), dn, inner_targets);
    swiglu(stream(), inner1, inner2, inner1);
  } else {
    linear_swiglu(stream(), dn, dgate, dup, inner2, inner1);
  }
  expect_close("swiglu", download(inner1), g, tokens <= 32 ? 3e-4 : 5e-3);
  expect_panel("swiglu", inner1);
  linear_add(stream(), inner1, ddown, dx);
  expect_close("mlp", download(dx), want, tokens <= 32 ? 2e-3 : 6e-3);
}
TEST(LinearCuda, MlpThroughPanels) {
  for (const int tokens : {8, 27, 33, 64, 130}) {
    for (const bool at_once : {false, true}) expect_mlp_through_panels(tokens, at_once);
  }
}

// Down projection, norm and gate/up without a norm kernel, against the same with one.
TEST(LinearCuda, FoldedNorm) {
  const FoldsNorms folds;
  Numbers numbers(61);
  for (const int tokens : {1, 8, 16, 30}) {
    Memory memory;
    stream().reset();
    const int hidden = 1040, inner = 640;
    const HostWeight down = random_q4(numbers, 1024, inner), next = random_q4(numbers, hidden, 1024),
                     up = random_q4(numbers, hidden, 1024);
    const std::vector<float> x = numbers.normals(std::size_t(tokens) * inner),
                             residual = numbers.normals(std::size_t(tokens) * 1024, 5), gain = numbers.normals(1024);
    const pack::Weight ddown = memory.weight(down.view), dnext = memory.weight(next.view), dup = memory.weight(up.view);
    const std::span<const float> dgain = memory.vector(gain);
    const MatrixView<float> dx = memory.matrix(x, tokens, inner);
    const MatrixView<float> r1 = memory.matrix(residual, tokens, 1024), n1 = memory.matrix(tokens, 1024),
                            y1 = memory.matrix(tokens, hidden), g1 = memory.matrix(tokens, hidden);
    const MatrixView<float> r2 = memory.matrix(residual, tokens, 1024), n2 = memory.matrix(tokens, 1024),
                            y2 = memory.matrix(tokens, hidden), g2 = memory.matrix(tokens, hidden);
    linear_add(stream(), dx, ddown, r1);
    rms_norm(stream(), r1, dgain, 1e-6f, n1);
    linear(stream(), n1, dnext, y1);
    linear_swiglu(stream(), n1, dnext, dup, memory.matrix(tokens, hidden), g1);
    linear_add_norm(stream(), dx, ddown, r2, dgain, 1e-6f, n2);
    linear(stream(), n2, dnext, y2);
    linear_swiglu(stream(), n2, dnext, dup, memory.matrix(tokens, hidden), g2);
    expect_same("residual", download(r2), download(r1));
    expect_close("linear after a folded norm", download(y2), download(y1), 3e-3);
    expect_close("swiglu after a folded norm", download(g2), download(g1), 5e-3);
  }
}

// From wide_pass_rows on: K in parts with the norm behind it, gate and up in one launch; the same bits as one by one,
// and a row's bits do not depend on how many there are.
TEST(LinearCuda, WidePasses) {
  const FoldsNorms folds;
  Numbers numbers(67);
  constexpr int width = 512, inner = 1664, after = 520, most = 600;
  const HostWeight down = random_q4(numbers, width, 2048), gate = random_q4(numbers, inner, width),
                   up = random_q4(numbers, inner, width), last = random_q4(numbers, after, inner);
  const std::vector<float> x = numbers.normals(std::size_t(most) * 2048),
                           residual = numbers.normals(std::size_t(most) * width, 5), gain = numbers.normals(width);
  std::vector<float> rows;
  for (const int tokens : {65, 128, 200, 256, 300, most}) {
    Memory memory;
    stream().reset();
    const pack::Weight ddown = memory.weight(down.view), dgate = memory.weight(gate.view), dup = memory.weight(up.view),
                       dlast = memory.weight(last.view);
    const std::span<const float> dgain = memory.vector(gain);
    const auto first = [&](const std::vector<float>& all, int cols) {
      return memory.matrix({all.begin(), all.begin() + std::ptrdiff_t{tokens} * cols}, tokens, cols);
    };
    const MatrixView<float> dx = first(x, 2048), r1 = first(residual, width), r2 = first(residual, width);
    const MatrixView<float> n1 = memory.matrix(tokens, width), n2 = memory.matrix(tokens, width),
                            g1 = memory.matrix(tokens, inner), u1 = memory.matrix(tokens, inner),
                            g2 = memory.matrix(tokens, inner), y1 = memory.matrix(tokens, after),
                            y2 = memory.matrix(tokens, after);
    linear_add(stream(), dx, ddown, r1);
    rms_norm(stream(), r1, dgain, 1e-6f, n1);
    const LinearTarget both[] = {{dgate, g1, false}, {dup, u1, false}};
    linear(stream(), n1, both);
    swiglu(stream(), g1, u1, g1);
    linear(stream(), g1, dlast, y1);
    linear_add_norm(stream(), dx, ddown, r2, dgain, 1e-6f, n2);
    linear_swiglu(stream(), n2, dgate, dup, u1, g2);
    linear(stream(), g2, dlast, y2);
    expect_same("residual", download(r2), download(r1));
    std::vector<float> got = download(y2);
    expect_same("linear behind fused passes", got, download(y1));
    got.resize(65 * after);
    if (rows.empty()) rows = got;
    expect_same("rows in wider passes", got, rows);
  }
}

// The portable kernels (decision 0015): a row's bits at any width are those it has alone, also where K has fewer groups
// than parts and parts of different lengths.
TEST(LinearCuda, PortableWidthsKeepBits) {
  if (!stream().portable()) GTEST_SKIP() << "Hopper's kernels add up in three ways (decision 0006)";
  Numbers numbers(71);
  constexpr int most = 300, after = 400, inner = 640;
  for (const int cols : {256, 832, 2048}) {
    const HostWeight first = random_q4(numbers, after, cols), gate = random_q4(numbers, inner, cols),
                     up = random_q4(numbers, inner, cols);
    const std::vector<float> x = numbers.normals(std::size_t{most} * cols),
                             before = numbers.normals(std::size_t{most} * after);
    std::vector<float> want_sums, want_gated;
    for (const int tokens : {most, 1, 7, 16, 31, 33, 64, 65, 129}) {
      Memory memory;
      stream().reset();
      const MatrixView<float> dx = memory.matrix({x.begin(), x.begin() + std::ptrdiff_t{tokens} * cols}, tokens, cols),
                              sums = memory.matrix({before.begin(), before.begin() + std::ptrdiff_t{tokens} * after},
                                                   tokens, after),
                              gated = memory.matrix(tokens, inner);
      linear_add(stream(), dx, memory.weight(first.view), sums);
      linear_swiglu(stream(), dx, memory.weight(gate.view), memory.weight(up.view), memory.matrix(tokens, inner), gated);
      const std::vector<float> got_sums = download(sums), got_gated = download(gated);
      if (want_sums.empty()) want_sums = got_sums, want_gated = got_gated;
      const auto head = [&](const std::vector<float>& all, int width) {
        return std::vector<float>(all.begin(), all.begin() + std::ptrdiff_t{tokens} * width);
      };
      expect_same("sums", got_sums, head(want_sums, after));
      expect_same("gated", got_gated, head(want_gated, inner));
    }
  }
}

// As many row blocks as fill the device without being split, and one, which is: a row's bits are those it has in a pass
// of eight.
TEST(LinearCuda, PortableRowBlocksSplitOrNot) {
  if (!stream().portable()) GTEST_SKIP() << "Hopper's kernels add up in three ways (decision 0006)";
  Numbers numbers(79);
  constexpr int cols = 640, most = 64, rows_of_block = 256;
  const int filling = 2 * stream().facts().multiprocessors;
  for (const int row_blocks : {filling, 1}) {
    const int after = row_blocks * rows_of_block - 24;
    const HostWeight weight = random_q4(numbers, after, cols);
    const std::vector<float> x = numbers.normals(std::size_t{most} * cols);
    std::vector<std::vector<float>> alone;
    Memory memory;
    const pack::Weight there = memory.weight(weight.view);
    for (const int tokens : {8, 17, 32, 33, most}) {
      stream().reset();
      const MatrixView<float> dx = memory.matrix({x.begin(), x.begin() + std::ptrdiff_t{tokens} * cols}, tokens, cols),
                              out = memory.matrix(tokens, after);
      linear(stream(), dx, there, out);
      const std::vector<float> got = download(out);
      if (tokens == 8) {
        for (int row = 0; row < tokens; ++row)
          alone.emplace_back(got.begin() + std::ptrdiff_t{row} * after, got.begin() + std::ptrdiff_t{row + 1} * after);
      }
      for (int row = 0; row < 8; ++row) {
        expect_same("row", {got.begin() + std::ptrdiff_t{row} * after, got.begin() + std::ptrdiff_t{row + 1} * after},
                    alone[row]);
      }
      if (tokens < most) continue;
      // The last rows too: those of eight of them by themselves.
      stream().reset();
      const MatrixView<float> last = memory.matrix({x.end() - std::ptrdiff_t{8} * cols, x.end()}, 8, cols),
                              few = memory.matrix(8, after);
      linear(stream(), last, there, few);
      expect_same("last rows", {got.end() - std::ptrdiff_t{8} * after, got.end()}, download(few));
    }
  }
}

// Gate and up of more row blocks than there are multiprocessors: right, and a row's bits are those it has alone.
TEST(LinearCuda, ManyGatedRows) {
  Numbers numbers(73);
  constexpr int inner = 17408 + 128, most = 32;
  for (const int cols : {256, 1152}) {
    const HostWeight gate = random_q4(numbers, inner, cols), up = random_q4(numbers, inner, cols);
    const std::vector<float> x = numbers.normals(std::size_t{most} * cols);
    const std::vector<float> want = silu_times(product(gate.view, x, most, true), product(up.view, x, most, true));
    std::vector<float> bits;
    Memory memory;
    const pack::Weight dgate = memory.weight(gate.view), dup = memory.weight(up.view);
    for (const int tokens : {most, 1, 8, 13, 24, most, 5}) {
      stream().reset();
      const MatrixView<float> dx = memory.matrix({x.begin(), x.begin() + std::ptrdiff_t{tokens} * cols}, tokens, cols),
                              out = memory.matrix(tokens, inner);
      linear_swiglu(stream(), dx, dgate, dup, memory.matrix(tokens, inner), out);
      const std::vector<float> got = download(out);
      if (bits.empty()) {
        bits = got;
        expect_close("gated", got, want, 3e-4);
      }
      expect_same("gated in company", got, {bits.begin(), bits.begin() + std::ptrdiff_t{tokens} * inner});
      expect_panel("gated", out);
    }
  }
}

// The linears of a layer at every width, again and again: a row's bits are those it has alone.
TEST(LinearCuda, WidthsKeepBits) {
  const FoldsNorms folds;
  Numbers numbers(67);
  const int hidden = 1280, mixer = 1536, inner = 10240;
  Memory memory;
  const auto weight = [&](int rows, int cols) { return memory.weight(random_q4(numbers, rows, cols).view); };
  const pack::Weight out = weight(hidden, mixer), gate = weight(inner, hidden), up = weight(inner, hidden),
                     down = weight(hidden, inner), qkv = weight(2560, hidden), b = weight(48, hidden),
                     a = weight(48, hidden);
  const std::span<const float> gain = memory.vector(numbers.normals(hidden));
  const std::vector<float> mixed = numbers.normals(std::size_t{32} * mixer),
                           residual = numbers.normals(std::size_t{32} * hidden, 5);
  std::vector<std::vector<float>> want;  // of 32 rows: x, qkv, b, a
  for (const int tokens : {32, 8, 16, 1, 24, 32, 8}) {
    for (int round = 0; round < 12; ++round) {
      stream().reset();
      const auto rows_of = [&](const std::vector<float>& values, int cols) {
        return memory.matrix({values.begin(), values.begin() + std::ptrdiff_t{tokens} * cols}, tokens, cols);
      };
      const MatrixView<float> dm = rows_of(mixed, mixer), x = rows_of(residual, hidden),
                              normed = memory.matrix(tokens, hidden), gated = memory.matrix(tokens, inner),
                              y = memory.matrix(tokens, 2560), yb = memory.matrix(tokens, 48),
                              ya = memory.matrix(tokens, 48);
      linear_add_norm(stream(), dm, out, x, gain, 1e-6f, normed);
      linear_swiglu(stream(), normed, gate, up, memory.matrix(tokens, inner), gated);
      linear_add_norm(stream(), gated, down, x, gain, 1e-6f, normed);
      const LinearTarget targets[] = {{qkv, y, false}, {b, yb, false}, {a, ya, false}};
      linear(stream(), normed, targets);
      const std::vector<std::vector<float>> got = {download(x), download(y), download(yb), download(ya)};
      if (want.empty()) {
        want = got;
        continue;
      }
      for (std::size_t i = 0; i < got.size(); ++i) {
        const std::vector<float> same(want[i].begin(), want[i].begin() + static_cast<std::ptrdiff_t>(got[i].size()));
        expect_same(fmt::format("matrix {} of {} rows", i, tokens).c_str(), got[i], same);
      }
    }
  }
}

// The device's own order of tiles against the pure function's: groups that are whole and one that is not, in one go and
// in several.
TEST(LinearCuda, ArrangesTiles) {
  Numbers numbers(71);
  Memory memory;
  for (const int rows : {16, 80, 128, 16 * 21, 16 * 24}) {
    const HostWeight weight = random_q4(numbers, rows, 640);
    const Q4Order order{rows / 16, 10};
    std::vector<std::byte> want(weight.bytes.size());
    to_device_order(order, weight.bytes.data(), want.data());
    for (const std::size_t groups : {1, 2, 3}) {
      std::byte* tiles = memory.copy(weight.bytes);
      const std::size_t room = groups * Q4Order::group * 10 * Q4Tile::bytes + 100;
      arrange_q4(stream(), order, tiles, {memory.empty<std::byte>(room), room});
      expect_same("tiles", download(tiles, want.size()), want);
    }
  }
}

TEST(EmbedCuda, SameBits) {
  Numbers numbers(23);
  Memory memory;
  stream().reset();
  const HostWeight table = random_q4(numbers, 100, 320);
  const std::vector<Token> tokens = {0, 99, 17, 16, 15, 63};
  const MatrixView<float> out = memory.matrix(6, 320);
  embed(stream(), memory.weight(table.view), tokens, out);
  std::vector<float> want;
  for (const Token token : tokens) {
    for (int k = 0; k < 320; ++k) want.push_back(weight_at(table.view, token, k));
  }
  expect_same("embed", download(out), want);
}

}  // namespace
}  // namespace splash::ops
