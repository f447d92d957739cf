#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/dispatch.h"
#include "ops/gdn/gdn.h"
#include "ops/gdn/gdn_kernels.h"

namespace splash::ops {

namespace {

// The tape of one lane in one layer, by rows of the last verify pass.
struct Tape {
  float* k = nullptr;      // [max_block][key_heads * key_dim], normed
  float* d = nullptr;      // [max_block][value_heads * value_dim]
  float* alpha = nullptr;  // [max_block][value_heads]
  float* raw = nullptr;    // [max_block][channels], inputs of the convolution
};

Tape tape_of(const GdnGeometry& geometry, float* memory) {
  Tape tape;
  tape.k = memory;
  tape.d = tape.k + link::max_block * geometry.key_heads * geometry.key_dim;
  tape.alpha = tape.d + link::max_block * geometry.value_heads * geometry.value_dim;
  tape.raw = tape.alpha + link::max_block * geometry.value_heads;
  return tape;
}

void check_geometry(const GdnGeometry& geometry) {
  SPLASH_CHECK(geometry.value_heads % geometry.key_heads == 0);
  SPLASH_CHECK(geometry.key_dim % gdn_columns == 0 && geometry.key_dim <= gdn_max_head, "key_dim {}", geometry.key_dim);
  SPLASH_CHECK(geometry.value_dim % gdn_columns == 0 && geometry.value_dim <= gdn_max_head, "value_dim {}",
               geometry.value_dim);
  SPLASH_CHECK(geometry.conv_kernel >= 2 && geometry.conv_kernel <= gdn_max_taps, "conv_kernel {}", geometry.conv_kernel);
}

// What one call shares between its two regions.
struct GdnPass {
  const GdnGeometry& geometry;
  const GdnWeights& weights;
  const GdnRows& rows;
  MatrixView<float> out;
  const GdnKernels& kernels;
  int first_row = 0;  // of the scratch matrices in the step's row axis
  MatrixView<float> conv;  // [rows, channels] after convolution, SiLU and norms
  MatrixView<float> alpha, beta;  // [value_heads, rows]
};

// Moves channels [first, first + count) of the convolution's history past the kept rows of the tape.
void fold_history(const GdnGeometry& geometry, const GdnLane& lane, int first, int count) {
  const int kept = *lane.kept, history = geometry.conv_kernel - 1, channels = geometry.channels();
  if (kept == 0) return;
  const Tape tape = tape_of(geometry, lane.tape);
  for (int slot = 0; slot < history; ++slot) {  // ascending: a slot's source lies at or after it
    const int source = slot + kept;
    const float* from = source < history ? lane.conv + std::int64_t{source} * channels
                                         : tape.raw + std::int64_t{source - history} * channels;
    std::memcpy(lane.conv + std::int64_t{slot} * channels + first, from + first, static_cast<std::size_t>(count) * sizeof(float));
  }
}

// After the rows: commit moves the history past them, verify keeps them on the tape.
void keep_inputs(const GdnPass& pass, const GdnSegment& segment, int first, int count) {
  const int rows = segment.segment.rows, history = pass.geometry.conv_kernel - 1, channels = pass.geometry.channels();
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
  const auto input = [&](int row) { return pass.rows.qkv.row(segment.segment.first_row + row) + first; };
  if (segment.mode == GdnMode::verify) {
    const Tape tape = tape_of(pass.geometry, segment.lane.tape);
    for (int row = 0; row < rows; ++row) std::memcpy(tape.raw + std::int64_t{row} * channels + first, input(row), bytes);
    return;
  }
  for (int slot = 0; slot < history; ++slot) {
    const int source = slot + rows;
    const float* from = source < history ? segment.lane.conv + std::int64_t{source} * channels + first
                                         : input(source - history);
    std::memcpy(segment.lane.conv + std::int64_t{slot} * channels + first, from, bytes);
  }
}

// Unit u: query head u, key head u - key_heads, or value head u - 2 key_heads.
void conv_unit(const GdnPass& pass, const GdnSegment& segment, int unit) {
  const GdnGeometry& geometry = pass.geometry;
  const int first_value = 2 * geometry.key_heads;
  const bool is_value = unit >= first_value;
  GdnConvHead head;
  head.dim = is_value ? geometry.value_dim : geometry.key_dim;
  const int channel = is_value ? first_value * geometry.key_dim + (unit - first_value) * geometry.value_dim
                               : unit * geometry.key_dim;
  fold_history(geometry, segment.lane, channel, head.dim);
  head.taps = geometry.conv_kernel;
  head.weights = pass.weights.conv.data() + std::int64_t{channel} * head.taps;
  head.history = segment.lane.conv + channel;
  head.history_stride = geometry.channels();
  head.x = pass.rows.qkv.row(segment.segment.first_row) + channel;
  head.x_stride = pass.rows.qkv.stride;
  head.rows = segment.segment.rows;
  if (unit < geometry.key_heads) head.norm_scale = 1.0f / std::sqrt(static_cast<float>(geometry.key_dim));
  else if (!is_value) head.norm_scale = 1.0f;
  head.out = pass.conv.row(segment.segment.first_row - pass.first_row) + channel;
  head.out_stride = pass.conv.stride;
  pass.kernels.conv_head(head);
  keep_inputs(pass, segment, channel, head.dim);
}

// beta = sigmoid(b); alpha = exp(g), g = -exp(A_log) softplus(a + dt_bias): in double, a few numbers per head.
void gates(const GdnPass& pass, const Segment& segment, int value_head) {
  const double rate = std::exp(static_cast<double>(pass.weights.a_log[static_cast<std::size_t>(value_head)]));
  const double bias = pass.weights.dt_bias[static_cast<std::size_t>(value_head)];
  for (int row = 0; row < segment.rows; ++row) {
    const int at = segment.first_row + row;
    const double x = pass.rows.a.row(at)[value_head] + bias;
    const double softplus = x > 20 ? x : std::log1p(std::exp(x));
    pass.alpha.row(value_head)[at - pass.first_row] = static_cast<float>(std::exp(-rate * softplus));
    pass.beta.row(value_head)[at - pass.first_row] =
        static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(pass.rows.b.row(at)[value_head]))));
  }
}

