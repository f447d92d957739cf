#include "ops/linear/linear.h"

#include <algorithm>
#include <array>

#include "ops/conformance.h"
#include "ops/linear/q4_split.h"
#include "ops/linear/q4_tile.h"

namespace splash::ops::conformance {
namespace {

using pack::Format;

class Linear : public EveryIsa {
 protected:
  Matrix run(const Matrix& x, const pack::Weight& weight, int threads = 1, int planes = 1) {
    cpu::Stream cpu = stream(threads);
    Matrix out(x.rows, weight.rows, -7.0f);
    const LinearTarget target{weight, out.view()};
    if (planes == 2) {
      linear(cpu, Fine{x.view()}, std::span(&target, 1));
    } else {
      linear(cpu, x.view(), std::span(&target, 1));
    }
    return out;
  }
};

// The formula of linear.h in double, and the size of its terms.
struct Exact {
  Matrix value, magnitude;
};
Exact exact_q4(const Matrix& x, const pack::Weight& weight, int planes) {
  Exact exact{Matrix(x.rows, weight.rows), Matrix(x.rows, weight.rows)};
  for (int r = 0; r < x.rows; ++r) {
    for (int n = 0; n < weight.rows; ++n) {
      double sum = 0, size = 0;
      for (int group = 0; group < weight.cols / 64; ++group) {
        const float* values = x.values.data() + std::size_t(r) * x.cols + group * 64;
        float largest = 0;
        double total = 0, dot = 0;
        for (int k = 0; k < 64; ++k) largest = std::max(largest, std::abs(values[k]));
        const float step = largest / 127.0f;
        const std::byte* tile = weight.data + n / 16 * weight.strip_bytes() + group * pack::tile_bytes;
        const double scale = to_float(reinterpret_cast<const bf16*>(tile + pack::tile_scales_offset)[n % 16]);
        const double bias = to_float(reinterpret_cast<const bf16*>(tile + pack::tile_biases_offset)[n % 16]);
        for (int k = 0; k < 64; ++k) {
          const auto byte = static_cast<unsigned>(tile[k / 8 * 64 + n % 16 * 4 + k % 4]);
          const unsigned code = k % 8 < 4 ? byte & 15u : byte >> 4;
          const float ratio = step > 0 ? values[k] / step : 0.0f, first = std::nearbyint(ratio);
          const double second = std::clamp(std::nearbyint((ratio - first) * 256.0f), -127.0f, 127.0f);
          const double rounded = planes == 2 ? first + second / 256 : first;
          dot += code * rounded;
          total += step * rounded;
        }
        sum += scale * step * dot + bias * total;
        size += std::abs(scale * step * dot) + std::abs(bias) * 64 * largest;
      }
      exact.value.values[std::size_t(r) * weight.rows + n] = static_cast<float>(sum);
      exact.magnitude.values[std::size_t(r) * weight.rows + n] = static_cast<float>(size);
    }
  }
  return exact;
}

TEST_P(Linear, Q4FollowsTheFormula) {
  for (const auto [rows, n, k] : {std::array{1, 16, 64}, {3, 48, 256}, {5, 6, 1024}, {9, 100, 5120}}) {
    const OwnWeight own = make_weight(Format::q4, n, k, 11);
    Matrix x = random_matrix(rows, k, 12);
    x.values[5] = 1e4f;                                            // one outlier
    for (int i = 0; i < 64; ++i) x.values[x.values.size() - 1 - i] *= 1e-30f;  // a tiny group
    if (rows > 2) std::fill_n(x.values.begin() + k, 64, 0.0f);     // a group of zeros
    if (rows > 4) std::fill_n(x.values.begin() + 2 * k, 64, 1e-41f);  // denormals
    for (const int planes : {1, 2}) {
      const Matrix out = run(x, own.weight, 1, planes);
      const Exact exact = exact_q4(x, own.weight, planes);
      for (std::size_t i = 0; i < out.values.size(); ++i) {
        ASSERT_NEAR(out.values[i], exact.value.values[i], 2e-6 * exact.magnitude.values[i] + 1e-30)
            << rows << " " << n << " " << k << ", planes " << planes;
      }
    }
  }
}

TEST_P(Linear, Q4IsCloseToFloat) {
  const OwnWeight own = make_weight(Format::q4, 64, 2048, 21);
  const Matrix x = random_matrix(8, 2048, 22);
  ref::Stream reference;
  Matrix expected(8, 64);
  linear(reference, x.view(), own.weight, expected.view());
  for (const int planes : {1, 2}) {
    const Matrix out = run(x, own.weight, 1, planes);
    double error = 0, size = 0;
    for (std::size_t i = 0; i < out.values.size(); ++i) {
      error += std::pow(double{out.values[i]} - expected.values[i], 2);
      size += std::pow(double{expected.values[i]}, 2);
    }
    EXPECT_LT(std::sqrt(error / size), planes == 2 ? 5e-5 : 0.02);  // one plane: about 0.6 % of the terms' size
  }
}

TEST_P(Linear, WideFormatsMatchRef) {
  for (const Format format : {Format::bf16, Format::f32}) {
    for (const auto [rows, n, k] : {std::array{1, 16, 64}, {4, 48, 100}, {13, 6, 1024}, {30, 40, 300}}) {
      const OwnWeight own = make_weight(format, n, k, 31);
      const Matrix x = random_matrix(rows, k, 32);
      ref::Stream reference;
      Matrix expected(rows, n);
      linear(reference, x.view(), own.weight, expected.view());
      expect_near(run(x, own.weight), expected, 4e-6 * std::sqrt(k) , 1e-5, "wide");
    }
  }
}

TEST_P(Linear, ARowHasTheSameBitsInAnyCompany) {
  for (const auto& [format, planes] : {std::pair{Format::q4, 1}, {Format::q4, 2}, {Format::bf16, 1}, {Format::f32, 1}}) {
    const OwnWeight own = make_weight(format, 40, 320, 41);
    const Matrix all = random_matrix(70, 320, 42);
    Matrix alone(70, 40);
    for (int r = 0; r < 70; ++r) {
      Matrix x(1, 320);
      std::copy_n(all.values.begin() + r * 320, 320, x.values.begin());
      const Matrix out = run(x, own.weight, 1, planes);
      std::copy_n(out.values.begin(), 40, alone.values.begin() + r * 40);
    }
    for (int rows = 1; rows <= 70; ++rows) {
      for (int threads : {1, 2, 3}) {
        if (threads > 1 && rows % 9 != 0) continue;
        Matrix x(rows, 320);
        std::copy_n(all.values.begin(), x.values.size(), x.values.begin());
        const Matrix out = run(x, own.weight, threads, planes);
        ASSERT_TRUE(same_bits(out.values.data(), alone.values.data(), out.values.size()))
            << rows << " rows, " << threads << " threads, " << planes << " planes";
      }
    }
  }
}

// The largest integers of two planes: every code 15, every input at its group's bound or half a step from it.
TEST_P(Linear, TwoPlanesDoNotOverflow) {
  const OwnWeight own = make_weight(Format::q4, 16, 128, 43);
  auto* tiles = const_cast<std::byte*>(own.weight.data);
  for (std::int64_t tile = 0; tile < own.weight.bytes(); tile += pack::tile_bytes) {
    std::fill_n(tiles + tile, pack::tile_scales_offset, std::byte{0xff});
  }
  for (const float value : {1.0f, -1.0f, 126.5f / 127, -126.5f / 127}) {
    Matrix x(3, 128, value);
    for (int at = 0; at < 3 * 128; at += 64) x.values[at] = value < 0 ? -1.0f : 1.0f;
    const Exact exact = exact_q4(x, own.weight, 2);
    const Matrix out = run(x, own.weight, 1, 2);
    for (std::size_t i = 0; i < out.values.size(); ++i) {
      ASSERT_NEAR(out.values[i], exact.value.values[i], 2e-6 * exact.magnitude.values[i]) << value;
    }
  }
}

TEST_P(Linear, SeveralTargetsAndResiduals) {
  const OwnWeight a = make_weight(Format::q4, 48, 128, 51), b = make_weight(Format::bf16, 6, 128, 52),
                  c = make_weight(Format::q4, 33, 128, 53);
  const Matrix x = random_matrix(5, 128, 54), before = random_matrix(5, 33, 55);
  const Matrix out_a = run(x, a.weight), out_b = run(x, b.weight), out_c = run(x, c.weight);
  for (int threads : {1, 2, 3}) {
    cpu::Stream cpu = stream(threads);
    Matrix first(5, 48), second(5, 6), third = before;
    const LinearTarget targets[] = {{a.weight, first.view(), false}, {b.weight, second.view(), false},
                                    {c.weight, third.view(), true}};
    linear(cpu, x.view(), targets);
    EXPECT_TRUE(same_bits(first, out_a));
    EXPECT_TRUE(same_bits(second, out_b));
    for (std::size_t i = 0; i < third.values.size(); ++i) ASSERT_EQ(third.values[i], before.values[i] + out_c.values[i]);
  }
}

TEST_P(Linear, NanAndInfinityStayInTheirRow) {
  const OwnWeight own = make_weight(Format::q4, 32, 128, 61);
  const Matrix x = random_matrix(7, 128, 62);
  Matrix spoiled = x;
  spoiled.values[2 * 128 + 77] = std::nanf("");
  spoiled.values[4 * 128 + 3] = INFINITY;
  for (const int planes : {1, 2}) {
    const Matrix clean = run(x, own.weight, 1, planes), out = run(spoiled, own.weight, 1, planes);
    for (int r = 0; r < 7; ++r) {
      if (r == 2 || r == 4) {
        EXPECT_FALSE(std::isfinite(out.values[r * 32]) || std::isfinite(out.values[r * 32 + 31])) << r;
      } else {
        EXPECT_TRUE(same_bits(&out.values[r * 32], &clean.values[r * 32], 32)) << r;
      }
    }
  }
}

SPLASH_EVERY_ISA(Linear);

// The order of a matrix's tiles: every place once, and what a copy of a group's k brings lies in one piece.
TEST(Q4Tile, GroupsOfStrips) {
  for (const int strips : {1, 5, 8, 9, 16, 23}) {
    const Q4Order order{strips, 7};
    std::vector<int> seen(static_cast<std::size_t>(strips) * 7);
    for (int strip = 0; strip < strips; ++strip) {
      for (int k = 0; k < 7; ++k) ++seen.at(static_cast<std::size_t>(order.at(strip, k)));
    }
    EXPECT_EQ(std::ranges::count(seen, 1), std::ssize(seen)) << strips;
    for (int strip = 0; strip < strips; ++strip) {
      const int group = strip / Q4Order::group, in_group = strip % Q4Order::group;
      EXPECT_EQ(order.group_strips(group), std::min(Q4Order::group, strips - group * Q4Order::group));
      for (int k = 0; k < 7; ++k) {
        EXPECT_EQ(order.at(strip, k), order.group_begin(group) + k * order.group_strips(group) + in_group);
      }
    }
  }
  // Against the pack, tile by tile.
  const OwnWeight own = make_weight(Format::q4, 16 * 11, 192, 64);
  const Q4Order order{11, 3};
  std::vector<std::byte> device(static_cast<std::size_t>(own.weight.bytes())), tile(Q4Tile::bytes);
  to_device_order(order, own.weight.data, device.data());
  for (int strip = 0; strip < 11; ++strip) {
    for (int k = 0; k < 3; ++k) {
      to_device_tile(own.weight.data + (strip * 3 + k) * Q4Tile::bytes, tile.data());
      EXPECT_EQ(std::memcmp(&device[static_cast<std::size_t>(order.at(strip, k) * Q4Tile::bytes)], tile.data(), tile.size()), 0);
    }
  }
}

// The order of a tile in device memory: every byte once, there and back, and what a lane of the kernels expects.
TEST(Q4Tile, ThereAndBack) {
  const OwnWeight own = make_weight(Format::q4, 16, 64, 63);
  const std::byte* tile = own.weight.data;
  std::array<std::byte, Q4Tile::bytes> device, back;
  to_device_tile(tile, device.data());
  from_device_tile(device.data(), back.data());
  EXPECT_EQ(std::memcmp(back.data(), tile, back.size()), 0);
  std::array<int, Q4Tile::halves> seen{};
  for (int half = 0; half < Q4Tile::halves; ++half) ++seen[static_cast<std::size_t>(Q4Tile::source(half))];
  EXPECT_EQ(std::ranges::count(seen, 1), Q4Tile::halves);
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int word = 0; word < 4; ++word) {
      const int line = word / 2 * 4 + t, row = g + word % 2 * 8;
      EXPECT_EQ(std::memcmp(&device[static_cast<std::size_t>(lane * 16 + word * 4)], tile + line * 64 + row * 4, 4), 0);
    }
    for (int which = 0; which < 4; ++which) {  // scales of rows g and g + 8, then biases
      const int offset = (which < 2 ? pack::tile_scales_offset : pack::tile_biases_offset) + (g + which % 2 * 8) * 2;
      EXPECT_EQ(std::memcmp(&device[static_cast<std::size_t>(512 + g * 8 + which * 2)], tile + offset, 2), 0);
    }
  }
}

