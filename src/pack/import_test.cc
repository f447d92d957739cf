// Sources as people have them: shards, other prefixes, other dtypes, mixed quantisation, and damaged ones.
#include "pack/import.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <fstream>
#include <functional>

#include "base/bf16.h"
#include "pack/checkpoint.h"
#include "pack/import_matrix.h"
#include "pack/manifest.h"
#include "pack/pack_testing.h"
#include "pack/package.h"

namespace splash::pack {
namespace {

using Tensors = std::vector<OwnedTensor>;

// A copy of a fixture whose tensors and config can be changed.
struct Source {
  explicit Source(const char* name) : tensors(read_tensors(fixture(name) / "model.safetensors")) {
    config = read_file(fixture(name) / "config.json");
  }
  OwnedTensor& tensor(std::string_view name) { return *find_tensor(tensors, name); }
  void remove(std::string_view name) {
    std::erase_if(tensors, [&](const OwnedTensor& tensor) { return tensor.name == name; });
  }
  void write(const std::filesystem::path& folder) const {
    write_tensors(folder / "model.safetensors", tensors);
    write_file(folder / "config.json", config);
  }
  Tensors tensors;
  std::string config;
};

// The hashes of a pack's weight files: equal packs have equal bytes.
std::vector<std::string> weight_hashes(const std::filesystem::path& pack) {
  const auto manifest = parse_manifest(read_file(pack / manifest_name), manifest_name);
  EXPECT_OK(manifest);
  std::vector<std::string> hashes;
  if (!manifest) return hashes;
  for (const PackedFile& file : manifest->files) {
    if (!file.path.starts_with("tokenizer/")) hashes.push_back(file.path + " " + file.sha256);
  }
  return hashes;
}

std::vector<std::string> pack_of(const std::filesystem::path& source) {
  const TemporaryFolder folder;
  EXPECT_OK(pack_folder(source, folder / "pack", {}));
  return weight_hashes(folder / "pack");
}

void write_shards(const Source& source, const std::filesystem::path& folder, const std::string& index) {
  Tensors first(source.tensors.begin(), source.tensors.begin() + 20);
  Tensors second(source.tensors.begin() + 20, source.tensors.end());
  write_tensors(folder / "model-1.safetensors", first);
  write_tensors(folder / "model-2.safetensors", second);
  write_file(folder / "config.json", source.config);
  write_file(folder / "model.safetensors.index.json", index);
}

std::string index_of(const Source& source) {
  std::string map;
  for (std::size_t i = 0; i < source.tensors.size(); ++i) {
    map += fmt::format("{}\"{}\":\"model-{}.safetensors\"", i ? "," : "", source.tensors[i].name, i < 20 ? 1 : 2);
  }
  return fmt::format("{{\"metadata\":{{\"total_size\":1}},\"weight_map\":{{{}}}}}", map);
}

TEST(Import, ShardsAndPrefixesGiveTheSamePack) {
  const Source source("dense");
  const auto wanted = pack_of(fixture("dense"));
  ASSERT_EQ(wanted.size(), 7u);
  {
    const TemporaryFolder folder;
    write_shards(source, folder.path(), index_of(source));
    EXPECT_EQ(pack_of(folder.path()), wanted);
  }
  for (const char* prefix : {"model.language_model.", "language_model.model."}) {
    const TemporaryFolder folder;
    Source renamed("dense");
    for (OwnedTensor& tensor : renamed.tensors) {
      if (tensor.name.starts_with("model.")) tensor.name = prefix + tensor.name.substr(6);
    }
    renamed.tensors.push_back({"mtp.fc.weight", "BF16", {1}, "ab"});
    renamed.tensors.push_back({"model.visual.pos_embed.weight", "BF16", {1}, "ab"});
    renamed.tensors.push_back({"vision_tower.pos_embed.weight", "BF16", {1}, "ab"});
    renamed.write(folder.path());
    EXPECT_EQ(pack_of(folder.path()), wanted);
  }
}

TEST(Import, RefusesBrokenIndexes) {
  const Source source("dense");
  const std::string good = index_of(source);
  struct Case {
    std::string index;
    std::vector<std::string> named;
  };
  const std::string& first = source.tensors[0].name;
  const std::vector<Case> cases{
      {replaced(good, "model-1", "../model-1"), {"index.json", first, "leaves the folder"}},
      {replaced(good, "model-1", "/model-1"), {"index.json", "leaves the folder"}},
      {replaced(good, "model-1", "model-3"), {"model-3.safetensors"}},
      {replaced(good, "model-1", "model-2"), {"model-2.safetensors", first, "missing"}},
      {replaced(good, first, "model.ghost"), {"model-1.safetensors", "model.ghost", "missing"}},
      {"{\"weight_map\":{}}", {"index.json", "empty"}},
      {"{\"weight_map\":[]}", {"index.json", "weight_map"}},
      {"{}", {"index.json", "weight_map"}}};
  for (const Case& one : cases) {
    const TemporaryFolder folder;
    write_shards(source, folder.path(), one.index);
    SCOPED_TRACE(one.named[0]);
    expect_error(pack_folder(folder.path(), folder / "pack", {}), one.named);
    EXPECT_FALSE(std::filesystem::exists(folder / "pack"));
  }
  const TemporaryFolder folder;  // the same tensor in two shards
  Source twice("dense");
  twice.tensors.push_back(twice.tensors[0]);
  write_shards(twice, folder.path(), good);
  expect_error(pack_folder(folder.path(), folder / "pack", {}), {"model-2.safetensors", first, "model-1.safetensors"});
}

struct Damage {
  const char* what;
  std::function<void(Source&)> apply;
  std::vector<std::string> named;
};

TEST(Import, RefusesDamagedSourcesByName) {
  const std::string gate = "model.layers.1.mlp.gate_proj.weight";
  const std::string norm = "model.layers.2.input_layernorm.weight";
  const auto nan = std::string("\xc0\x7f", 2);
  const std::vector<Damage> damages{
      {"missing matrix", [&](Source& s) { s.remove(gate); }, {"layers.1.mlp.gate_proj.weight", "missing"}},
      {"missing norm", [&](Source& s) { s.remove(norm); }, {"layers.2.input_layernorm.weight", "missing"}},
      {"missing head, not tied", [&](Source& s) { s.remove("lm_head.weight"); }, {"lm_head.weight", "missing"}},
      {"transposed",
       [&](Source& s) { std::swap(s.tensor(gate).shape[0], s.tensor(gate).shape[1]); },
       {"model.safetensors", gate, "[256, 512]", "[512, 256]"}},
      {"flattened", [&](Source& s) { s.tensor(gate).shape = {512 * 256}; }, {"model.safetensors", gate}},
      {"integers", [&](Source& s) { s.tensor(gate).dtype = "I16"; }, {"model.safetensors", gate, "I16"}},
      {"codes without scales",
       [&](Source& s) {
         s.tensor(gate) = {gate, "U32", {512, 32}, std::string(65536, 'x')};
       },
       {"layers.1.mlp.gate_proj.scales", "missing"}},
      {"norm of another length",
       [&](Source& s) {
         s.tensor(norm) = {norm, "BF16", {128}, std::string(256, '\0')};
       },
       {"model.safetensors", norm, "[256]"}},
      {"unknown bias",
       [&](Source& s) {
         s.tensors.push_back({"model.layers.0.mlp.up_proj.bias", "BF16", {1}, "ab"});
       },
       {"model.safetensors", "model.layers.0.mlp.up_proj.bias"}},
      {"a layer more than the config states",
       [&](Source& s) {
         s.tensors.push_back({"model.layers.4.input_layernorm.weight", "BF16", {1}, "ab"});
       },
       {"model.layers.4.input_layernorm.weight"}},
      {"same tensor under two prefixes",
       [&](Source& s) {
         s.tensors.push_back({"model.language_model.norm.weight", "BF16", {1}, "ab"});
       },
       {"model.safetensors", "norm.weight", "means the same"}},
      {"not a number in a matrix",
       [&](Source& s) { s.tensor(gate).data.replace(7777 * 2, 2, nan); },
       {"model.safetensors", gate, "not finite"}},
      {"infinity in a norm",
       [&](Source& s) { s.tensor(norm).data.replace(0, 2, std::string("\x80\x7f", 2)); },
       {"model.safetensors", norm, "not finite"}},
      {"one layer converted by MLX, the others not",
       [&](Source& s) {
         s.tensor("model.layers.1.linear_attn.conv1d.weight").shape = {1280, 4, 1};
       },
       {"model.safetensors", "conv1d.weight", "mixed"}},
      {"no config", [&](Source& s) { s.config = ""; }, {"config.json"}},
      {"config of a larger model",
       [&](Source& s) { s.config = replaced(s.config, "\"vocab_size\": 1024", "\"vocab_size\": 2048"); },
       {"model.safetensors", "embed_tokens.weight", "[2048, 256]"}}};
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.what);
    const TemporaryFolder folder;
    Source source("dense");
    damage.apply(source);
    source.write(folder / "source");
    expect_error(pack_folder(folder / "source", folder / "pack", {}), damage.named);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()) == false);
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      EXPECT_EQ(entry.path().filename(), "source") << "left behind";
    }
  }
}

