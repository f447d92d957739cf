#include "pack/import_matrix.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "pack/mapped_file.h"
#include "pack/strips.h"

namespace splash::pack {
namespace {

// Values of a bf16, f16 or f32 tensor as floats. The data need not be aligned: a header may have any length.
class FloatReader {
 public:
  FloatReader() = default;
  explicit FloatReader(const TensorView& tensor)
      : data_(tensor.data.data()),
        half_(tensor.dtype == "F16"),
        wide_(tensor.dtype == "F32"),
        bytes_(tensor.dtype == "F32" ? 4 : 2) {}

  static bool reads(std::string_view dtype) { return dtype == "BF16" || dtype == "F16" || dtype == "F32"; }

  void read(std::int64_t first, std::span<float> out) const {
    const std::byte* from = data_ + first * bytes_;
    if (wide_) {
      std::memcpy(out.data(), from, out.size_bytes());
      return;
    }
    if (!half_) return read_bf16(from, out);
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::uint16_t bits;
      std::memcpy(&bits, from + 2 * i, sizeof bits);
      out[i] = half_to_float(bits);
    }
  }
  float at(std::int64_t index) const {
    float value;
    read(index, std::span(&value, 1));
    return value;
  }

 private:
  const std::byte* data_ = nullptr;
  bool half_ = false;
  bool wide_ = false;
  int bytes_ = 2;
};

std::string shape_text(const TensorView& tensor) { return fmt::format("[{}]", fmt::join(tensor.shape, ", ")); }

Status check_floats(const SourceTensor& tensor) {
  if (FloatReader::reads(tensor.view->dtype)) return {};
  return fail_parameter(ErrorKind::corrupt, tensor.file, "{}: dtype {}, expected BF16, F16 or F32", tensor.place(),
                        tensor.view->dtype);
}

Status check_shape(const SourceTensor& tensor, std::vector<std::int64_t> wanted) {
  if (tensor.view->shape == wanted) return {};
  return fail_parameter(ErrorKind::corrupt, tensor.file, "{}: shape {}, the config needs [{}]", tensor.place(),
                        shape_text(*tensor.view), fmt::join(wanted, ", "));
}

tl::unexpected<Error> not_finite(const SourceTensor& tensor) {
  return fail_parameter(ErrorKind::corrupt, tensor.file,
                        "{}: holds a value that is not finite, or too large for its format", tensor.place());
}

Result<const SourceTensor*> demand(const Checkpoint& checkpoint, const std::string& name) {
  if (const SourceTensor* tensor = checkpoint.find(name)) return tensor;
  const std::string folder = checkpoint.folder().string();
  return fail_parameter(ErrorKind::corrupt, folder, "{}: the tensor {} is missing", folder, name);
}

// Lets go of the pages of rows [first, first + count) of a row-major tensor.
void release_rows(const TensorView& tensor, std::int64_t first, std::int64_t count, std::int64_t rows) {
  const std::size_t row_bytes = tensor.data.size() / static_cast<std::size_t>(rows);
  const auto end = static_cast<std::size_t>(std::min(first + count, rows));
  const auto begin = std::min(static_cast<std::size_t>(first), end);
  release_pages(tensor.data.subspan(begin * row_bytes, (end - begin) * row_bytes));
}

// ---- matrices of floats

// Strips [first, first + count) from rows of floats, 64 columns at a time so that a tile is finished while it is hot.
Status fill_from_floats(const SourceTensor& tensor, const SectionContent& content, Format format, std::int64_t first,
                        std::int64_t count, std::byte* out) {
  const FloatReader reader(*tensor.view);
  const int rows = content.shape.rows, cols = content.shape.cols;
  std::array<float, tile_cols> values;
  bool finite = true;
  for (std::int64_t strip = first; strip < first + count; ++strip) {
    std::byte* to = out + (strip - first) * content.unit_bytes;
    const int used = static_cast<int>(std::min<std::int64_t>(strip_rows, rows - strip * strip_rows));
    for (int col = 0; col < cols; col += tile_cols) {
      const auto piece = std::span(values).first(static_cast<std::size_t>(std::min(tile_cols, cols - col)));
      for (int row = 0; row < used; ++row) {
        reader.read((strip * strip_rows + row) * cols + col, piece);
        finite &= put_values(to, format, row, col, piece);
      }
    }
  }
  release_rows(*tensor.view, first * strip_rows, count * strip_rows, rows);
  if (!finite) return not_finite(tensor);
  return {};
}

Result<SectionContent> import_floats(const SectionShape& shape, const SourceTensor& tensor, WeightChoice weights) {
  SPLASH_TRY_STATUS(check_floats(tensor));
  SPLASH_TRY_STATUS(check_shape(tensor, {shape.rows, shape.cols}));
  // bf16 cannot hold every f16 value, so an f16 source that is kept becomes f32.
  Format format = tensor.view->dtype == "BF16" ? Format::bf16 : Format::f32;
  if (weights == WeightChoice::q4 && shape.cols % tile_cols == 0) format = Format::q4;
  SectionContent content = matrix_content(shape, format);
  content.fill = [tensor, format, bare = content](std::int64_t first, std::int64_t count, std::byte* out) {
    return fill_from_floats(tensor, bare, format, first, count, out);
  };
  return content;
}

// ---- MLX matrices: codes, scales and biases

struct MlxMatrix {
  SourceTensor weight, scales, biases;
  MlxBits bits;
  int cols = 0;

