// What was in the source is what a pack hands out, for every fixture and choice of weights.
#include <array>
#include <cmath>

#include "base/bf16.h"
#include "pack/config.h"
#include "pack/pack_testing.h"
#include "pack/package.h"
#include "pack/sections.h"
#include "pack/strips.h"

namespace splash::pack {
namespace {

// Values of a source tensor by the definition of its dtype.
std::vector<float> values_of(const TensorView& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t bits = 0;
    if (tensor.dtype == "F32") {
      std::memcpy(&values[i], tensor.data.data() + 4 * i, 4);
    } else {
      std::memcpy(&bits, tensor.data.data() + 2 * i, 2);
      values[i] = tensor.dtype == "F16" ? half_to_float(bits) : to_float(bf16{bits});
    }
  }
  return values;
}

// An MLX matrix dequantised by the words of the spec: element 8w + j in bits 4j of word w, x = s * q + b.
std::vector<float> mlx_values(const SafetensorsFile& file, const std::string& name, int rows, int cols) {
  const TensorView& weight = *file.find(name + ".weight");
  const auto scales = values_of(*file.find(name + ".scales"));
  const auto biases = values_of(*file.find(name + ".biases"));
  std::vector<float> values;
  for (int n = 0; n < rows; ++n) {
    for (int k = 0; k < cols; ++k) {
      std::uint32_t word;
      std::memcpy(&word, weight.data.data() + (std::size_t(n) * cols / 8 + k / 8) * 4, 4);
      const auto group = static_cast<std::size_t>(n * (cols / 64) + k / 64);
      values.push_back(static_cast<float>(word >> (4 * (k % 8)) & 15u) * scales[group] + biases[group]);
    }
  }
  return values;
}

// The MLX rule applied to one matrix, dequantised.
std::vector<float> rounded(const std::vector<float>& source) {
  std::vector<float> values;
  Q4Group group;
  for (std::size_t i = 0; i < source.size(); i += tile_cols) {
    EXPECT_TRUE(quantise_group(std::span(source).subspan(i).first<tile_cols>(), group));
    for (const int code : group.codes) {
      values.push_back(static_cast<float>(code) * to_float(group.scale) + to_float(group.bias));
    }
  }
  return values;
}

void expect_matrix(const Weight& weight, const std::vector<float>& wanted, const std::string& name) {
  ASSERT_EQ(wanted.size(), std::size_t(weight.rows) * std::size_t(weight.cols)) << name;
  for (int n = 0; n < weight.rows; ++n) {
    for (int k = 0; k < weight.cols; ++k) {
      ASSERT_EQ(weight_at(weight, n, k), wanted[std::size_t(n) * std::size_t(weight.cols) + std::size_t(k)])
          << name << " " << n << " " << k;
    }
  }
}

bool zero_centred(const std::string& name) {
  return name == "norm" || name.find("layernorm") != std::string::npos ||
         name.find("self_attn.q_norm") != std::string::npos || name.find("self_attn.k_norm") != std::string::npos;
}

void expect_target(const Package& package, const std::string& fixture_name, const std::string& prefix, bool mlx,
                   WeightChoice choice) {
  const auto file = SafetensorsFile::open(fixture(fixture_name) / "model.safetensors").value();
  for (const SectionShape& shape : target_sections(package.target())) {
    const bool head = shape.name == "lm_head";
    const std::string full = (head ? (mlx ? "language_model." : "") : prefix) + shape.name;
    ASSERT_TRUE(package.has(Component::target, shape.name)) << shape.name;
    if (shape.role == Role::vector) {
      const TensorView* tensor = file->find(full) ? file->find(full) : file->find(full + ".weight");
      std::vector<float> wanted = values_of(*tensor);
      if (!mlx && zero_centred(shape.name)) {
        for (float& value : wanted) value = 1.0f + value;
      }
      const auto got = package.vector(Component::target, shape.name);
      EXPECT_EQ(wanted, std::vector<float>(got.begin(), got.end())) << shape.name;
      continue;
    }
    const Weight weight = package.weight(Component::target, shape.name);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(weight.data) % 4096, 0u);
    std::vector<float> wanted =
        mlx ? mlx_values(*file, full, shape.rows, shape.cols) : values_of(*file->find(full + ".weight"));
    EXPECT_EQ(weight.format, mlx || choice == WeightChoice::q4 ? Format::q4 : Format::bf16);
    if (!mlx && choice == WeightChoice::q4) wanted = rounded(wanted);
    expect_matrix(weight, wanted, shape.name);
  }
}

