// What the kernels of gdn on the GPU share: where things lie, and the arithmetic of a row, operation by operation
// (every contraction is spelled out), so that a row has the same bits whichever kernel runs it.
#pragma once

#include "backend/cuda/lines.cuh"
#include "ops/gdn/gdn_cuda.h"

namespace splash::ops::delta {

constexpr int dim = 128;    // of a key and of a value
constexpr int half = 64;    // value columns of a half of the state
constexpr int history = 3;  // conv_kernel - 1
constexpr int batch = 16;   // rows staged at a time; link::max_block rows fit
static_assert(batch >= link::max_block);

struct Arguments {
  GdnGeometry geometry;
  const float* conv_weights;
  const float* a_log;
  const float* dt_bias;
  const float* norm;
  GdnRows rows;
  MatrixView<float> out;
  cuda::Panel panel;
  GdnTables tables;
};

// Runs launch(arguments) over the segments, in two turns where one has a mark. The copy between them is also what lets
// the second read the state that the first wrote (gdn_cuda.h).
template <class Launch>
void in_turns(cuda::Stream& stream, const Arguments& args, Launch&& launch) {
  const GdnMark& mark = args.tables.mark;
  if (!mark.until) return launch(args);
  Arguments turn = args;
  turn.tables.segments = mark.until;
  launch(turn);
  stream.note(cudaMemcpyAsync(mark.to, mark.from, mark.bytes, cudaMemcpyDeviceToDevice, stream.native()), "mark");
  turn.tables.segments = mark.rest;
  turn.tables.segment_count = 1;
  launch(turn);
}

// As many blocks a multiprocessor as it takes to have all of a launch at once, and the shared memory of a block with which
// so many fit and not one more (of Hopper's 228 KB, 1 KB of it per block the system's). Blocks start as the launch before
// them ends, and the first multiprocessors to be free would get all that fit (measured: 5 % of a step, 9 % of prefill).
inline unsigned blocks_each(const cuda::Stream& stream, const dim3& blocks) {
  return blocks.x * blocks.y * blocks.z / static_cast<unsigned>(stream.facts().multiprocessors) + 1;
}
constexpr std::size_t shared_for(unsigned each) {
  return each > 2 ? 0 : (228 << 10) / (each + 1) - (1 << 10) + 256;
}

// A lane's tape: rows of [k of all key heads, d of all value heads, raw inputs of all channels], then their alphas
// [row][value head]; so whatever the geometry, every vector begins at a multiple of 512 bytes.
__device__ __forceinline__ int tape_stride(int key_heads, int value_heads) {  // floats from one row to the next
  return (key_heads + value_heads) * dim + (2 * key_heads + value_heads) * dim;
}
struct TapeRow {
  float* k;
  float* d;
  float* raw;
  float* alpha;
};
__device__ __forceinline__ TapeRow tape_row(int key_heads, int value_heads, float* tape, int row) {
  const int stride = tape_stride(key_heads, value_heads);  // a tape is far below 2^31 floats
  float* k = tape + row * stride;
  float* d = k + key_heads * dim;
  return {k, d, d + value_heads * dim, tape + link::max_block * stride + row * value_heads};
}

// The state of a value head in memory: [half][float4 j][thread of 256], so that a warp of eight columns reads and
// writes whole lines. Thread: 32 * (column / 8) + 4 * part + column / 2 % 4; j = 4 * (column % 2) + i; the four floats
// are keys 32 i + 4 part + 0..3. A thread's columns are the lane's in a warp too: four neighbouring lanes read the same
// keys of a row, which makes 16-byte reads of shared memory half as long as when they lie eight lanes apart (measured:
// 2.4 cycles a warp against 4.1).
constexpr int state_threads = 256;
__device__ __forceinline__ int part_of(int thread) { return thread % 32 / 4; }
__device__ __forceinline__ int first_column_of(int thread) { return thread / 32 * 8 + thread % 4 * 2; }
__device__ __forceinline__ int state_thread(int column, int part) {
  return column / 8 * 32 + part * 4 + column % 8 / 2;
}
__device__ __forceinline__ float4* state_at(const GdnLane& lane, int value_head, int side, int j, int thread) {
  return reinterpret_cast<float4*>(lane.state) +
         ((static_cast<std::int64_t>(value_head) * 2 + side) * 8 + j) * state_threads + thread;
}

// Good to a few units in the last place, and short: the exact division costs more than everything around it.
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// Convolution + SiLU of one channel; past: the three inputs before this one, oldest first.
__device__ __forceinline__ float convolved(const float4& w, const float (&past)[history], float now) {
  float sum = __fmul_rn(w.x, past[0]);
  sum = fmaf(w.y, past[1], sum);
  sum = fmaf(w.z, past[2], sum);
  sum = fmaf(w.w, now, sum);
  return __fmul_rn(sum, sigmoid(sum));
}

struct Gates {
  float alpha, beta;
};
// Of a row's a and b and the head's a_log and dt_bias.
__device__ __forceinline__ Gates gates_of(float a, float b, float a_log, float dt_bias) {
  a += dt_bias;
  const float softplus = a > 20.0f ? a : log1pf(expf(a));
  return {expf(__fmul_rn(-expf(a_log), softplus)), sigmoid(b)};
}

// q / |q| / sqrt(128) and k / |k| of one row, four columns per lane of a warp; returns their product k . q.
__device__ __forceinline__ float dot4(const float4& a, const float4& b) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, __fmul_rn(a.x, b.x))));
}
__device__ __forceinline__ float normalise(float4& q, float4& k) {
  float qq = dot4(q, q), kk = dot4(k, k), kq = dot4(k, q);
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1) {
    qq += __shfl_xor_sync(0xffffffffu, qq, distance);
    kk += __shfl_xor_sync(0xffffffffu, kk, distance);
    kq += __shfl_xor_sync(0xffffffffu, kq, distance);
  }
  const float q_scale = __fmul_rn(0.08838834764831845f, rsqrtf(qq + 1e-6f)), k_scale = rsqrtf(kk + 1e-6f);
  q.x *= q_scale, q.y *= q_scale, q.z *= q_scale, q.w *= q_scale;
  k.x *= k_scale, k.y *= k_scale, k.z *= k_scale, k.w *= k_scale;
  return kq * q_scale * k_scale;
}