TEST(Import, RefusesATruncatedShard) {
  const TemporaryFolder folder;
  Source("dense").write(folder / "source");
  const auto file = folder / "source/model.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  expect_error(pack_folder(folder / "source", folder / "pack", {}), {"model.safetensors", "truncated"});
}

TEST(Import, TiedHeadIsStoredOnce) {
  for (const bool keep_copy : {false, true}) {
    const TemporaryFolder folder;
    Source source("dense");
    source.config = replaced(source.config, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    if (!keep_copy) source.remove("lm_head.weight");
    source.write(folder / "source");
    ASSERT_OK(pack_folder(folder / "source", folder / "pack", {}));
    const auto package = Package::open(folder / "pack");
    ASSERT_OK(package);
    EXPECT_TRUE((*package)->target().tied_head);
    EXPECT_FALSE((*package)->has(Component::target, "lm_head"));
    EXPECT_FALSE(std::filesystem::exists(folder / "pack/target/head.bin"));
  }
}

void widen(OwnedTensor& tensor) {  // bf16 to f32: each value gets two low bytes of zero
  std::string wide;
  for (std::size_t i = 0; i < tensor.data.size(); i += 2) wide += std::string(2, '\0') + tensor.data.substr(i, 2);
  tensor.data = wide;
  tensor.dtype = "F32";
}

TEST(Import, WiderSourcesKeepTheirPrecision) {
  const TemporaryFolder folder;
  Source source("dense");
  OwnedTensor& first = source.tensor("model.layers.0.mlp.up_proj.weight");
  widen(first);
  const float odd = 0.1f;  // not a bf16 value
  std::memcpy(first.data.data(), &odd, 4);
  OwnedTensor& second = source.tensor("model.layers.1.mlp.up_proj.weight");
  second.dtype = "F16";
  for (std::size_t i = 0; i < second.data.size(); i += 2) second.data[i + 1] = '\x2c', second.data[i] = 1;
  source.write(folder / "source");
  ASSERT_OK(pack_folder(folder / "source", folder / "pack", {.weights = WeightChoice::source}));
  const auto package = Package::open(folder / "pack");
  ASSERT_OK(package);
  const Weight wide = (*package)->weight(Component::target, "layers.0.mlp.up_proj");
  EXPECT_EQ(wide.format, Format::f32);
  EXPECT_EQ(weight_at(wide, 0, 0), odd);
  const Weight half = (*package)->weight(Component::target, "layers.1.mlp.up_proj");
  EXPECT_EQ(half.format, Format::f32);
  EXPECT_EQ(weight_at(half, 511, 255), half_to_float(0x2c01));
  EXPECT_EQ((*package)->weight(Component::target, "layers.2.mlp.up_proj").format, Format::bf16);
}

TEST(Import, WidthsThatTilesCannotHoldStayWide) {
  const TemporaryFolder folder;
  Source source("dense");  // intermediate 480 is not a multiple of 64: down_proj [256, 480]
  source.config = replaced(source.config, "\"intermediate_size\": 512", "\"intermediate_size\": 480");
  for (int layer = 0; layer < 4; ++layer) {
    const std::string mlp = fmt::format("model.layers.{}.mlp.", layer);
    for (const char* name : {"gate_proj.weight", "up_proj.weight"}) {
      source.tensor(mlp + name).shape = {480, 256};
      source.tensor(mlp + name).data.resize(480 * 256 * 2);
    }
    source.tensor(mlp + "down_proj.weight").shape = {256, 480};
    source.tensor(mlp + "down_proj.weight").data.resize(256 * 480 * 2);
  }
  source.write(folder / "source");
  ASSERT_OK(pack_folder(folder / "source", folder / "pack", {}));
  const auto package = Package::open(folder / "pack");
  ASSERT_OK(package);
  EXPECT_EQ((*package)->weight(Component::target, "layers.0.mlp.down_proj").format, Format::bf16);
  EXPECT_EQ((*package)->weight(Component::target, "layers.0.mlp.up_proj").format, Format::q4);
}

// ---- MLX

TEST(ImportMlx, EveryWidthIsDequantisedAsMlxDoes) {
  const TemporaryFolder folder;
  const char* tree = std::getenv("SPLASH_SOURCE");
  const auto golden = std::filesystem::path(tree != nullptr ? tree : ".") / "src/pack/testdata/mlx_golden.safetensors";
  std::filesystem::copy_file(golden, folder / "model.safetensors");
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_OK(checkpoint);
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int group : {32, 64, 128}) {
      const std::string name = fmt::format("b{}g{}", bits, group);
      SCOPED_TRACE(name);
      ImportOptions options;
      options.quantization = MlxQuantization{.standard = {.bits = bits, .group_size = group}};
      const SectionShape shape{Component::target, name, Role::matrix, 4, 128, "f"};
      const auto content = import_matrix(shape, *checkpoint, options);
      ASSERT_OK(content);
      EXPECT_EQ(content->kind, "f32");  // also 4 bits: these scales are float32 and do not fit bf16
      std::vector<std::byte> strip(static_cast<std::size_t>(content->bytes()));
      ASSERT_OK(content->fill(0, 1, strip.data()));
      const Weight weight{.format = Format::f32, .rows = 4, .cols = 128, .data = strip.data()};
      const TensorView& values = *checkpoint->find(name + ".values")->view;
      for (int n = 0; n < 4; ++n) {
        for (int k = 0; k < 128; ++k) {
          float wanted;
          std::memcpy(&wanted, values.data.data() + (n * 128 + k) * 4, 4);
          // MLX may fuse the multiplication and the addition; ours rounds after each.
          ASSERT_NEAR(weight_at(weight, n, k), wanted, 2e-7f * 4) << n << " " << k;
        }
      }
    }
  }
}

