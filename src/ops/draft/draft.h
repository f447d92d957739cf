// The draft's own operations (dflash2.md 1.3, 2.1, 2.2).
#pragma once

#include <cstdint>
#include <span>

#include "base/matrix.h"
#include "link/token.h"
#include "ops/streams.h"
#include "pack/weight.h"

namespace splash::ops {

// Two-tap dynamic depthwise convolution over blocks of `block` rows:
//   out[t] (+)= (base[stage][0] + p[t][stage][0][ch / group]) * y[t] + (base[stage][1] + p[t][stage][1][ch / group]) * y[t-1]
// with y[-1] = 0 at each block's first row.
struct BlockConv {
  std::span<const float> base;  // [2][2][H]: stage, tap, channel
  int group = 16;               // channels per coefficient
  int stage = 0;                // 0 before the sublayer, 1 after it
  int block = 8;                // rows per block; the row count is a multiple of it
};
// `coefficients` [rows, 4 * H / group] (stage, tap, group), the kernel projection of the normed sublayer input.
// accumulate: out += (the residual), else out =. y and out must not overlap.
void block_conv(ref::Stream& stream, const BlockConv& conv, MatrixView<const float> coefficients,
                MatrixView<const float> y, bool accumulate, MatrixView<float> out);
void block_conv(cpu::Stream& stream, const BlockConv& conv, MatrixView<const float> coefficients,
                MatrixView<const float> y, bool accumulate, MatrixView<float> out);

// What a sublayer brings for its two convolutions.
struct BlockConvWeights {
  std::span<const float> base;  // as BlockConv has it
  pack::Weight projection;      // [4 H / group, H]: the coefficients of the sublayer's normed input
};

// The residual stream x [rows, H] between two sublayers of the draft (fused.h):
//   x += conv_1(y) of the one that ends, n = rms_norm(x) * gain, coefficients = projection n,
//   convolved = conv_0(n) of the one that begins, for linears.
// A device may leave n and conv_0's own coefficients unwritten.
struct DraftBoundary {
  struct End {
    std::span<const float> base;
    MatrixView<const float> coefficients;  // [rows, 4 H / group], of its own boundary
    MatrixView<const float> y;             // what the sublayer made; empty: none ends (the first boundary)
  };
  End end;
  std::span<const float> gain;
  float eps = 0;
  BlockConvWeights conv;
  int group = 16, block = 8;
  MatrixView<float> normed, coefficients, convolved;  // coefficients: not those of the end
};

struct DraftAttentionGeometry {
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 128;  // all of it rotates, half-split pairing
  double rope_theta = 1e7;
  float rms_eps = 1e-6f;
  int window = 0;  // strict: query position - key position < window; 0 = full
};

// Context keys and values of one lane in one draft layer: a ring of `capacity` positions (>= window; for full attention
// the context limit), position p in slot p % capacity. [capacity][kv_heads][head_dim] each; keys are normed and rotated.
struct DraftRing {
  float* keys = nullptr;
  float* values = nullptr;
  int capacity = 0;
};

struct DraftContextSegment {
  int first_row = 0;
  int rows = 0;
  int position = 0;  // of the first row
  DraftRing ring;
};
// Stores projected context rows (k, v [rows, kv_heads * head_dim]) into the rings: k is normed and rotated here.
void draft_context(ref::Stream& stream, const DraftAttentionGeometry& geometry, std::span<const float> k_norm,
                   MatrixView<const float> k, MatrixView<const float> v, std::span<const DraftContextSegment> segments);
void draft_context(cpu::Stream& stream, const DraftAttentionGeometry& geometry, std::span<const float> k_norm,
                   MatrixView<const float> k, MatrixView<const float> v, std::span<const DraftContextSegment> segments);

// One layer's share of a context that several layers take their keys and values from.
struct DraftContextLayer {
  pack::Weight k, v;
  std::span<const float> k_norm;
  std::span<const DraftContextSegment> segments;
};

struct DraftBlockSegment {
  int first_row = 0;  // `block` rows: the anchor and its masked slots
  int position = 0;   // of the anchor = committed length = number of context positions
  DraftRing ring;
};
// Block attention: bidirectional inside the block, plus the context positions inside each row's window. Block keys and
// values are scratch, the rings are only read. out [rows, query_heads * head_dim].
void draft_attention(ref::Stream& stream, const DraftAttentionGeometry& geometry, std::span<const float> q_norm,
                     std::span<const float> k_norm, MatrixView<const float> q, MatrixView<const float> k,
                     MatrixView<const float> v, int block, std::span<const DraftBlockSegment> segments,
                     MatrixView<float> out);
void draft_attention(cpu::Stream& stream, const DraftAttentionGeometry& geometry, std::span<const float> q_norm,
                     std::span<const float> k_norm, MatrixView<const float> q, MatrixView<const float> k,
                     MatrixView<const float> v, int block, std::span<const DraftBlockSegment> segments,
                     MatrixView<float> out);

// The `k` largest of each row, value descending, ties to the lower id. tokens, values [rows, k].
// Ids >= limit are left out (padding of the vocabulary).
void top_k(ref::Stream& stream, MatrixView<const float> logits, int limit, MatrixView<Token> tokens,
           MatrixView<float> values);
void top_k(cpu::Stream& stream, MatrixView<const float> logits, int limit, MatrixView<Token> tokens,
           MatrixView<float> values);

}  // namespace splash::ops
