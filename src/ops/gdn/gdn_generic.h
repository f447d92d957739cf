#include "ops/gdn/gdn_kernels.h"
#include "ops/linear/linear_lanes.h"
#include "ops/norm/row_generic.h"

namespace splash::ops {
namespace {

using namespace simd;

void conv_head(const GdnConvHead& head) {
  float taps[gdn_max_taps][gdn_max_head];  // transposed: a tap's weights of all channels
  for (int channel = 0; channel < head.dim; ++channel) {
    for (int tap = 0; tap < head.taps; ++tap) taps[tap][channel] = head.weights[channel * head.taps + tap];
  }
  for (int row = 0; row < head.rows; ++row) {
    const float* inputs[gdn_max_taps];
    for (int tap = 0; tap < head.taps; ++tap) {
      const int at = row + tap - (head.taps - 1);
      inputs[tap] = at < 0 ? head.history + (at + head.taps - 1) * head.history_stride : head.x + at * head.x_stride;
    }
    float* out = head.out + row * head.out_stride;
    for (int channel = 0; channel < head.dim; channel += width) {
      Vec sum = zero();
      for (int tap = 0; tap < head.taps; ++tap) sum = fma(load(taps[tap] + channel), load(inputs[tap] + channel), sum);
      store(out + channel, silu(sum));
    }
    if (head.norm_scale == 0) continue;
    const float scale = head.norm_scale / __builtin_sqrtf(sum_of_squares(out, head.dim) + 1e-6f);
    for (int channel = 0; channel < head.dim; channel += width) store(out + channel, load(out + channel) * scale);
  }
}

// Independent partial sums over the key dimension, enough of them to hide the latency of a fused multiply-add.
inline constexpr int partials = lane_parts == 1 ? 4 : lane_parts == 2 ? 2 : 1;

struct Sums {
  Lanes partial[partials] = {};

