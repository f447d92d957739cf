// Per-head RMSNorm and rotary position embedding as the reference does them, shared by target and draft attention.
#pragma once

#include <cmath>
#include <span>

namespace splash::ops::reference {

// y = x / sqrt(mean(x^2) + eps) * gain over one head.
inline void norm_head(std::span<const float> x, std::span<const float> gain, float eps, std::span<float> y) {
  double squares = 0;
  for (const float value : x) squares += double{value} * value;
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + double{eps});
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = static_cast<float>(x[i] * scale * gain[i]);
}

// Half-split pairing (i, i + dims / 2) inside the first `dims` of the head:
//   angle_i = position * theta^(-2i / dims), y_i = x_i cos - x_{i+half} sin, y_{i+half} = x_{i+half} cos + x_i sin.
inline void rotate_head(std::span<float> x, int dims, double theta, int position) {
  const int half = dims / 2;
  for (int i = 0; i < half; ++i) {
    const double angle = position * std::pow(theta, -2.0 * i / dims);
    const double c = std::cos(angle), s = std::sin(angle);
    const double a = x[i], b = x[i + half];
    x[i] = static_cast<float>(a * c - b * s);
    x[i + half] = static_cast<float>(b * c + a * s);
  }
}

}  // namespace splash::ops::reference