// Every tile belongs to one block, cuts are where plain division puts them, and whoever finishes a common row block is
// clear: launches of the models' shapes and odd ones.
TEST(Q4Split, DealsEveryTileOnce) {
  struct Case {
    int row_blocks, tiles_k, most_blocks, most_tiles;  // most_tiles: of a block
  };
  for (const auto& [row_blocks, tiles_k, most_blocks, most_tiles] :
       {Case{1, 1, 132, 1}, Case{1, 272, 132, 3}, Case{20, 96, 132, 16}, Case{20, 272, 132, 46}, Case{136, 80, 132, 86},
        Case{65, 80, 132, 40}, Case{56, 80, 132, 40}, Case{72, 40, 132, 22}, Case{970, 80, 132, 588},
        Case{970, 1, 132, 8}, Case{133, 1, 132, 2}, Case{232, 100, 132, 176}, Case{232, 10, 132, 20},
        Case{264, 80, 132, 160}, Case{3, 7, 5, 7}, Case{7, 3, 1, 21}, Case{40, 96, 148, 32}}) {
    SCOPED_TRACE(testing::Message() << row_blocks << " row blocks of " << tiles_k << " tiles, " << most_blocks);
    ASSERT_TRUE(Q4Split::fits(row_blocks, tiles_k, most_blocks));
    const Q4Split split(row_blocks, tiles_k, most_blocks);
    ASSERT_LE(split.blocks, static_cast<unsigned>(most_blocks));
    ASSERT_LE(split.sharing, split.blocks);
    const long long units = 1LL * static_cast<int>(split.common) * tiles_k;
    std::vector<int> owners(static_cast<std::size_t>(row_blocks) * tiles_k);
    int most = 0;
    for (unsigned block = 0; block < split.blocks; ++block) {
      const int begin = split.begin(block), end = split.begin(block + 1);
      if (split.sharing > 0) {
        EXPECT_EQ(begin, units * std::min(block, split.sharing) / split.sharing);
      }
      for (int tile = begin; tile < end; ++tile) {
        ASSERT_EQ(split.row_block(tile), tile / tiles_k);
        ++owners[static_cast<std::size_t>(tile)];
      }
      for (unsigned i = 0; i < split.whole; ++i) {
        const auto row_block = static_cast<std::size_t>(split.own_row_block(block)) + i * split.blocks;
        for (int k = 0; k < tiles_k; ++k) ++owners[row_block * tiles_k + k];
      }
      const int tiles = end - begin + static_cast<int>(split.whole) * tiles_k;
      EXPECT_GT(tiles, 0);
      most = std::max(most, tiles);
    }
    EXPECT_EQ(most, most_tiles);
    EXPECT_EQ(owners, std::vector<int>(owners.size(), 1));
    if (split.sharers > 0) {
      ASSERT_EQ(split.sharers * split.common, split.sharing);
      for (unsigned row_block = 0; row_block <= split.common; ++row_block)
        EXPECT_EQ(split.begin(row_block * split.sharers), static_cast<int>(row_block) * tiles_k);
    }
    if (split.finishers > 0) {
      EXPECT_GT(split.sharers, 1U);  // else the row block is its block's own, which nobody waits for
      EXPECT_LE(split.sharing + split.finishers * split.common, split.blocks);
    }
  }
  EXPECT_FALSE(Q4Split::fits(1 << 20, 1 << 10, 132));
  EXPECT_FALSE(Q4Split::fits(20, 96, 2000));
}

