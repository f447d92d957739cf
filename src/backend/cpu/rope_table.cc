#include "backend/cpu/rope_table.h"

#include <cmath>

#include "base/check.h"

namespace splash::cpu {

RopeTable::RopeTable(double theta, int rotary_dim) : theta_(theta), pairs_(rotary_dim / 2) {
  low_.resize(static_cast<std::size_t>(radix) * pairs_);
  high_.resize(low_.size());
  for (int pair = 0; pair < pairs_; ++pair) {
    const double frequency = std::pow(theta, -2.0 * pair / rotary_dim);
    for (int step = 0; step < radix; ++step) {
      const double low = step * frequency, high = double{radix} * step * frequency;
      low_[static_cast<std::size_t>(step) * pairs_ + pair] = {std::cos(low), std::sin(low)};
      high_[static_cast<std::size_t>(step) * pairs_ + pair] = {std::cos(high), std::sin(high)};
    }
  }
}

void RopeTable::angles(int position, float* cosines, float* sines) const {
  SPLASH_CHECK(position >= 0 && position < radix * radix, "position {}", position);
  const Unit* high = &high_[static_cast<std::size_t>(position / radix) * pairs_];
  const Unit* low = &low_[static_cast<std::size_t>(position % radix) * pairs_];
  for (int pair = 0; pair < pairs_; ++pair) {
    const Unit a = high[pair], b = low[pair];
    cosines[pair] = static_cast<float>(a.cosine * b.cosine - a.sine * b.sine);
    sines[pair] = static_cast<float>(a.sine * b.cosine + a.cosine * b.sine);
  }
}

}  // namespace splash::cpu