  std::int64_t words() const { return std::int64_t{cols} * bits.bits / 32; }
  std::int64_t groups() const { return cols / bits.group_size; }
};

Result<MlxMatrix> find_mlx(const SectionShape& shape, const Checkpoint& checkpoint, const SourceTensor& weight,
                           const ImportOptions& options) {
  MlxMatrix matrix{.weight = weight, .cols = shape.cols};
  SPLASH_TRY(const SourceTensor* scales, demand(checkpoint, shape.name + ".scales"));
  SPLASH_TRY(const SourceTensor* biases, demand(checkpoint, shape.name + ".biases"));
  matrix.scales = *scales;
  matrix.biases = *biases;
  if (!options.quantization) {
    return fail_parameter(ErrorKind::corrupt, weight.file, "{}: has scales, but config.json has no `quantization`",
                          weight.place());
  }
  matrix.bits = options.quantization->standard;
  const std::string_view full = without_suffix(weight.view->name, ".weight");
  for (const auto& [path, bits] : options.quantization->overrides) {
    if (path != full && section_name_of(path) != shape.name) continue;
    if (!bits) {
      return fail_parameter(ErrorKind::corrupt, weight.file, "{}: has scales, but config.json says it is not quantised",
                            weight.place());
    }
    matrix.bits = *bits;
  }
  const int group = matrix.bits.group_size;
  if (shape.cols % group != 0 || std::int64_t{shape.cols} * matrix.bits.bits % 32 != 0) {
    return fail_parameter(ErrorKind::corrupt, weight.file, "{}: {} inputs do not divide into groups of {}",
                          weight.place(), shape.cols, group);
  }
  if (weight.view->dtype != "U32") {
    return fail_parameter(ErrorKind::corrupt, weight.file, "{}: dtype {}, expected U32 codes", weight.place(),
                          weight.view->dtype);
  }
  SPLASH_TRY_STATUS(check_floats(matrix.scales));
  SPLASH_TRY_STATUS(check_floats(matrix.biases));
  SPLASH_TRY_STATUS(check_shape(matrix.weight, {shape.rows, matrix.words()}));
  SPLASH_TRY_STATUS(check_shape(matrix.scales, {shape.rows, matrix.groups()}));
  SPLASH_TRY_STATUS(check_shape(matrix.biases, {shape.rows, matrix.groups()}));
  return matrix;
}

// A tile has bf16 scales; others are moved only if bf16 holds each of them exactly.
bool fits_bf16(const TensorView& tensor) {
  if (tensor.dtype == "BF16") return true;
  const FloatReader reader(tensor);
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    const float value = reader.at(i);
    if (to_float(to_bf16(value)) != value) return false;
  }
  return true;
}

// Every group of 64 of a tile must lie in one group of the source.
bool fits_tiles(const MlxMatrix& matrix) {
  return matrix.bits.bits == 4 && matrix.bits.group_size % tile_cols == 0 && fits_bf16(*matrix.scales.view) &&
         fits_bf16(*matrix.biases.view);
}

void release_strips(const MlxMatrix& matrix, std::int64_t first, std::int64_t count, int rows) {
  for (const SourceTensor* tensor : {&matrix.weight, &matrix.scales, &matrix.biases}) {
    release_rows(*tensor->view, first * strip_rows, count * strip_rows, rows);
  }
}

