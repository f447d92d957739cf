#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/dispatch.h"
#include "ops/draft/draft.h"
#include "ops/draft/draft_attention_kernels.h"

namespace splash::ops {

namespace {

void check_geometry(const DraftAttentionGeometry& geometry) {
  SPLASH_CHECK(geometry.query_heads % geometry.kv_heads == 0);
  SPLASH_CHECK(geometry.head_dim % 32 == 0 && geometry.head_dim <= attention_max_head, "head_dim {}", geometry.head_dim);
}

const DraftAttentionKernels& kernels_of(const cpu::Stream& stream) {
  return cpu::kernels_for(stream.isa(), draft_attention_scalar, draft_attention_avx2, draft_attention_avx512vnni);
}

// Norm and rotation of all heads of one row.
void rotate_row(const DraftAttentionKernels& kernels, const DraftAttentionGeometry& geometry, const cpu::RopeTable& rope,
                std::span<const float> gain, int position, int heads, const float* x, float* out) {
  float cosines[attention_max_head / 2], sines[attention_max_head / 2];
  rope.angles(position, cosines, sines);
  const RotateHead head{gain.data(), geometry.head_dim, geometry.head_dim, geometry.rms_eps, cosines, sines};
  for (int h = 0; h < heads; ++h) kernels.rotate_head(head, x + h * geometry.head_dim, out + h * geometry.head_dim);
}

struct Pass {
  const DraftAttentionGeometry& geometry;
  const DraftAttentionKernels& kernels;
  int block;
  MatrixView<float> q, k;  // rotated; q includes 1 / sqrt(head_dim)
  MatrixView<const float> v;
  MatrixView<float> out;
};

// First context position that slot `slot` of the block sees: query position - key position < window.
int left_edge(const DraftAttentionGeometry& geometry, const DraftBlockSegment& segment, int slot) {
  if (geometry.window == 0) return 0;
  return std::clamp(segment.position + slot - geometry.window + 1, 0, segment.position);
}

// All query heads of one kv head of one block: the context in chunks that begin at multiples of 32, then the block.
void attend_head(const Pass& pass, const DraftBlockSegment& segment, int kv_head, DraftQuery* queries, float* sums) {
  const DraftAttentionGeometry& geometry = pass.geometry;
  const int group = geometry.query_heads / geometry.kv_heads, dim = geometry.head_dim, count = pass.block * group;
  std::memset(sums, 0, static_cast<std::size_t>(count) * dim * sizeof(float));
  for (int q = 0; q < count; ++q) {
    const int row = segment.first_row + q / group, head = kv_head * group + q % group;
    queries[q] = {pass.q.row(row) + head * dim, 0, sums + q * dim, -std::numeric_limits<float>::infinity(), 0.0f};
  }
  DraftKeys keys;
  const std::int64_t slot_floats = std::int64_t{geometry.kv_heads} * dim;
  for (int first = left_edge(geometry, segment, 0) / draft_chunk * draft_chunk; first < segment.position; first += draft_chunk) {
    keys.count = std::min(draft_chunk, segment.position - first);
    for (int key = 0; key < keys.count; ++key) {
      const std::int64_t at = (first + key) % segment.ring.capacity * slot_floats + std::int64_t{kv_head} * dim;
      keys.keys[key] = segment.ring.keys + at;
      keys.values[key] = segment.ring.values + at;
    }
    for (int q = 0; q < count; ++q) queries[q].first_key = std::max(0, left_edge(geometry, segment, q / group) - first);
    pass.kernels.attend_chunk(keys, dim, queries, count);
  }
  keys.count = pass.block;
  for (int key = 0; key < pass.block; ++key) {
    keys.keys[key] = pass.k.row(segment.first_row + key) + kv_head * dim;
    keys.values[key] = pass.v.row(segment.first_row + key) + kv_head * dim;
  }
  for (int q = 0; q < count; ++q) queries[q].first_key = 0;
  pass.kernels.attend_chunk(keys, dim, queries, count);
  for (int q = 0; q < count; ++q) {
    pass.kernels.finish(queries[q], dim, pass.out.row(segment.first_row + q / group) + (kv_head * group + q % group) * dim);
  }
}

}  // namespace

void draft_context(cpu::Stream& stream, const DraftAttentionGeometry& geometry, std::span<const float> k_norm,
                   MatrixView<const float> k, MatrixView<const float> v,
                   std::span<const DraftContextSegment> segments) {
  check_geometry(geometry);
  const DraftAttentionKernels& kernels = kernels_of(stream);
  const cpu::RopeTable& rope = stream.rope(geometry.rope_theta, geometry.head_dim);
  const std::int64_t slot_floats = std::int64_t{geometry.kv_heads} * geometry.head_dim;
  for (const DraftContextSegment& segment : segments) {
    // A segment longer than the ring overwrites its own first rows: only the last `capacity` are stored.
    const int skipped = std::max(0, segment.rows - segment.ring.capacity);
    stream.pool().split(segment.rows - skipped, 4, [&](int first, int last) {
      for (int r = first + skipped; r < last + skipped; ++r) {
        const int position = segment.position + r, row = segment.first_row + r;
        const std::int64_t at = position % segment.ring.capacity * slot_floats;
        rotate_row(kernels, geometry, rope, k_norm, position, geometry.kv_heads, k.row(row), segment.ring.keys + at);
        std::memcpy(segment.ring.values + at, v.row(row), static_cast<std::size_t>(slot_floats) * sizeof(float));
      }
    });
  }
}

void draft_attention(cpu::Stream& stream, const DraftAttentionGeometry& geometry, std::span<const float> q_norm,
                     std::span<const float> k_norm, MatrixView<const float> q, MatrixView<const float> k,
                     MatrixView<const float> v, int block, std::span<const DraftBlockSegment> segments,
                     MatrixView<float> out) {
  check_geometry(geometry);
  SPLASH_CHECK(block >= 1 && block <= draft_chunk, "block of {}", block);
  Arena& scratch = stream.op_scratch();
  Pass pass{geometry, kernels_of(stream), block, {}, {}, v, out};
  pass.q = scratch.matrix<float>(q.rows, q.cols);
  pass.k = scratch.matrix<float>(k.rows, k.cols);
  const cpu::RopeTable& rope = stream.rope(geometry.rope_theta, geometry.head_dim);
  const float root = 1.0f / std::sqrt(static_cast<float>(geometry.head_dim));
  const int count = static_cast<int>(segments.size());
  stream.pool().split(count * block, 1, [&](int first, int last) {
    for (int task = first; task < last; ++task) {
      const DraftBlockSegment& segment = segments[static_cast<std::size_t>(task / block)];
      const int slot = task % block, row = segment.first_row + slot, position = segment.position + slot;
      rotate_row(pass.kernels, geometry, rope, q_norm, position, geometry.query_heads, q.row(row), pass.q.row(row));
      for (int i = 0; i < q.cols; ++i) pass.q.row(row)[i] *= root;
      rotate_row(pass.kernels, geometry, rope, k_norm, position, geometry.kv_heads, k.row(row), pass.k.row(row));
    }
  });
  const int threads = stream.pool().threads(), width = block * (geometry.query_heads / geometry.kv_heads);
  auto* queries = scratch.allocate<DraftQuery>(static_cast<std::size_t>(threads) * width);
  auto* sums = scratch.allocate<float>(static_cast<std::size_t>(threads) * width * geometry.head_dim);
  stream.pool().run([&](int thread) {
    const int tasks = count * geometry.kv_heads;
    for (int task = tasks * thread / threads; task < tasks * (thread + 1) / threads; ++task) {
      attend_head(pass, segments[static_cast<std::size_t>(task / geometry.kv_heads)], task % geometry.kv_heads,
                  queries + thread * width, sums + std::int64_t{thread} * width * geometry.head_dim);
    }
  });
}

}  // namespace splash::ops