// The same for GPUs of other sizes, by what the deal promises: ranges follow each other without a gap, a block has one
// part at most or a run of its own, and nobody has much more than an even share.
TEST(Q4Split, DealsAnyShape) {
  for (const int most_blocks : {1, 2, 16, 78, 108, 114, 132, 144, 188}) {
    for (const int tiles_k : {1, 2, 5, 16, 40, 80, 96, 272}) {
      for (int row_blocks = 1; row_blocks <= 3 * most_blocks + 2; row_blocks += 1 + row_blocks / 40) {
        SCOPED_TRACE(testing::Message() << row_blocks << " row blocks of " << tiles_k << " tiles, " << most_blocks);
        ASSERT_TRUE(Q4Split::fits(row_blocks, tiles_k, most_blocks));
        const Q4Split split(row_blocks, tiles_k, most_blocks);
        const int common = static_cast<int>(split.common) * tiles_k, own = static_cast<int>(split.whole) * tiles_k;
        ASSERT_EQ(static_cast<int>(split.common + split.whole * split.blocks), row_blocks);
        ASSERT_LE(split.sharing, split.blocks);
        ASSERT_LE(split.blocks, static_cast<unsigned>(most_blocks));
        ASSERT_TRUE(split.whole > 0 || split.sharing == split.blocks);
        ASSERT_EQ(split.begin(0), 0);
        ASSERT_EQ(split.begin(split.sharing), common);
        int most = own;
        for (unsigned block = 0; block < split.sharing; ++block) {
          const int tiles = split.begin(block + 1) - split.begin(block);
          ASSERT_GT(tiles, 0);
          most = std::max(most, own + tiles);
          if (split.sharers > 0) {
            ASSERT_EQ(split.row_block(split.begin(block)), static_cast<int>(block / split.sharers));
            ASSERT_EQ(split.row_block(split.begin(block + 1) - 1), static_cast<int>(block / split.sharers));
          }
        }
        ASSERT_LE(split.sharers, Q4Split::most_sharers);
        const int even = (row_blocks * tiles_k + most_blocks - 1) / most_blocks;
        ASSERT_LE(most, even + static_cast<int>(Q4Split::second_part));
      }
    }
  }
}

}  // namespace
}  // namespace splash::ops::conformance