Status move_codes(const MlxMatrix& matrix, const SectionContent& content, std::int64_t first, std::int64_t count,
                  std::byte* out) {
  const FloatReader scales(*matrix.scales.view), biases(*matrix.biases.view);
  const std::byte* codes = matrix.weight.view->data.data();
  bool finite = true;
  for (std::int64_t row = first * strip_rows;
       row < std::min<std::int64_t>((first + count) * strip_rows, content.shape.rows); ++row) {
    std::byte* strip = out + (row / strip_rows - first) * content.unit_bytes;
    const int in_strip = static_cast<int>(row % strip_rows);
    for (int tile = 0; tile < matrix.cols / tile_cols; ++tile) {
      std::byte* to = strip + std::ptrdiff_t{tile} * tile_bytes;
      for (int line = 0; line < tile_cols / 8; ++line) {
        std::uint32_t word;
        std::memcpy(&word, codes + (row * matrix.words() + tile * 8 + line) * 4, sizeof word);
        word = tile_line_of_mlx_word(word);
        std::memcpy(to + line * 64 + in_strip * 4, &word, sizeof word);
      }
      const std::int64_t group = row * matrix.groups() + tile * tile_cols / matrix.bits.group_size;
      const float scale = scales.at(group), bias = biases.at(group);
      finite &= std::isfinite(scale) && std::isfinite(bias);
      const bf16 scale_bits = to_bf16(scale), bias_bits = to_bf16(bias);
      std::memcpy(to + tile_scales_offset + in_strip * 2, &scale_bits, 2);
      std::memcpy(to + tile_biases_offset + in_strip * 2, &bias_bits, 2);
    }
  }
  release_strips(matrix, first, count, content.shape.rows);
  if (!finite) return not_finite(matrix.scales);
  return {};
}

// Codes of any width are a little-endian stream of bits per row, lowest bits first.
void read_row_codes(const MlxMatrix& matrix, std::int64_t row, std::span<float> out) {
  const std::byte* bytes = matrix.weight.view->data.data() + row * matrix.words() * 4;
  const unsigned mask = (1u << matrix.bits.bits) - 1;
  std::uint64_t pending = 0;
  int held = 0;
  for (float& code : out) {
    if (held < matrix.bits.bits) {
      pending |= std::uint64_t{static_cast<unsigned char>(*bytes++)} << held;
      held += 8;
    }
    code = static_cast<float>(pending & mask);
    pending >>= matrix.bits.bits;
    held -= matrix.bits.bits;
  }
}

// Widths and scales that a tile cannot hold: the values themselves, scale * code + bias in float32.
Status fill_dequantised(const MlxMatrix& matrix, const SectionContent& content, std::int64_t first, std::int64_t count,
                        std::byte* out) {
  const FloatReader scales(*matrix.scales.view), biases(*matrix.biases.view);
  std::vector<float> values(static_cast<std::size_t>(matrix.cols));
  bool finite = true;
  for (std::int64_t row = first * strip_rows;
       row < std::min<std::int64_t>((first + count) * strip_rows, content.shape.rows); ++row) {
    read_row_codes(matrix, row, values);
    for (int col = 0; col < matrix.cols; ++col) {
      const std::int64_t group = row * matrix.groups() + col / matrix.bits.group_size;
      float& value = values[static_cast<std::size_t>(col)];
      value = value * scales.at(group) + biases.at(group);
    }
    finite &= put_values(out + (row / strip_rows - first) * content.unit_bytes, Format::f32,
                         static_cast<int>(row % strip_rows), 0, values);
  }
  release_strips(matrix, first, count, content.shape.rows);
  if (!finite) return not_finite(matrix.scales);
  return {};
}

Result<SectionContent> import_mlx(const SectionShape& shape, const Checkpoint& checkpoint, const SourceTensor& weight,
                                  const ImportOptions& options) {
  SPLASH_TRY(const MlxMatrix matrix, find_mlx(shape, checkpoint, weight, options));
  const bool move = fits_tiles(matrix);
  SectionContent content = matrix_content(shape, move ? Format::q4 : Format::f32);
  content.fill = [matrix, move, bare = content](std::int64_t first, std::int64_t count, std::byte* out) {
    return move ? move_codes(matrix, bare, first, count, out) : fill_dequantised(matrix, bare, first, count, out);
  };
  return content;
}

// ---- vectors

bool is_zero_centred(std::string_view name) {
  return name == "norm" || name.ends_with("input_layernorm") || name.ends_with("post_attention_layernorm") ||
         name.ends_with("self_attn.q_norm") || name.ends_with("self_attn.k_norm");
}

