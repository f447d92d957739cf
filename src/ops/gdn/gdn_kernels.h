// Kernels of the Gated DeltaNet mixer on the CPU: one head at a time, raw pointers.
#pragma once

#include <cstddef>

namespace splash::ops {

inline constexpr int gdn_columns = 16;  // columns of the state that travel together; value_dim is a multiple
inline constexpr int gdn_max_head = 256;
inline constexpr int gdn_max_taps = 8;

// One head of channels: convolution, SiLU and, for q and k, the L2 norm.
struct GdnConvHead {
  const float* weights = nullptr;  // [dim][taps]
  const float* history = nullptr;  // [taps - 1][history_stride]: the raw inputs before the first row
  std::ptrdiff_t history_stride = 0;
  const float* x = nullptr;  // [rows][x_stride] raw inputs
  std::ptrdiff_t x_stride = 0;
  int rows = 0;
  int dim = 0;
  int taps = 0;
  float norm_scale = 0;  // 0: no norm (v). Otherwise out = c / sqrt(sum c^2 + 1e-6) * norm_scale
  float* out = nullptr;  // [rows][out_stride]
  std::ptrdiff_t out_stride = 0;
};

// One value head: kept rows of the tape, the delta rule over the rows, gated norm.
// State layout: [value_dim / 16][key_dim][16]. A column of the state never meets another one, so 16 columns (8 KiB) pass
// through all rows of the segment while they lie in the first-level cache.
struct GdnHead {
  float* state = nullptr;
  int key_dim = 0;
  int value_dim = 0;
  // Rows to fold in first.
  int kept = 0;
  const float* tape_k = nullptr;  // [kept][tape_k_stride]
  std::ptrdiff_t tape_k_stride = 0;
  float* tape_d = nullptr;  // [.][tape_d_stride]: read for the kept rows, then written by `record`
  std::ptrdiff_t tape_d_stride = 0;
  const float* tape_alpha = nullptr;  // [kept][tape_alpha_stride]
  std::ptrdiff_t tape_alpha_stride = 0;
  // The rows.
  int rows = 0;
  const float *q = nullptr, *k = nullptr;  // [rows][qk_stride], normed
  std::ptrdiff_t qk_stride = 0;
  const float* v = nullptr;  // [rows][v_stride]
  std::ptrdiff_t v_stride = 0;
  const float *alpha = nullptr, *beta = nullptr;  // [rows]
  bool record = false;                            // verify: deltas go to the tape and the state does not advance
  const float* z = nullptr;                       // [rows][z_stride]
  std::ptrdiff_t z_stride = 0;
  const float* gain = nullptr;  // [value_dim]
  float eps = 0;
  float* out = nullptr;  // [rows][out_stride]
  std::ptrdiff_t out_stride = 0;
};

struct GdnKernels {
  void (*conv_head)(const GdnConvHead& head);
  void (*delta_head)(const GdnHead& head);
};
extern const GdnKernels gdn_scalar, gdn_avx2, gdn_avx512vnni;

}  // namespace splash::ops