void expect_draft(const Package& package, WeightChoice choice) {
  const auto file = SafetensorsFile::open(fixture("dense-draft") / "model.safetensors").value();
  ASSERT_NE(package.draft(), nullptr);
  for (const SectionShape& shape : draft_sections(*package.draft())) {
    const TensorView* tensor = file->find(shape.name) ? file->find(shape.name) : file->find(shape.name + ".weight");
    ASSERT_NE(tensor, nullptr) << shape.name;
    std::vector<float> wanted = values_of(*tensor);
    if (shape.role == Role::vector) {
      const auto got = package.vector(Component::draft, shape.name);
      EXPECT_EQ(wanted, std::vector<float>(got.begin(), got.end())) << shape.name;
    } else if (shape.role == Role::table) {
      const Table table = package.table(Component::draft, shape.name);
      for (int i = 0; i < table.rows; ++i) {
        for (int j = 0; j < table.cols; ++j) {
          ASSERT_EQ(table.at(i, j), wanted[std::size_t(i) * std::size_t(table.cols) + std::size_t(j)]);
        }
      }
    } else {
      if (choice == WeightChoice::q4) wanted = rounded(wanted);
      expect_matrix(package.weight(Component::draft, shape.name), wanted, shape.name);
    }
  }
}

class RoundTrip : public testing::TestWithParam<WeightChoice> {};

TEST_P(RoundTrip, HuggingFaceFixture) {
  const TemporaryFolder folder;
  ASSERT_OK(pack_folder(fixture("dense"), folder / "pack", {.weights = GetParam(), .draft = fixture("dense-draft")}));
  const auto package = Package::open(folder / "pack");
  ASSERT_OK(package);
  EXPECT_EQ((*package)->name(), "dense");
  EXPECT_FALSE((*package)->tokenizer_folder());
  expect_target(**package, "dense", "model.", false, GetParam());
  expect_draft(**package, GetParam());
  EXPECT_OK(verify(folder / "pack"));
}

TEST_P(RoundTrip, MlxFixture) {
  const TemporaryFolder folder;
  ASSERT_OK(pack_folder(fixture("dense-mlx4"), folder / "pack", {.weights = GetParam()}));
  const auto package = Package::open(folder / "pack");
  ASSERT_OK(package);
  EXPECT_EQ((*package)->draft(), nullptr);
  expect_target(**package, "dense-mlx4", "language_model.model.", true, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Weights, RoundTrip, testing::Values(WeightChoice::q4, WeightChoice::source),
                         [](const auto& test) { return test.param == WeightChoice::q4 ? "q4" : "source"; });

TEST(RoundTrip, FixturesGeometry) {
  const TemporaryFolder folder;
  ASSERT_OK(pack_folder(fixture("dense"), folder / "pack", {.draft = fixture("dense-draft")}));
  const auto package = Package::open(folder / "pack");
  ASSERT_OK(package);
  const TargetGeometry& target = (*package)->target();
  EXPECT_EQ(target.vocab_size, 1024);
  EXPECT_EQ(target.layers, (std::vector{Mixer::gdn, Mixer::gdn, Mixer::gdn, Mixer::attention}));
  EXPECT_EQ(target.rotary_dim, 64);
  EXPECT_EQ(target.rope_theta, 1e7);
  EXPECT_EQ(target.rms_eps, 1e-6f);
  EXPECT_EQ(target.value_heads, 6);
  EXPECT_FALSE(target.tied_head);
  const DraftGeometry& draft = *(*package)->draft();
  EXPECT_EQ(draft.windows, (std::vector{32, 32}));
  EXPECT_EQ(draft.taps, (std::vector{0, 2}));
  EXPECT_EQ(draft.block_size, 8);
  EXPECT_EQ(draft.mask_token, 1023);
  EXPECT_EQ(draft.selector_rank, 32);
}

}  // namespace
}  // namespace splash::pack