  Lanes total() const {
    Lanes sum = partial[0];
    for (int part = 0; part < lane_parts; ++part) {
      if constexpr (partials == 2) sum.part[part] = sum.part[part] + partial[1].part[part];
      if constexpr (partials == 4) {
        sum.part[part] = (sum.part[part] + partial[1].part[part]) + (partial[2].part[part] + partial[3].part[part]);
      }
    }
    return sum;
  }
};

inline Lanes load_lanes(const float* p) {
  Lanes lanes;
#pragma GCC unroll 4
  for (int part = 0; part < lane_parts; ++part) lanes.part[part] = load(p + part * width);
  return lanes;
}
inline void store_lanes(float* p, const Lanes& lanes) {
#pragma GCC unroll 4
  for (int part = 0; part < lane_parts; ++part) store(p + part * width, lanes.part[part]);
}

// S <- alpha S + k d^T for 16 columns: the only way the state ever changes, for the pass itself and for the fold.
inline Lanes advance(const Lanes& state, Vec alpha, Vec k, const Lanes& delta) {
  Lanes next;
#pragma GCC unroll 4
  for (int part = 0; part < lane_parts; ++part) next.part[part] = fma(k, delta.part[part], state.part[part] * alpha);
  return next;
}
inline void accumulate(Lanes& sum, const Lanes& state, Vec factor) {
#pragma GCC unroll 4
  for (int part = 0; part < lane_parts; ++part) sum.part[part] = fma(state.part[part], factor, sum.part[part]);
}

void fold_row(float* block, int key_dim, float alpha, const float* k, const float* d) {
  const Lanes delta = load_lanes(d);
  const Vec decay = set(alpha);
  for (int i = 0; i < key_dim; ++i) {
    store_lanes(block + i * gdn_columns, advance(load_lanes(block + i * gdn_columns), decay, set(k[i]), delta));
  }
}

// S^T k for the first row of a segment.
Lanes read_out(const float* block, int key_dim, const float* k) {
  Sums sums;
  for (int i = 0; i < key_dim; i += partials) {
#pragma GCC unroll 4
    for (int p = 0; p < partials; ++p) accumulate(sums.partial[p], load_lanes(block + (i + p) * gdn_columns), set(k[i + p]));
  }
  return sums.total();
}

// One sweep over the block: advances it by a row, reads the row's output S^T q and, ahead, the next row's S^T k.
template <bool has_next>
void sweep_row(float* block, int key_dim, float alpha, const Lanes& delta, const float* k, const float* q,
               const float* next_k, Lanes& output, Lanes& read) {
  Sums outputs, reads;
  const Vec decay = set(alpha);
  for (int i = 0; i < key_dim; i += partials) {
#pragma GCC unroll 4
    for (int p = 0; p < partials; ++p) {
      float* at = block + (i + p) * gdn_columns;
      const Lanes state = advance(load_lanes(at), decay, set(k[i + p]), delta);
      store_lanes(at, state);
      accumulate(outputs.partial[p], state, set(q[i + p]));
      if constexpr (has_next) accumulate(reads.partial[p], state, set(next_k[i + p]));
    }
  }
  output = outputs.total();
  if constexpr (has_next) read = reads.total();
}

// d = beta (v - alpha S^T k) with S before its decay.
inline Lanes delta_of(const Lanes& v, const Lanes& read, float alpha, float beta) {
  Lanes delta;
#pragma GCC unroll 4
  for (int part = 0; part < lane_parts; ++part) {
    delta.part[part] = (v.part[part] - read.part[part] * alpha) * beta;
  }
  return delta;
}

void run_columns(const GdnHead& head, float* block, int column) {
  if (head.rows == 0) return;
  Lanes read = read_out(block, head.key_dim, head.k);
  for (int row = 0; row < head.rows; ++row) {
    const float* k = head.k + row * head.qk_stride;
    const float* q = head.q + row * head.qk_stride;
    const Lanes delta = delta_of(load_lanes(head.v + row * head.v_stride + column), read, head.alpha[row], head.beta[row]);
    if (head.record) store_lanes(head.tape_d + row * head.tape_d_stride + column, delta);
    Lanes output;
    if (row + 1 < head.rows) {
      sweep_row<true>(block, head.key_dim, head.alpha[row], delta, k, q, k + head.qk_stride, output, read);
    } else {
      sweep_row<false>(block, head.key_dim, head.alpha[row], delta, k, q, nullptr, output, read);
    }
    store_lanes(head.out + row * head.out_stride + column, output);
  }
}

void gated_norm(const GdnHead& head) {
  for (int row = 0; row < head.rows; ++row) {
    float* out = head.out + row * head.out_stride;
    const float* z = head.z + row * head.z_stride;
    const float mean = sum_of_squares(out, head.value_dim) / static_cast<float>(head.value_dim);
    const float scale = 1.0f / __builtin_sqrtf(mean + head.eps);
    for (int at = 0; at < head.value_dim; at += width) {
      store(out + at, load(out + at) * scale * load(head.gain + at) * silu(load(z + at)));
    }
  }
}

void delta_head(const GdnHead& head) {
  const std::ptrdiff_t floats = std::ptrdiff_t{head.key_dim} * gdn_columns;
  alignas(64) float block[gdn_max_head * gdn_columns];
  for (int column = 0; column < head.value_dim; column += gdn_columns) {
    float* state = head.state + column / gdn_columns * floats;
    __builtin_memcpy(block, state, static_cast<std::size_t>(floats) * sizeof(float));
    for (int row = 0; row < head.kept; ++row) {
      fold_row(block, head.key_dim, head.tape_alpha[row * head.tape_alpha_stride], head.tape_k + row * head.tape_k_stride,
               head.tape_d + row * head.tape_d_stride + column);
    }
    if (head.record && head.kept > 0) __builtin_memcpy(state, block, static_cast<std::size_t>(floats) * sizeof(float));
    run_columns(head, block, column);
    if (!head.record) __builtin_memcpy(state, block, static_cast<std::size_t>(floats) * sizeof(float));
  }
  gated_norm(head);
}

constexpr GdnKernels gdn_kernels = {conv_head, delta_head};

}  // namespace
}  // namespace splash::ops
