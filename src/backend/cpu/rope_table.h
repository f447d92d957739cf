// cos and sin of position * theta^(-2i/dim) for rotary embedding, to about 1e-15, without 32 calls of sin and cos per row.
#pragma once

#include <vector>

namespace splash::cpu {

// position = 512 * high + low, and (cos, sin) of a sum of angles is one complex product, in double:
// two tables of 512 x dim / 2 entries replace one of max_context x dim / 2.
class RopeTable {
 public:
  RopeTable(double theta, int rotary_dim);
  bool is_for(double theta, int rotary_dim) const { return theta == theta_ && rotary_dim == 2 * pairs_; }

  // cosines[i], sines[i] for i < rotary_dim / 2, rounded once to float32. position in [0, 262144).
  void angles(int position, float* cosines, float* sines) const;

 private:
  struct Unit {
    double cosine, sine;
  };
  static constexpr int radix = 512;
  double theta_;
  int pairs_;
  std::vector<Unit> low_, high_;  // [radix][pairs]
};

}  // namespace splash::cpu