constexpr const char* k_proj = "language_model.model.layers.3.self_attn.k_proj";

// Replaces k_proj [256, 256] of the fixture by 8-bit codes; the scales stay.
void make_eight_bit(Source& source) {
  OwnedTensor& weight = source.tensor(std::string(k_proj) + ".weight");
  weight.shape = {256, 64};
  weight.data.resize(256 * 256);
  for (std::size_t i = 0; i < weight.data.size(); ++i) weight.data[i] = static_cast<char>(i * 37 % 251);
}

TEST(ImportMlx, OverridesOfOnePathAreFollowed) {
  for (const char* path : {k_proj, "model.layers.3.self_attn.k_proj"}) {
    const TemporaryFolder folder;
    Source source("dense-mlx4");
    make_eight_bit(source);
    const std::string entry = fmt::format("\"quantization\": {{\"{}\": {{\"group_size\": 64, \"bits\": 8}},", path);
    source.config = replaced(source.config, "\"quantization\": {", entry);
    source.write(folder / "source");
    ASSERT_OK(pack_folder(folder / "source", folder / "pack", {}));
    const auto package = Package::open(folder / "pack");
    ASSERT_OK(package);
    const Weight weight = (*package)->weight(Component::target, "layers.3.self_attn.k_proj");
    ASSERT_EQ(weight.format, Format::f32);
    const std::string& scales = source.tensor(std::string(k_proj) + ".scales").data;
    const std::string& biases = source.tensor(std::string(k_proj) + ".biases").data;
    for (const auto& [n, k] : {std::pair{0, 0}, {17, 100}, {255, 255}}) {
      const auto group = static_cast<std::size_t>(n * 4 + k / 64);
      bf16 scale, bias;
      std::memcpy(&scale, scales.data() + group * 2, 2);
      std::memcpy(&bias, biases.data() + group * 2, 2);
      const auto code = static_cast<float>(static_cast<unsigned>(n * 256 + k) * 37u % 251u);
      EXPECT_EQ(weight_at(weight, n, k), code * to_float(scale) + to_float(bias));
    }
  }
}

