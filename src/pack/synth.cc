#include "pack/synth.h"

#include <fmt/ranges.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <numbers>

#include "pack/checkpoint.h"
#include "pack/content.h"
#include "pack/sections.h"
#include "pack/strips.h"
#include "pack/write_pack.h"

namespace splash::pack {
namespace {

constexpr int family_vocab = 248'320;
constexpr int full_attention_interval = 4;

// xoshiro256++ (Blackman and Vigna): the pool needs speed, not reproducibility across streams.
class Random {
 public:
  explicit Random(std::uint64_t seed) {
    for (std::uint64_t& word : state_) {  // splitmix64
      seed += 0x9e3779b97f4a7c15u;
      std::uint64_t z = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9u;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
      word = z ^ (z >> 31);
    }
  }
  std::uint64_t bits() {
    const std::uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  double normal() { return std::sqrt(-2.0 * std::log(1.0 - uniform())) * std::cos(2.0 * std::numbers::pi * uniform()); }

 private:
  std::array<std::uint64_t, 4> state_{};
};

// ---- matrices

// Tiles of random codes for matrices of `cols` inputs whose values have a standard deviation near 1 / sqrt(cols).
// Codes are uniform in 0..15, so a tile of scale s and bias -7.5 s has mean 0 and deviation 4.61 s. The scale has four
// significant bits, so that -7.5 s is exact in bf16 and the mean is really 0.
class TilePool {
 public:
  TilePool(int cols, double gain) : tiles_(std::size_t{count} * tile_bytes) {
    Random random(static_cast<std::uint64_t>(cols));
    for (std::size_t i = 0; i + 8 <= tiles_.size(); i += 8) {
      const std::uint64_t bits = random.bits();
      std::memcpy(tiles_.data() + i, &bits, sizeof bits);
    }
    const double wanted = gain / std::sqrt(cols) / 4.61;
    const int exponent = std::ilogb(wanted) - 3;
    const double center = std::ldexp(wanted, -exponent);  // 8..16
    for (int tile = 0; tile < count; ++tile) {
      for (int row = 0; row < strip_rows; ++row) {
        const double scale = std::ldexp(std::round(center * (0.8 + 0.4 * random.uniform())), exponent);
        std::byte* at = tiles_.data() + std::size_t(tile) * tile_bytes + std::size_t(row) * 2;
        const bf16 scale_bits = to_bf16(static_cast<float>(scale));
        const bf16 bias_bits = to_bf16(static_cast<float>(-7.5 * scale));
        std::memcpy(at + tile_scales_offset, &scale_bits, 2);
        std::memcpy(at + tile_biases_offset, &bias_bits, 2);
      }
    }
  }

  // One strip: a run of the pool from a random place, each row of each tile with a sign of its own. Without the signs
  // rows of the same run would be equal, and means that are not quite 0 would align the rows of a matrix.
  void fill(std::uint64_t seed, int tiles, std::byte* out) const {
    Random random(seed);
    std::size_t from = random.bits() % count;
    for (int tile = 0; tile < tiles; ++tile, out += tile_bytes) {
      std::memcpy(out, tiles_.data() + from * tile_bytes, tile_bytes);
      flip_signs(out + tile_scales_offset, random.bits());
      from = from + 1 == count ? 0 : from + 1;
    }
  }

 private:
  // Negates scale and bias of row r if bit r of `mask` is set: w becomes -w.
  static void flip_signs(std::byte* scales, std::uint64_t mask) {
    for (int four = 0; four < 4; ++four, scales += 8, mask >>= 4) {
      // Bit i of the low four goes to the top of 16-bit lane i.
      const std::uint64_t flips = ((mask & 1) << 15) | ((mask & 2) << 30) | ((mask & 4) << 45) | ((mask & 8) << 60);
      for (const int offset : {0, tile_biases_offset - tile_scales_offset}) {
        std::uint64_t lanes;
        std::memcpy(&lanes, scales + offset, sizeof lanes);
        lanes ^= flips;
        std::memcpy(scales + offset, &lanes, sizeof lanes);
      }
    }
  }

