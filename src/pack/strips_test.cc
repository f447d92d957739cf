// The quantiser against MLX itself (testdata/make_mlx_golden.py), and the layouts against their definition.
#include "pack/strips.h"

#include <cstdlib>

#include "pack/pack_testing.h"

namespace splash::pack {
namespace {

std::string golden_file() {
  const char* other = std::getenv("SPLASH_MLX_GOLDEN");  // a larger one made by hand
  const char* source = std::getenv("SPLASH_SOURCE");
  return other != nullptr ? other
                          : std::string(source != nullptr ? source : ".") + "/src/pack/testdata/mlx_golden.safetensors";
}

std::uint16_t half_at(const TensorView& tensor, std::size_t index) {
  std::uint16_t bits;
  std::memcpy(&bits, tensor.data.data() + 2 * index, 2);
  return bits;
}

std::uint32_t word_at(const TensorView& tensor, std::size_t index) {
  std::uint32_t word;
  std::memcpy(&word, tensor.data.data() + 4 * index, 4);
  return word;
}

TEST(Quantiser, EqualsMlxBitForBit) {
  const auto file = SafetensorsFile::open(golden_file()).value();
  const TensorView& matrix = *file->find("matrix");
  const auto groups = static_cast<std::size_t>(matrix.elements() / tile_cols);
  for (std::size_t g = 0; g < groups; ++g) {
    std::array<float, tile_cols> values;
    for (std::size_t i = 0; i < tile_cols; ++i) values[i] = to_float(bf16{half_at(matrix, g * tile_cols + i)});
    Q4Group group;
    ASSERT_TRUE(quantise_group(values, group));
    // Zero is the one place where two spellings of the same number differ: -0 and 0 are both taken.
    const auto same = [](bf16 ours, std::uint16_t theirs) {
      return ours.bits == theirs || ((ours.bits | theirs) & 0x7fff) == 0;
    };
    ASSERT_TRUE(same(group.scale, half_at(*file->find("scales"), g))) << "scale of group " << g;
    ASSERT_TRUE(same(group.bias, half_at(*file->find("biases"), g))) << "bias of group " << g;
    for (std::size_t i = 0; i < tile_cols; ++i) {
      const std::uint32_t word = word_at(*file->find("weight"), g * 8 + i / 8);
      ASSERT_EQ(group.codes[i], word >> (4 * (i % 8)) & 15u) << "code " << i << " of group " << g;
    }
  }
}

TEST(Quantiser, RefusesWhatIsNotFinite) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (const std::size_t place : {0u, 31u, 63u}) {
      std::array<float, tile_cols> values{};
      values[place] = bad;
      Q4Group group;
      EXPECT_FALSE(quantise_group(values, group)) << bad << " at " << place;
    }
  }
  std::array<float, tile_cols> values{};
  values[0] = 3.4e38f, values[1] = -3.4e38f;  // the range overflows
  Q4Group group;
  EXPECT_FALSE(quantise_group(values, group));
}

TEST(Tile, LineHoldsTheCodesOfAnMlxWord) {
  for (int input = 0; input < 8; ++input) {
    const std::uint32_t line = tile_line_of_mlx_word(0xfu << (4 * input));
    EXPECT_EQ(line, 0xfu << (8 * (input % 4) + (input < 4 ? 0 : 4))) << input;
  }
}

TEST(Tile, GroupIsReadBackByDefinition) {
  std::array<std::byte, tile_bytes> tile{};
  Q4Group group;
  for (int row = 0; row < strip_rows; ++row) {
    for (int i = 0; i < tile_cols; ++i) group.codes[std::size_t(i)] = static_cast<std::uint8_t>((i * 7 + row * 3) % 16);
    group.scale = to_bf16(0.25f * static_cast<float>(row - 8));
    group.bias = to_bf16(static_cast<float>(row));
    put_group(tile.data(), row, group);
  }
  const Weight weight{.format = Format::q4, .rows = 16, .cols = 64, .data = tile.data()};
  for (int row = 0; row < strip_rows; ++row) {
    for (int i = 0; i < tile_cols; ++i) {
      const float wanted =
          static_cast<float>((i * 7 + row * 3) % 16) * 0.25f * static_cast<float>(row - 8) + static_cast<float>(row);
      EXPECT_EQ(weight_at(weight, row, i), wanted) << row << " " << i;
    }
  }
}

TEST(Strip, WideFormatsReadBack) {
  constexpr int cols = 70;  // not a multiple of 64: only wide formats take it
  for (const Format format : {Format::bf16, Format::f32}) {
    const Weight shape{.format = format, .rows = 16, .cols = cols};
    std::vector<std::byte> strip(static_cast<std::size_t>(shape.bytes()));
    std::vector<float> values(cols);
    for (int row = 0; row < strip_rows; ++row) {
      for (int k = 0; k < cols; ++k) values[std::size_t(k)] = static_cast<float>(row * 100 + k);
      EXPECT_TRUE(put_values(strip.data(), format, row, 0, std::span(values).first(64)));
      EXPECT_TRUE(put_values(strip.data(), format, row, 64, std::span(values).subspan(64)));
    }
    const Weight weight{.format = format, .rows = 16, .cols = cols, .data = strip.data()};
    for (int row = 0; row < strip_rows; ++row) {
      for (int k = 0; k < cols; ++k) {
        EXPECT_EQ(weight_at(weight, row, k),
                  to_float(format == Format::bf16 ? to_bf16(static_cast<float>(row * 100 + k)) : bf16{}) +
                      (format == Format::f32 ? static_cast<float>(row * 100 + k) : 0.0f));
      }
    }
  }
}

}  // namespace
}  // namespace splash::pack