TEST(ImportMlx, RefusesCodesThatContradictTheConfig) {
  const std::string path = k_proj;
  const std::vector<Damage> damages{
      {"8-bit codes without an override", make_eight_bit, {"model.safetensors", path + ".weight", "[256, 32]"}},
      {"override for 4-bit codes",
       [&](Source& s) {
         s.config = replaced(s.config, "\"quantization\": {",
                             "\"quantization\": {\"" + path + "\": {\"group_size\": 64, \"bits\": 8},");
       },
       {"model.safetensors", path + ".weight", "[256, 64]"}},
      {"override that says not quantised",
       [&](Source& s) {
         s.config = replaced(s.config, "\"quantization\": {", "\"quantization\": {\"" + path + "\": false,");
       },
       {"model.safetensors", path + ".weight", "not quantised"}},
      {"no quantization at all",
       [&](Source& s) {
         s.config = replaced(s.config, "\"quantization\"", "\"x\"");
         s.config = replaced(s.config, "\"quantization_config\"", "\"y\"");
       },
       {"model.safetensors", "quantization"}},
      {"scales of another shape",
       [&](Source& s) {
         s.tensor(path + ".scales").shape = {4, 256};
       },
       {"model.safetensors", path + ".scales", "[4, 256]"}},
      {"no biases", [&](Source& s) { s.remove(path + ".biases"); }, {"layers.3.self_attn.k_proj.biases", "missing"}},
      {"scale is not finite",
       [&](Source& s) { s.tensor(path + ".scales").data.replace(0, 2, "\xc0\x7f"); },
       {"model.safetensors", path + ".scales", "not finite"}},
      {"codes of another dtype",
       [&](Source& s) { s.tensor(path + ".weight").dtype = "I32"; },
       {"model.safetensors", path + ".weight", "I32"}}};
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.what);
    const TemporaryFolder folder;
    Source source("dense-mlx4");
    damage.apply(source);
    source.write(folder / "source");
    expect_error(pack_folder(folder / "source", folder / "pack", {}), damage.named);
  }
}