  static constexpr int count = 2048;  // 1.2 MB: stays in the second-level cache
  std::vector<std::byte> tiles_;
};

// ---- vectors and tables

double vector_value(std::string_view name, int row, Random& random) {
  if (name.ends_with("A_log")) return std::log(1.0 + 15.0 * random.uniform());
  if (name.ends_with("dt_bias")) {  // softplus(dt_bias) log-uniform in [0.001, 0.1]: memories of all lengths
    return std::log(std::expm1(std::pow(10.0, -3.0 + 2.0 * random.uniform())));
  }
  if (name.ends_with("conv1d")) return 0.5 * random.normal();
  if (name.ends_with("base_kernel")) return (row % 2 == 0 ? 1.0 : 0.0) + 0.1 * random.normal();  // tap 0 is the slot
  return 1.0 + 0.1 * random.normal();                                                            // gains of norms
}

SectionContent vector_content(const SectionShape& shape, std::uint64_t seed) {
  SectionContent content{.shape = shape, .kind = std::string(kind_vector), .units = 1};
  content.unit_bytes = shape.elements() * static_cast<std::int64_t>(sizeof(float));
  content.fill = [shape, seed](std::int64_t, std::int64_t, std::byte* out) -> Status {
    Random random(seed);
    for (int row = 0; row < shape.rows; ++row) {
      for (int col = 0; col < shape.cols; ++col, out += sizeof(float)) {
        const auto value = static_cast<float>(vector_value(shape.name, row, random));
        std::memcpy(out, &value, sizeof value);
      }
    }
    return {};
  };
  return content;
}

// Codebooks of small values: the selector then moves scores by some hundredths.
SectionContent table_content(const SectionShape& shape, std::uint64_t seed) {
  SectionContent content{.shape = shape, .kind = std::string(kind_table_bf16), .units = shape.rows};
  content.unit_bytes = std::int64_t{shape.cols} * 2;
  auto pool = std::make_shared<std::vector<bf16>>(std::size_t{1} << 19);
  Random random(seed);
  for (bf16& value : *pool) value = to_bf16(static_cast<float>(0.04 * random.normal()));
  content.fill = [pool, seed, cols = shape.cols](std::int64_t first, std::int64_t count, std::byte* out) -> Status {
    const std::size_t places = pool->size() - static_cast<std::size_t>(cols);
    for (std::int64_t row = first; row < first + count; ++row, out += cols * 2) {
      const std::size_t place = Random(seed + static_cast<std::uint64_t>(row)).bits() % places;
      std::memcpy(out, pool->data() + place, static_cast<std::size_t>(cols) * 2);
    }
    return {};
  };
  return content;
}

class SynthContent {
 public:
  SectionContent make(const SectionShape& shape) {
    const std::uint64_t seed = ++sections_ << 32;
    if (shape.role == Role::vector) return vector_content(shape, seed);
    if (shape.role == Role::table) return table_content(shape, seed);
    // Predicted coefficients of the draft's convolution stay small beside the base kernel.
    const double gain = shape.name.ends_with("kernel_projection") ? 0.1 : 1.0;
    auto& pool = pools_[{shape.cols, gain}];
    if (!pool) pool = std::make_shared<const TilePool>(shape.cols, gain);
    SectionContent content = matrix_content(shape, Format::q4);
    content.fill = [pool, seed, rows = shape.rows, tiles = shape.cols / tile_cols, unit = content.unit_bytes](
                       std::int64_t first, std::int64_t count, std::byte* out) -> Status {
      for (std::int64_t strip = first; strip < first + count; ++strip, out += unit) {
        pool->fill(seed + static_cast<std::uint64_t>(strip), tiles, out);
        if (rows - strip * strip_rows < strip_rows) zero_padding(rows % strip_rows, tiles, out);
      }
      return {};
    };
    return content;
  }

 private:
  // Rows after the last are zero in every pack: codes, scales and biases.
  static void zero_padding(int used, int tiles, std::byte* strip) {
    for (int tile = 0; tile < tiles; ++tile, strip += tile_bytes) {
      for (int line = 0; line < tile_cols / 8; ++line) {
        std::memset(strip + line * 64 + used * 4, 0, static_cast<std::size_t>(strip_rows - used) * 4);
      }
      std::memset(strip + tile_scales_offset + used * 2, 0, static_cast<std::size_t>(strip_rows - used) * 2);
      std::memset(strip + tile_biases_offset + used * 2, 0, static_cast<std::size_t>(strip_rows - used) * 2);
    }
  }

