#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/gdn/gdn.h"

namespace splash::ops {

namespace {

// state: [value_heads][key_dim][value_dim]. One tape row: the operands of the rank-one update and the raw conv input.
struct TapeRow {
  float* k;      // [key_heads][key_dim], normalised
  float* d;      // [value_heads][value_dim]
  float* alpha;  // [value_heads]
  float* raw;    // [channels]
};
TapeRow tape_row(const GdnGeometry& g, float* tape, int row) {
  float* k = tape + row * g.tape_row_floats();
  float* d = k + g.key_heads * g.key_dim;
  float* alpha = d + g.value_heads * g.value_dim;
  return {k, d, alpha, alpha + g.value_heads};
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// S <- alpha S (one head).
void decay(const GdnGeometry& g, float* state, float alpha) {
  for (int i = 0; i < g.key_dim * g.value_dim; ++i) state[i] = alpha * state[i];
}
// S <- S + k d^T (one head).
void add_outer(const GdnGeometry& g, float* state, const float* k, const float* d) {
  for (int i = 0; i < g.key_dim; ++i) {
    for (int j = 0; j < g.value_dim; ++j) state[i * g.value_dim + j] = state[i * g.value_dim + j] + k[i] * d[j];
  }
}
// out = S^T x (one head).
void read(const GdnGeometry& g, const float* state, const float* x, std::vector<double>& out) {
  std::fill(out.begin(), out.end(), 0.0);
  for (int i = 0; i < g.key_dim; ++i) {
    for (int j = 0; j < g.value_dim; ++j) out[j] += double{state[i * g.value_dim + j]} * x[i];
  }
}

// Drops the oldest raw input of the conv history and appends `raw`.
void push(const GdnGeometry& g, float* history, const float* raw) {
  const int channels = g.channels(), rows = g.conv_kernel - 1;
  if (rows == 0) return;
  std::memmove(history, history + channels, sizeof(float) * channels * (rows - 1));
  std::memcpy(history + std::int64_t{channels} * (rows - 1), raw, sizeof(float) * channels);
}

// x / sqrt(sum x^2 + 1e-6) * scale.
void l2_normalise(const float* x, int dim, double scale, float* out) {
  double squares = 0;
  for (int i = 0; i < dim; ++i) squares += double{x[i]} * x[i];
  const double factor = scale / std::sqrt(squares + 1e-6);
  for (int i = 0; i < dim; ++i) out[i] = static_cast<float>(x[i] * factor);
}

// conv + SiLU of one row: c[ch] = silu(sum_j w[ch][j] s_{t - kernel + 1 + j}[ch]).
void convolve(const GdnGeometry& g, const GdnWeights& weights, const float* history, const float* raw,
              std::vector<float>& out) {
  const int channels = g.channels(), taps = g.conv_kernel;
  for (int ch = 0; ch < channels; ++ch) {
    double sum = double{weights.conv[std::size_t(ch) * taps + taps - 1]} * raw[ch];
    for (int j = 0; j + 1 < taps; ++j) {
      sum += double{weights.conv[std::size_t(ch) * taps + j]} * history[std::int64_t{j} * channels + ch];
    }
    out[ch] = static_cast<float>(sum * sigmoid(sum));
  }
}

// One row through the recurrence: S <- alpha S; d = beta (v - S^T k); S <- S + k d^T; o = S^T q; then the gated norm.
// The update's operands go to `tape`.
void row(const GdnGeometry& g, const GdnWeights& weights, const GdnRows& rows, int r, float* state, float* history,
         const TapeRow& tape, MatrixView<float> out) {
  const int dk = g.key_dim, dv = g.value_dim, group = g.value_heads / g.key_heads;
  std::vector<float> c(g.channels()), q(std::size_t(g.key_heads) * dk);
  convolve(g, weights, history, rows.qkv.row(r), c);
  for (int head = 0; head < g.key_heads; ++head) {
    l2_normalise(c.data() + head * dk, dk, 1.0 / std::sqrt(double(dk)), q.data() + head * dk);
    l2_normalise(c.data() + (g.key_heads + head) * dk, dk, 1.0, tape.k + head * dk);
  }
  const float* v = c.data() + 2 * g.key_heads * dk;
  std::vector<double> o(dv);
  for (int head = 0; head < g.value_heads; ++head) {
    float* s = state + std::int64_t{head} * dk * dv;
    const float* k = tape.k + head / group * dk;
    float* d = tape.d + head * dv;
    const double beta = sigmoid(rows.b.row(r)[head]);
    const double decay_rate =
        -std::exp(double{weights.a_log[head]}) * softplus(double{rows.a.row(r)[head]} + weights.dt_bias[head]);
    tape.alpha[head] = static_cast<float>(std::exp(decay_rate));
    decay(g, s, tape.alpha[head]);
    read(g, s, k, o);
    for (int j = 0; j < dv; ++j) d[j] = static_cast<float>(beta * (v[head * dv + j] - o[j]));
    add_outer(g, s, k, d);
    read(g, s, q.data() + head / group * dk, o);

    double squares = 0;
    for (const double value : o) squares += value * value;
    const double scale = 1.0 / std::sqrt(squares / dv + double{g.rms_eps});
    for (int j = 0; j < dv; ++j) {
      const double z = rows.z.row(r)[head * dv + j];
      out.row(r)[head * dv + j] = static_cast<float>(o[j] * scale * weights.norm[j] * (z * sigmoid(z)));
    }
  }
  std::memcpy(tape.raw, rows.qkv.row(r), sizeof(float) * g.channels());
  push(g, history, rows.qkv.row(r));
}

}  // namespace

void gdn_fold(ref::Stream&, const GdnGeometry& g, const GdnLane& lane) {
  const int group = g.value_heads / g.key_heads;
  for (int i = 0; i < *lane.kept; ++i) {
    const TapeRow kept = tape_row(g, lane.tape, i);
    for (int head = 0; head < g.value_heads; ++head) {
      float* s = lane.state + std::int64_t{head} * g.key_dim * g.value_dim;
      decay(g, s, kept.alpha[head]);
      add_outer(g, s, kept.k + head / group * g.key_dim, kept.d + head * g.value_dim);
    }
    push(g, lane.conv, kept.raw);
  }
}

void gdn(ref::Stream& stream, const GdnGeometry& g, const GdnWeights& weights, const GdnRows& rows,
         std::span<const GdnSegment> segments, MatrixView<float> out) {
  SPLASH_CHECK(g.key_heads > 0 && g.value_heads % g.key_heads == 0 && rows.qkv.cols == g.channels());
  for (const GdnSegment& part : segments) {
    const bool verify = part.mode == GdnMode::verify;
    SPLASH_CHECK(!verify || part.segment.rows <= link::max_block);
    gdn_fold(stream, g, part.lane);
    // A verify pass works on copies, so that state and conv stay at the last kept row.
    std::vector<float> state, history, scratch;
    if (verify) {
      state.assign(part.lane.state, part.lane.state + g.state_floats());
      history.assign(part.lane.conv, part.lane.conv + g.conv_floats());
    } else {
      scratch.resize(g.tape_row_floats());
    }
    for (int i = 0; i < part.segment.rows; ++i) {
      const TapeRow tape = verify ? tape_row(g, part.lane.tape, i) : tape_row(g, scratch.data(), 0);
      row(g, weights, rows, part.segment.first_row + i, verify ? state.data() : part.lane.state,
          verify ? history.data() : part.lane.conv, tape, out);
    }
  }
}

}  // namespace splash::ops