TEST(ImportMlx, ScalesMoveOnlyIfBf16HoldsThem) {
  for (const bool exact : {true, false}) {
    const TemporaryFolder folder;
    Source source("dense-mlx4");
    OwnedTensor& scales = source.tensor(std::string(k_proj) + ".scales");
    widen(scales);
    if (!exact) scales.data[0] = 1;
    source.write(folder / "source");
    ASSERT_OK(pack_folder(folder / "source", folder / "pack", {}));
    const auto package = Package::open(folder / "pack");
    ASSERT_OK(package);
    EXPECT_EQ((*package)->weight(Component::target, "layers.3.self_attn.k_proj").format,
              exact ? Format::q4 : Format::f32);
  }
}

TEST(ImportMlx, NormsAreTakenAsStoredEvenWithMtpTensors) {
  const TemporaryFolder folder;
  Source source("dense-mlx4");
  source.tensors.push_back({"mtp.norm.weight", "BF16", {1}, "ab"});  // must not be read as "raw Hugging Face"
  source.write(folder / "source");
  ASSERT_OK(pack_folder(folder / "source", folder / "pack", {}));
  EXPECT_EQ(weight_hashes(folder / "pack"), pack_of(fixture("dense-mlx4")));
}

// ---- drafts and other fixtures

TEST(Import, RefusesADraftOfAnotherModel) {
  const std::vector<Damage> damages{
      {"hidden size",
       [](Source& s) { s.config = replaced(s.config, "\"hidden_size\": 256", "\"hidden_size\": 512"); },
       {"config.json", "hidden_size"}},
      {"vocabulary",
       [](Source& s) { s.config = replaced(s.config, "\"vocab_size\": 1024", "\"vocab_size\": 2048"); },
       {"config.json", "vocab_size"}},
      {"layers",
       [](Source& s) { s.config = replaced(s.config, "\"num_target_layers\": 4", "\"num_target_layers\": 64"); },
       {"config.json", "num_target_layers", "64"}},
      {"taps", [](Source& s) { s.config = replaced(s.config, "0,\n   2", "0, 4"); }, {"config.json", "taps layer 4"}},
      {"codebook of another rank",
       [](Source& s) {
         s.tensor("candidate_selector.successor_codebook").shape = {512, 64};
       },
       {"model.safetensors", "successor_codebook", "[1024, 32]"}},
      {"DFlash 1",
       [](Source& s) { s.remove("layers.0.mlp_conv.base_kernel"); },
       {"layers.0.mlp_conv.base_kernel", "missing"}}};
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.what);
    const TemporaryFolder folder;
    Source draft("dense-draft");
    damage.apply(draft);
    draft.write(folder / "draft");
    expect_error(pack_folder(fixture("dense"), folder / "pack", {.draft = folder / "draft"}), damage.named);
  }
}