void fill_tape(GdnHead& head, const GdnGeometry& geometry, const GdnLane& lane, int value_head) {
  const Tape tape = tape_of(geometry, lane.tape);
  const int key_head = value_head / (geometry.value_heads / geometry.key_heads);
  head.key_dim = geometry.key_dim;
  head.value_dim = geometry.value_dim;
  head.state = lane.state + std::int64_t{value_head} * geometry.key_dim * geometry.value_dim;
  head.kept = *lane.kept;
  head.tape_k = tape.k + key_head * geometry.key_dim;
  head.tape_k_stride = geometry.key_heads * geometry.key_dim;
  head.tape_d = tape.d + value_head * geometry.value_dim;
  head.tape_d_stride = geometry.value_heads * geometry.value_dim;
  head.tape_alpha = tape.alpha + value_head;
  head.tape_alpha_stride = geometry.value_heads;
}

// One key head and its value heads: they share k on the tape, so one thread reads the old tape and writes the new one.
void delta_unit(const GdnPass& pass, const GdnSegment& segment, int key_head) {
  const GdnGeometry& geometry = pass.geometry;
  const int group = geometry.value_heads / geometry.key_heads, rows = segment.segment.rows;
  const int row = segment.segment.first_row, local = row - pass.first_row;
  const int key_width = geometry.key_heads * geometry.key_dim;
  const Tape tape = tape_of(geometry, segment.lane.tape);
  const float* k = pass.conv.row(local) + key_width + key_head * geometry.key_dim;
  for (int value_head = key_head * group; value_head < (key_head + 1) * group; ++value_head) {
    gates(pass, segment.segment, value_head);
    GdnHead head;
    fill_tape(head, geometry, segment.lane, value_head);
    head.rows = rows;
    head.q = k - key_width;
    head.k = k;
    head.qk_stride = head.v_stride = pass.conv.stride;
    head.v = pass.conv.row(local) + 2 * key_width + value_head * geometry.value_dim;
    head.alpha = pass.alpha.row(value_head) + local;
    head.beta = pass.beta.row(value_head) + local;
    head.record = segment.mode == GdnMode::verify;
    head.z = pass.rows.z.row(row) + value_head * geometry.value_dim;
    head.z_stride = pass.rows.z.stride;
    head.gain = pass.weights.norm.data();
    head.eps = geometry.rms_eps;
    head.out = pass.out.row(row) + value_head * geometry.value_dim;
    head.out_stride = pass.out.stride;
    pass.kernels.delta_head(head);
    if (!head.record) continue;
    for (int r = 0; r < rows; ++r) tape.alpha[r * geometry.value_heads + value_head] = head.alpha[r];
  }
  if (segment.mode != GdnMode::verify) return;
  for (int r = 0; r < rows; ++r) {
    std::memcpy(tape.k + r * key_width + key_head * geometry.key_dim, k + r * pass.conv.stride,
                static_cast<std::size_t>(geometry.key_dim) * sizeof(float));
  }
}

}  // namespace

