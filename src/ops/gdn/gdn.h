// Gated DeltaNet mixer core (qwen-models.md 2.4): causal depthwise convolution + SiLU, L2-normalised q and k, gates, the
// delta rule, gated RMSNorm. Everything between the input projections and out_proj, for all lanes of a step.
//
// Lazy commit (design/step.md): a verify pass runs its rows from the state at rest without storing the result; it records
// the operands of each row on a tape. How many of those rows were kept is written to `kept` afterwards; the next call for
// that lane first applies the kept rows (S <- alpha S + k d^T, the very operations of the pass itself, so the bits are
// those of an unspeculated run), stores S once, and goes on. One read and one write of the state per step.
#pragma once

#include <cstdint>
#include <span>

#include "base/matrix.h"
#include "link/limits.h"
#include "ops/segment.h"
#include "ops/streams.h"

namespace splash::ops {

struct GdnGeometry {
  int key_heads = 0;
  int value_heads = 0;  // value head j reads key head j / (value_heads / key_heads)
  int key_dim = 128;
  int value_dim = 128;
  int conv_kernel = 4;
  float rms_eps = 1e-6f;

  int channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
  // Floats of one lane in one layer.
  std::int64_t state_floats() const { return std::int64_t{value_heads} * key_dim * value_dim; }
  std::int64_t conv_floats() const { return std::int64_t{conv_kernel - 1} * channels(); }
  std::int64_t tape_row_floats() const {
    return std::int64_t{key_heads} * key_dim + std::int64_t{value_heads} * value_dim + value_heads + channels();
  }
};

struct GdnWeights {
  std::span<const float> conv;     // [channels][conv_kernel], the last tap meets the current row
  std::span<const float> a_log;    // [value_heads]
  std::span<const float> dt_bias;  // [value_heads]
  std::span<const float> norm;     // [value_dim], plain gain
};

// One lane in one layer. The layouts of `state` and `tape` inside their sizes belong to the stream's implementation; a
// zeroed state, conv and kept = 0 is the empty sequence. At rest (kept == 0) state and conv are all there is.
struct GdnLane {
  float* state = nullptr;  // state_floats()
  float* conv = nullptr;   // conv_floats(): the last conv_kernel - 1 raw inputs, oldest first, [kernel-1][channels]
  float* tape = nullptr;   // link::max_block * tape_row_floats()
  int* kept = nullptr;     // rows of the last verify pass that count; shared by all layers of the lane
};

enum class GdnMode {
  commit,  // prefill: rows are final, the state is stored after them
  verify,  // rows (<= link::max_block) are proposals: the state is not advanced by them, the tape is written
};

struct GdnSegment {
  Segment segment;
  GdnLane lane;
  GdnMode mode = GdnMode::commit;
};

struct GdnRows {
  MatrixView<const float> qkv;  // [rows, channels] raw in_proj_qkv output: all q heads, all k heads, all v heads
  MatrixView<const float> z;    // [rows, value_heads * value_dim]
  MatrixView<const float> b;    // [rows, value_heads]
  MatrixView<const float> a;    // [rows, value_heads]
};

// out [rows, value_heads * value_dim]. Neither call changes `kept`: `*kept` is shared by the layers of a lane, so the step
// sets it (to 0 after a commit pass, to the number of kept rows after accept) once all layers have run.
void gdn(ref::Stream& stream, const GdnGeometry& geometry, const GdnWeights& weights, const GdnRows& rows,
         std::span<const GdnSegment> segments, MatrixView<float> out);
void gdn(cpu::Stream& stream, const GdnGeometry& geometry, const GdnWeights& weights, const GdnRows& rows,
         std::span<const GdnSegment> segments, MatrixView<float> out);

// Brings a lane's layer to rest: applies the kept tape rows to state and conv. The caller sets *kept = 0 when all layers
// are folded.
void gdn_fold(ref::Stream& stream, const GdnGeometry& geometry, const GdnLane& lane);
void gdn_fold(cpu::Stream& stream, const GdnGeometry& geometry, const GdnLane& lane);

}  // namespace splash::ops