TEST(Import, VisionModelsServeTheirTextHalf) {
  const TemporaryFolder folder;
  ASSERT_OK(pack_folder(fixture("vision"), folder / "pack", {}));
  EXPECT_OK(Package::open(folder / "pack"));
  expect_error(pack_folder(fixture("moe"), folder / "moe", {}), {"config.json", "mixture of experts"});
}

TEST(Import, TokenizerFilesAreCopiedAndHashed) {
  const TemporaryFolder folder;
  Source("dense").write(folder / "source");
  write_file(folder / "source/tokenizer.json", "{}");
  write_file(folder / "source/merges.txt", "");  // an empty file is fine
  write_file(folder / "source/generation_config.json", "{\"eos_token_id\":[1,2]}");
  write_file(folder / "source/README.md", "not for the pack");
  ASSERT_OK(pack_folder(folder / "source", folder / "pack", {}));
  const auto package = Package::open(folder / "pack");
  ASSERT_OK(package);
  EXPECT_EQ((*package)->tokenizer_folder(), folder / "pack/tokenizer");
  EXPECT_EQ(read_file(folder / "pack/tokenizer/generation_config.json"), "{\"eos_token_id\":[1,2]}");
  EXPECT_TRUE(std::filesystem::exists(folder / "pack/tokenizer/config.json"));
  EXPECT_TRUE(std::filesystem::exists(folder / "pack/tokenizer/merges.txt"));
  EXPECT_FALSE(std::filesystem::exists(folder / "pack/tokenizer/README.md"));
  EXPECT_OK(verify(folder / "pack"));
}