void gdn(cpu::Stream& stream, const GdnGeometry& geometry, const GdnWeights& weights, const GdnRows& rows,
         std::span<const GdnSegment> segments, MatrixView<float> out) {
  check_geometry(geometry);
  if (segments.empty()) return;
  int first = segments[0].segment.first_row, last = first;
  for (const GdnSegment& segment : segments) {
    SPLASH_CHECK(segment.mode == GdnMode::commit || segment.segment.rows <= link::max_block, "{} verify rows",
                 segment.segment.rows);
    first = std::min(first, segment.segment.first_row);
    last = std::max(last, segment.segment.first_row + segment.segment.rows);
  }
  Arena& scratch = stream.op_scratch();
  GdnPass pass{geometry, weights, rows, out, cpu::kernels_for(stream.isa(), gdn_scalar, gdn_avx2, gdn_avx512vnni), first};
  pass.conv = scratch.matrix<float>(last - first, geometry.channels());
  pass.alpha = scratch.matrix<float>(geometry.value_heads, last - first);
  pass.beta = scratch.matrix<float>(geometry.value_heads, last - first);

  const int count = static_cast<int>(segments.size());
  const int conv_units = 2 * geometry.key_heads + geometry.value_heads;
  // Unit-major: with several lanes a thread still owns the same heads, whose weights stay in its cache.
  stream.pool().split(conv_units * count, 1, [&](int begin, int end) {
    for (int task = begin; task < end; ++task) {
      conv_unit(pass, segments[static_cast<std::size_t>(task % count)], task / count);
    }
  });
  stream.pool().split(geometry.key_heads * count, 1, [&](int begin, int end) {
    for (int task = begin; task < end; ++task) {
      delta_unit(pass, segments[static_cast<std::size_t>(task % count)], task / count);
    }
  });
}

void gdn_fold(cpu::Stream& stream, const GdnGeometry& geometry, const GdnLane& lane) {
  check_geometry(geometry);
  if (*lane.kept == 0) return;
  const GdnKernels& kernels = cpu::kernels_for(stream.isa(), gdn_scalar, gdn_avx2, gdn_avx512vnni);
  fold_history(geometry, lane, 0, geometry.channels());
  stream.pool().split(geometry.value_heads, 1, [&](int begin, int end) {
    for (int value_head = begin; value_head < end; ++value_head) {
      GdnHead head;
      fill_tape(head, geometry, lane, value_head);
      kernels.delta_head(head);
    }
  });
}

}  // namespace splash::ops
