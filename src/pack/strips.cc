#include "pack/strips.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace splash::pack {

static_assert(std::endian::native == std::endian::little, "packs hold little-endian numbers, copied as they are");

namespace {

constexpr float largest_float = std::numeric_limits<float>::max();

// Rounds to nearest, ties to even, for |x| < 2^22: the sum leaves no bits for the fraction. Unlike rint() it needs no
// call and no SSE4, so that the loop over a group becomes vector code.
inline float round_small(float x) {
  constexpr float shift = 12'582'912.0f;  // 1.5 * 2^23
  return (x + shift) - shift;
}

struct Range {
  float least, most;
  bool finite;
};

// Eight partial results, so that the loops become vector code without reordering a sum: least and most do not depend
// on the order, and a value times zero is zero unless it is not finite.
Range range_of(std::span<const float, tile_cols> values) {
  constexpr std::size_t lanes = 8;
  std::array<float, lanes> least, most, zero{};
  for (std::size_t j = 0; j < lanes; ++j) least[j] = most[j] = values[j];
  for (std::size_t i = 0; i < tile_cols; i += lanes) {
    for (std::size_t j = 0; j < lanes; ++j) {
      least[j] = values[i + j] < least[j] ? values[i + j] : least[j];
      most[j] = values[i + j] > most[j] ? values[i + j] : most[j];
      zero[j] += values[i + j] * 0.0f;
    }
  }
  Range range{.least = least[0], .most = most[0], .finite = true};
  for (std::size_t j = 0; j < lanes; ++j) {
    range.least = std::min(range.least, least[j]);
    range.most = std::max(range.most, most[j]);
    range.finite &= zero[j] == 0.0f;
  }
  return range;
}

}  // namespace

bool quantise_group(std::span<const float, tile_cols> values, Q4Group& group) {
  constexpr float largest_code = 15.0f;
  constexpr float smallest_scale = 1e-7f;
  const Range range = range_of(values);
  // The end of the range that is larger in magnitude is met exactly: it is the bias, and the scale points from it to
  // the other end (so it may be negative) with zero on the grid.
  const bool from_least = std::abs(range.least) > std::abs(range.most);
  const float edge = from_least ? range.least : range.most;
  float scale = std::max((range.most - range.least) / largest_code, smallest_scale);
  if (!from_least) scale = -scale;
  const float steps = std::nearbyint(edge / scale);
  float bias = 0;
  if (steps != 0) {
    scale = edge / steps;
    bias = edge;
  }
  for (std::size_t i = 0; i < tile_cols; ++i) {
    // Written so that a NaN becomes 0: the conversion to an integer must be defined even for input that is refused.
    float code = round_small((values[i] - bias) / scale);
    code = code > 0.0f ? code : 0.0f;
    code = code < largest_code ? code : largest_code;
    group.codes[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(code));
  }
  group.scale = to_bf16(scale);
  group.bias = to_bf16(bias);
  return range.finite && std::isfinite(to_float(group.scale)) && std::isfinite(to_float(group.bias));
}

void read_bf16(const std::byte* from, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    bf16 value;
    std::memcpy(&value, from + 2 * i, sizeof value);
    out[i] = to_float(value);
  }
}

void put_group(std::byte* tile, int row, const Q4Group& group) {
  for (std::size_t line = 0; line < tile_cols / 8; ++line) {
    std::array<std::uint8_t, 4> bytes;
    for (std::size_t j = 0; j < 4; ++j) {
      bytes[j] = static_cast<std::uint8_t>(group.codes[8 * line + j] | group.codes[8 * line + 4 + j] << 4);
    }
    std::memcpy(tile + line * 64 + row * 4, bytes.data(), bytes.size());
  }
  std::memcpy(tile + tile_scales_offset + row * 2, &group.scale, sizeof group.scale);
  std::memcpy(tile + tile_biases_offset + row * 2, &group.bias, sizeof group.bias);
}

namespace {

template <class Element>
bool interleave(std::byte* strip, int row, int first, std::span<const float> values, Element (*convert)(float)) {
  auto* out = reinterpret_cast<Element*>(strip) + std::ptrdiff_t{first} * strip_rows + row;
  bool finite = true;
  for (std::size_t k = 0; k < values.size(); ++k) {
    out[k * strip_rows] = convert(values[k]);
    finite &= std::abs(values[k]) <= largest_float;
  }
  return finite;
}

}  // namespace

bool put_values(std::byte* strip, Format format, int row, int first, std::span<const float> values) {
  if (format == Format::bf16) return interleave<bf16>(strip, row, first, values, to_bf16);
  if (format == Format::f32) return interleave<float>(strip, row, first, values, [](float value) { return value; });
  SPLASH_CHECK(first % tile_cols == 0 && values.size() % tile_cols == 0);
  bool finite = true;
  for (std::size_t k = 0; k < values.size(); k += tile_cols) {
    Q4Group group;
    finite &= quantise_group(values.subspan(k).first<tile_cols>(), group);
    put_group(strip + (static_cast<std::size_t>(first) + k) / tile_cols * tile_bytes, row, group);
  }
  return finite;
}

}  // namespace splash::pack
