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

}  // namespace

bool quantise_group(std::span<const float, tile_cols> values, Q4Group& group) {
  constexpr float largest_code = 15.0f;
  constexpr float smallest_scale = 1e-7f;
  float least = values[0], most = values[0];
  for (const float value : values) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
  // The end of the range that is larger in magnitude is met exactly: it is the bias, and the scale points from it to
  // the other end (so it may be negative) with zero on the grid.
  const bool from_least = std::abs(least) > std::abs(most);
  const float edge = from_least ? least : most;
  float scale = std::max((most - least) / largest_code, smallest_scale);
  if (!from_least) scale = -scale;
  const float steps = std::nearbyint(edge / scale);
  float bias = 0;
  if (steps != 0) {
    scale = edge / steps;
    bias = edge;
  }
  bool finite = true;
  for (int i = 0; i < tile_cols; ++i) {
    const float code = round_small((values[static_cast<std::size_t>(i)] - bias) / scale);
    finite &= std::abs(values[static_cast<std::size_t>(i)]) <= largest_float;
    // Written so that a NaN becomes 0: the conversion to an integer must be defined even for input that is refused.
    group.codes[static_cast<std::size_t>(i)] =
        static_cast<std::uint8_t>(static_cast<int>(code > 0 ? (code < largest_code ? code : largest_code) : 0.0f));
  }
  group.scale = to_bf16(scale);
  group.bias = to_bf16(bias);
  return finite && std::isfinite(to_float(group.scale)) && std::isfinite(to_float(group.bias));
}

void put_group(std::byte* tile, int row, const Q4Group& group) {
  for (int line = 0; line < tile_cols / 8; ++line) {
    for (int j = 0; j < 4; ++j) {
      const auto low = group.codes[static_cast<std::size_t>(8 * line + j)];
      const auto high = group.codes[static_cast<std::size_t>(8 * line + 4 + j)];
      tile[line * 64 + row * 4 + j] = static_cast<std::byte>(low | high << 4);
    }
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