// A thread's 16 keys of a vector, keys 32 i + 4 part + e.
using Keys = float[4][4];
__device__ __forceinline__ void load_vector(const float* vector, int part, Keys& values) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 four = *reinterpret_cast<const float4*>(vector + 32 * i + 4 * part);
    cuda::take_four(four, values[i]);
  }
}
// One column: S^T x over this thread's keys; the eight parts meet by a butterfly (distances 1, 2, 4).
__device__ __forceinline__ float multiply(const Keys& s, const Keys& x) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sum = fmaf(s[i][e], x[i][e], sum);
  }
  return sum;
}
// S <- alpha S + k d^T: the same operations for a new row and for a kept one.
__device__ __forceinline__ void update(Keys& s, float alpha, const Keys& k, float d) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) s[i][e] = fmaf(k[i][e], d, __fmul_rn(alpha, s[i][e]));
  }
}
// d = beta (v - alpha S^T k), o = alpha S^T q + d (k . q): both products are of the old state.
__device__ __forceinline__ float change(float alpha, float beta, float v, float state_key) {
  return __fmul_rn(beta, fmaf(-alpha, state_key, v));
}
__device__ __forceinline__ float output(float alpha, float d, float key_query, float state_query) {
  return fmaf(d, key_query, __fmul_rn(alpha, state_query));
}

// What part `part` of this thread's columns has, to all eight parts.
template <int part>
__device__ __forceinline__ float of_part(float value) {
  float there;  // lane % 4 + 4 * part: the operand's upper byte says which bits of the lane stay its own
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x31f, 0xffffffff;" : "=f"(there) : "f"(value), "n"(part * 4));
  return there;
}

// One row of two columns: S^T k and S^T q meet over the eight parts, d and the output follow, S moves on. The parts share
// the work: after the first exchange a part goes on with column part % 2, after the second with k (part & 2 clear) or q.
// The sums are those of a butterfly, neighbours first.
struct RowStep {
  float d;  // of column part % 2
  float o;  // the same, in parts with part & 2
};
__device__ __forceinline__ RowStep step_row(Keys (&s)[2], const float* k_row, const float* q_row, int part, float alpha,
                                            float beta, float key_query, float v_own) {
  Keys k, q;
  load_vector(k_row, part, k);
  load_vector(q_row, part, q);
  const bool odd = part & 1, of_query = part & 2;
  const float k0 = multiply(s[0], k), k1 = multiply(s[1], k), q0 = multiply(s[0], q), q1 = multiply(s[1], q);
  const float key = (odd ? k1 : k0) + __shfl_xor_sync(0xffffffffu, odd ? k0 : k1, 4);
  const float query = (odd ? q1 : q0) + __shfl_xor_sync(0xffffffffu, odd ? q0 : q1, 4);
  float sum = (of_query ? query : key) + __shfl_xor_sync(0xffffffffu, of_query ? key : query, 8);
  sum += __shfl_xor_sync(0xffffffffu, sum, 16);
  const float changed = change(alpha, beta, v_own, sum);  // where the sum is of k
  const float d0 = of_part<0>(changed), d1 = of_part<1>(changed);
  update(s[0], alpha, k, d0);
  update(s[1], alpha, k, d1);
  const float d = odd ? d1 : d0;
  return {d, output(alpha, d, key_query, sum)};
}

// Sum of squares over 64 columns, eight of them per lane; every lane of the eight gets it.
__device__ __forceinline__ float squares_of_8(const float (&o)[8]) {
  float squares = __fmul_rn(o[0], o[0]);
#pragma unroll
  for (int i = 1; i < 8; ++i) squares = fmaf(o[i], o[i], squares);
  return squares;
}
__device__ __forceinline__ float half_squares(const float (&o)[8]) {
  float squares = squares_of_8(o);
#pragma unroll
  for (int distance = 1; distance < 8; distance <<= 1) squares += __shfl_xor_sync(0xffffffffu, squares, distance);
  return squares;
}
// Gated RMSNorm of a column; squares: of the whole value head.
__device__ __forceinline__ float norm_scale(const Arguments& args, float squares) {
  return rsqrtf(fmaf(squares, 1.0f / dim, args.geometry.rms_eps));
}
__device__ __forceinline__ float silu(float z) { return __fmul_rn(z, sigmoid(z)); }
__device__ __forceinline__ float gated(float o, float scale, float gain, float silu_z) {
  return __fmul_rn(__fmul_rn(__fmul_rn(o, scale), gain), silu_z);
}

}  // namespace splash::ops::delta