  std::uint64_t sections_ = 0;
  std::map<std::pair<int, double>, std::shared_ptr<const TilePool>> pools_;
};

// ---- geometries

struct Size {
  const char* name;
  int layers, hidden, intermediate, query_heads, kv_heads, value_heads;
  bool tied;
  int draft_query_heads, draft_kv_heads;
};

// spec/qwen-models.md 1.2; drafts of the smaller models after dflash2.md 3.2.
constexpr std::array<Size, 5> sizes{{{"27b", 64, 5120, 17408, 24, 4, 48, false, 32, 8},
                                     {"9b", 32, 4096, 12288, 16, 4, 32, false, 32, 8},
                                     {"4b", 32, 2560, 9216, 16, 4, 32, true, 32, 8},
                                     {"2b", 24, 2048, 6144, 8, 2, 16, true, 32, 8},
                                     {"0.8b", 24, 1024, 3584, 8, 2, 16, true, 16, 4}}};

std::vector<Mixer> hybrid_layers(int count) {
  std::vector<Mixer> layers;
  for (int i = 1; i <= count; ++i) layers.push_back(i % full_attention_interval == 0 ? Mixer::attention : Mixer::gdn);
  return layers;
}

// The published rule, from the second layer to the third from the end (dflash2.md 1.2); fewer where layers are few.
std::vector<int> tapped_layers(int layers) {
  constexpr int wanted = 5;
  std::vector<int> taps;
  if (layers < wanted + 3) {
    for (int layer = 0; layer < std::min(wanted, layers); ++layer) taps.push_back(layer);
    return taps;
  }
  for (int i = 0; i < wanted; ++i) {
    taps.push_back(static_cast<int>(std::lround(1.0 + i * (layers - 4.0) / (wanted - 1))));
  }
  return taps;
}

NamedGeometry geometry_of(const Size& size) {
  NamedGeometry named{.name = size.name};
  TargetGeometry& target = named.target;
  target.vocab_size = family_vocab;
  target.hidden_size = size.hidden;
  target.intermediate_size = size.intermediate;
  target.layers = hybrid_layers(size.layers);
  target.query_heads = size.query_heads;
  target.kv_heads = size.kv_heads;
  target.key_heads = 16;
  target.value_heads = size.value_heads;
  target.tied_head = size.tied;

  DraftGeometry& draft = named.draft;
  draft.vocab_size = family_vocab;
  draft.hidden_size = size.hidden;
  draft.intermediate_size = size.intermediate;
  draft.layers = 5;
  draft.query_heads = size.draft_query_heads;
  draft.kv_heads = size.draft_kv_heads;
  draft.head_dim = 128;
  draft.windows.assign(5, 2048);
  draft.mask_token = 248'070;
  draft.taps = size.layers == 64 ? std::vector{5, 19, 33, 47, 61} : tapped_layers(size.layers);
  draft.selector_rank = 256;
  return named;
}

Result<NamedGeometry> find_geometry(const SynthOptions& options) {
  std::vector<std::string> names;
  for (const NamedGeometry& named : named_geometries()) {
    names.push_back(named.name);
    if (named.name != options.geometry) continue;
    NamedGeometry chosen = named;
    const int all = static_cast<int>(named.target.layers.size());
    if (options.layers < 0 || options.layers > all) {
      return fail_parameter(ErrorKind::invalid, "layers", "{} has {} layers, {} were asked for", named.name, all,
                            options.layers);
    }
    if (options.layers > 0 && options.layers < all) {
      chosen.target.layers = hybrid_layers(options.layers);
      chosen.draft.taps = tapped_layers(options.layers);
    }
    return chosen;
  }
  return fail_parameter(ErrorKind::invalid, "geometry", "unknown geometry \"{}\"; known: {}", options.geometry,
                        fmt::join(names, ", "));
}

}  // namespace

const std::vector<NamedGeometry>& named_geometries() {
  static const std::vector<NamedGeometry> geometries = [] {
    std::vector<NamedGeometry> all;
    for (const Size& size : sizes) all.push_back(geometry_of(size));
    return all;
  }();
  return geometries;
}

Status synth_pack(const std::filesystem::path& destination, const SynthOptions& options) {
  SPLASH_TRY(const NamedGeometry named, find_geometry(options));
  return synth_pack(destination, named, options);
}

Status synth_pack(const std::filesystem::path& destination, const NamedGeometry& named, const SynthOptions& options) {
  PackContent content;
  content.manifest.name = "synthetic-" + named.name;
  content.manifest.target = named.target;
  content.manifest.draft = named.draft;
  content.manifest.target_source = {.kind = "synthetic", .weights = "q4"};
  content.manifest.draft_source = content.manifest.target_source;
  SynthContent synth;
  for (const SectionShape& shape : target_sections(named.target)) content.sections.push_back(synth.make(shape));
  for (const SectionShape& shape : draft_sections(named.draft)) content.sections.push_back(synth.make(shape));
  if (!options.tokenizer.empty()) {
    content.target_folder = options.tokenizer;
    content.tokenizer_files = tokenizer_files(options.tokenizer);
    if (content.tokenizer_files.empty()) {
      return fail_parameter(ErrorKind::not_found, "tokenizer", "{} has no tokenizer.json", options.tokenizer.string());
    }
  }
  return write_pack(std::move(content), destination, {.show_progress = options.show_progress, .stop = options.stop});
}

}  // namespace splash::pack