// How the source may write a vector of the section list.
Status check_vector_shape(const SourceTensor& tensor, const SectionShape& shape) {
  if (shape.name.ends_with("conv1d")) {  // Hugging Face [C, 1, k], MLX [C, k, 1]: the same values in the same order
    if (check_shape(tensor, {shape.rows, 1, shape.cols}) || check_shape(tensor, {shape.rows, shape.cols, 1})) return {};
    return check_shape(tensor, {shape.rows, 1, shape.cols});
  }
  if (shape.name.ends_with("base_kernel")) return check_shape(tensor, {2, 2, shape.cols});
  return check_shape(tensor, {shape.rows});
}

}  // namespace

std::string_view without_suffix(std::string_view name, std::string_view suffix) {
  if (name.ends_with(suffix)) name.remove_suffix(suffix.size());
  return name;
}

SectionContent matrix_content(const SectionShape& shape, Format format) {
  const Weight weight{.format = format, .rows = shape.rows, .cols = shape.cols};
  return {.shape = shape,
          .kind = std::string(format_name(format)),
          .units = weight.strips(),
          .unit_bytes = weight.strip_bytes()};
}

Result<SectionContent> import_matrix(const SectionShape& shape, const Checkpoint& checkpoint,
                                     const ImportOptions& options) {
  SPLASH_TRY(const SourceTensor* weight, demand(checkpoint, shape.name + ".weight"));
  if (checkpoint.find(shape.name + ".scales") || weight->view->dtype == "U32") {
    return import_mlx(shape, checkpoint, *weight, options);
  }
  return import_floats(shape, *weight, options.weights);
}

Result<SectionContent> import_vector(const SectionShape& shape, const Checkpoint& checkpoint,
                                     const ImportOptions& options) {
  const SourceTensor* tensor = checkpoint.find(shape.name);  // A_log, dt_bias and base_kernel have no suffix
  if (tensor == nullptr) {
    SPLASH_TRY(tensor, demand(checkpoint, shape.name + ".weight"));
  }
  SPLASH_TRY_STATUS(check_floats(*tensor));
  SPLASH_TRY_STATUS(check_vector_shape(*tensor, shape));
  const float offset = options.zero_centred_norms && is_zero_centred(shape.name) ? 1.0f : 0.0f;
  SectionContent content{.shape = shape, .kind = std::string(kind_vector), .units = 1};
  content.unit_bytes = shape.elements() * static_cast<std::int64_t>(sizeof(float));
  content.fill = [tensor = *tensor, offset, count = shape.elements()](std::int64_t, std::int64_t units,
                                                                      std::byte* out) -> Status {
    if (units == 0) return {};
    const std::span values(reinterpret_cast<float*>(out), static_cast<std::size_t>(count));
    FloatReader(*tensor.view).read(0, values);
    for (float& value : values) value += offset;
    if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); })) {
      return not_finite(tensor);
    }
    return {};
  };
  return content;
}

Result<SectionContent> import_table(const SectionShape& shape, const Checkpoint& checkpoint) {
  const SourceTensor* tensor = checkpoint.find(shape.name);  // published without a suffix
  if (tensor == nullptr) {
    SPLASH_TRY(tensor, demand(checkpoint, shape.name + ".weight"));
  }
  SPLASH_TRY_STATUS(check_floats(*tensor));
  SPLASH_TRY_STATUS(check_shape(*tensor, {shape.rows, shape.cols}));
  const bool narrow = tensor->view->dtype == "BF16";
  SectionContent content{.shape = shape, .kind = std::string(narrow ? kind_table_bf16 : kind_table_f32)};
  content.units = shape.rows;
  content.unit_bytes = std::int64_t{shape.cols} * (narrow ? 2 : 4);
  content.fill = [tensor = *tensor, narrow, rows = shape.rows, cols = shape.cols](
                     std::int64_t first, std::int64_t count, std::byte* out) -> Status {
    std::vector<float> values(static_cast<std::size_t>(count * cols));
    FloatReader(*tensor.view).read(first * cols, values);
    release_rows(*tensor.view, first, count, rows);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!std::isfinite(values[i])) return not_finite(tensor);
      const bf16 rounded = to_bf16(values[i]);  // exact: the source is bf16
      std::memcpy(out + i * (narrow ? 2 : 4), narrow ? static_cast<const void*>(&rounded) : &values[i], narrow ? 2 : 4);
    }
    return {};
  };
  return content;
}

}  // namespace splash::pack