#ifndef __SANITIZE_ADDRESS__  // its shadow memory counts as data
// Packing streams: memory of our own does not grow with the model. 64 layers, 150 MB of bf16, inside 64 MiB more than
// the process has at the start.
TEST(Import, PacksALargeModelInLittleMemory) {
  constexpr int copies = 16;  // of the fixture's four layers
  Source small("dense"), large("dense");
  auto config = boost::json::parse(small.config).as_object();
  boost::json::array types;
  for (int copy = 0; copy < copies; ++copy) {
    for (const auto& type : config["layer_types"].as_array()) types.push_back(type);
    if (copy == 0) continue;
    for (const OwnedTensor& tensor : small.tensors) {
      const std::size_t at = tensor.name.find("layers.");
      if (at == std::string::npos) continue;
      const std::size_t digit = at + 7;
      OwnedTensor moved = tensor;
      moved.name.replace(digit, 1, std::to_string(4 * copy + (tensor.name[digit] - '0')));
      large.tensors.push_back(std::move(moved));
    }
  }
  config["num_hidden_layers"] = 4 * copies;
  config["layer_types"] = types;
  large.config = boost::json::serialize(config);
  const TemporaryFolder folder;
  large.write(folder / "model");
  std::int64_t bytes = 0;
  for (const OwnedTensor& tensor : large.tensors) bytes += static_cast<std::int64_t>(tensor.data.size());
  ASSERT_GT(bytes, 128 << 20);
  large = Source("dense");

  const pid_t child = ::fork();
  if (child == 0) {
    std::ifstream status("/proc/self/status");
    std::string line;
    std::int64_t data_kib = 0;
    while (std::getline(status, line)) {
      if (line.starts_with("VmData:")) data_kib = std::strtoll(line.c_str() + 7, nullptr, 10);
    }
    const rlimit limit{static_cast<rlim_t>(data_kib * 1024 + (64 << 20)), RLIM_INFINITY};
    if (data_kib == 0 || ::setrlimit(RLIMIT_DATA, &limit) != 0) ::_exit(2);
    PackOptions options;
    const Status packed = pack_folder(folder / "model", folder / "pack", options);
    if (!packed) std::fprintf(stderr, "%s\n", packed.error().message.c_str());
    ::_exit(packed ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  ASSERT_TRUE(WIFEXITED(state));
  EXPECT_EQ(WEXITSTATUS(state), 0);
  EXPECT_OK(Package::open(folder / "pack"));
}
#endif

TEST(Import, NameComesFromTheFolderOrTheCacheEntry) {
  const TemporaryFolder folder;
  const auto snapshot = folder / "models--Qwen--Qwen3.5-4B/snapshots/0123abcd";
  std::filesystem::create_directories(snapshot);
  EXPECT_EQ(model_name(snapshot), "Qwen/Qwen3.5-4B");
  EXPECT_EQ(model_name(fixture("dense")), "dense");
  EXPECT_EQ(model_name(fixture("dense").string() + "/"), "dense");
}

// A cache entry is a link to a blob named by its SHA-256: bytes that do not match are a damaged download.
TEST(Import, DamagedBlobOfAHuggingFaceCacheIsFound) {
  const TemporaryFolder folder;
  Source("dense").write(folder / "source");
  std::filesystem::create_directories(folder / "blobs");
  const std::string name(64, 'a');
  std::filesystem::rename(folder / "source/model.safetensors", folder.path() / "blobs" / name);
  std::filesystem::create_symlink(folder.path() / "blobs" / name, folder / "source/model.safetensors");
  expect_error(pack_folder(folder / "source", folder / "pack", {}), {"model.safetensors", "SHA-256", "damaged"});
}

}  // namespace
}  // namespace splash::pack
