#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cpu/dispatch.h"
#include "ops/attention/attention.h"
#include "ops/attention/attention_kernels.h"

namespace splash::ops {

static_assert(attention_page == link::page_tokens);

namespace {

// Rows of one segment that meet a page together: enough queries to pay for reading it, few enough for the second-level
// cache to hold their sums.
constexpr int group_rows = 8;

struct AttentionPass {
  const AttentionGeometry& geometry;
  const AttentionWeights& weights;
  const AttentionRows& rows;
  const KvPool& pool;
  int layer;
  MatrixView<float> out;
  const AttentionKernels& kernels;
  const cpu::RopeTable& rope;
  int first_row = 0;
  std::int16_t* query_codes = nullptr;  // [rows][query_heads][head_dim]
  float* query_scales = nullptr;        // [rows][query_heads]
};

AttentionHeadPage page_at(const AttentionPass& pass, const Segment& segment, int page, int kv_head) {
  const PageId id = segment.pages[static_cast<std::size_t>(page)];
  return head_page(pass.pool.at(id, pass.layer), pass.geometry.head_dim, kv_head);
}

// Norm, rotation and storage of one row: its keys and values into their page, its queries as 16-bit codes.
void prepare_row(const AttentionPass& pass, const Segment& segment, int r) {
  const AttentionGeometry& geometry = pass.geometry;
  const int row = segment.first_row + r, position = segment.position + r, dim = geometry.head_dim;
  float cosines[attention_max_head / 2], sines[attention_max_head / 2], rotated[attention_max_head];
  pass.rope.angles(position, cosines, sines);
  RotateHead head{pass.weights.k_norm.data(), dim, geometry.rotary_dim, geometry.rms_eps, cosines, sines};
  for (int kv_head = 0; kv_head < geometry.kv_heads; ++kv_head) {
    pass.kernels.rotate_head(head, pass.rows.k.row(row) + kv_head * dim, rotated);
    pass.kernels.store_token(page_at(pass, segment, position / attention_page, kv_head), position % attention_page, dim,
                             rotated, pass.rows.v.row(row) + kv_head * dim);
  }
  head.gain = pass.weights.q_norm.data();
  const float root = 1.0f / std::sqrt(static_cast<float>(dim));
  for (int query_head = 0; query_head < geometry.query_heads; ++query_head) {
    const std::int64_t at = std::int64_t{row - pass.first_row} * geometry.query_heads + query_head;
    pass.kernels.rotate_head(head, pass.rows.q_gate.row(row) + 2 * query_head * dim, rotated);
    pass.query_scales[at] = pass.kernels.quantise_query(rotated, dim, pass.query_codes + at * dim) * root;
  }
}

// `rows` rows of a segment from row `first` on and all query heads of one kv head, page by page.
void attend_group(const AttentionPass& pass, const Segment& segment, int first, int rows, int kv_head, AttentionQuery* queries,
                  float* sums) {
  const AttentionGeometry& geometry = pass.geometry;
  const int group = geometry.query_heads / geometry.kv_heads, dim = geometry.head_dim, count = rows * group;
  std::memset(sums, 0, static_cast<std::size_t>(count) * dim * sizeof(float));
  for (int q = 0; q < count; ++q) {  // row-major: positions ascend
    const int r = first + q / group;
    const std::int64_t at =
        std::int64_t{segment.first_row + r - pass.first_row} * geometry.query_heads + kv_head * group + q % group;
    queries[q] = {pass.query_codes + at * dim, pass.query_scales[at], segment.position + r, sums + q * dim,
                  -std::numeric_limits<float>::infinity(), 0.0f};
  }
  int active = 0;  // queries from here on see the page
  const int last_page = (segment.position + first + rows - 1) / attention_page;
  for (int page = 0; page <= last_page; ++page) {
    while (queries[active].position < page * attention_page) ++active;
    pass.kernels.attend_page(page_at(pass, segment, page, kv_head), page * attention_page, dim, queries + active,
                             count - active);
  }
  for (int q = 0; q < count; ++q) {
    const int row = segment.first_row + first + q / group, query_head = kv_head * group + q % group;
    pass.kernels.finish(queries[q], pass.rows.q_gate.row(row) + (2 * query_head + 1) * dim, dim,
                        pass.out.row(row) + query_head * dim);
  }
}

struct Task {
  const Segment* segment;
  int first, rows, kv_head;
  std::int64_t cost;  // pages times queries
};

// Tasks of up to group_rows rows, of fewer where that leaves threads without one (a row's bits do not depend on its task).
std::vector<Task> tasks_of(const AttentionPass& pass, std::span<const Segment> segments, int threads) {
  int most_rows = 0, task_rows = group_rows;
  for (const Segment& segment : segments) most_rows = std::max(most_rows, segment.rows);
  const auto count = [&] {
    int tasks = 0;
    for (const Segment& segment : segments) tasks += (segment.rows + task_rows - 1) / task_rows * pass.geometry.kv_heads;
    return tasks;
  };
  while (task_rows > 1 && count() < threads) task_rows = (std::min(task_rows, most_rows) + 1) / 2;
  std::vector<Task> tasks;
  for (const Segment& segment : segments) {
    for (int kv_head = 0; kv_head < pass.geometry.kv_heads; ++kv_head) {
      for (int first = 0; first < segment.rows; first += task_rows) {
        const int rows = std::min(task_rows, segment.rows - first);
        tasks.push_back({&segment, first, rows, kv_head,
                         std::int64_t{rows} * ((segment.position + first + rows - 1) / attention_page + 1)});
      }
    }
  }
  return tasks;
}

void check_call(const AttentionGeometry& geometry, const AttentionRows& rows, std::span<const Segment> segments,
                const KvPool& pool) {
  const int dim = geometry.head_dim;
  SPLASH_CHECK(pool.geometry.format == KvFormat::int8, "the cpu keeps int8 pages");
  SPLASH_CHECK(geometry.query_heads % geometry.kv_heads == 0 && pool.geometry.kv_heads == geometry.kv_heads &&
               pool.geometry.head_dim == dim);
  SPLASH_CHECK(dim % 32 == 0 && dim <= attention_max_head, "head_dim {}", dim);
  SPLASH_CHECK(geometry.rotary_dim % 32 == 0 && geometry.rotary_dim <= dim, "rotary_dim {}", geometry.rotary_dim);
  SPLASH_CHECK(rows.q_gate.cols == 2 * geometry.query_heads * dim && rows.k.cols == geometry.kv_heads * dim &&
               rows.v.cols == geometry.kv_heads * dim);
  for (const Segment& segment : segments) {
    const auto positions = static_cast<std::int64_t>(segment.pages.size()) * attention_page;
    SPLASH_CHECK(segment.position + segment.rows <= positions, "{} + {} rows on {} pages", segment.position, segment.rows,
                 segment.pages.size());
  }
}

}  // namespace

void attention(cpu::Stream& stream, const AttentionGeometry& geometry, const AttentionWeights& weights,
               const AttentionRows& rows, std::span<const Segment> segments, const KvPool& pool, int layer,
               MatrixView<float> out) {
  check_call(geometry, rows, segments, pool);
  if (segments.empty()) return;
  Arena& scratch = stream.op_scratch();
  AttentionPass pass{geometry, weights, rows, pool, layer, out,
            cpu::kernels_for(stream.isa(), attention_scalar, attention_avx2, attention_avx512vnni),
            stream.rope(geometry.rope_theta, geometry.rotary_dim)};
  int last = 0;
  pass.first_row = segments[0].first_row;
  std::vector<std::pair<const Segment*, int>> row_list;
  for (const Segment& segment : segments) {
    pass.first_row = std::min(pass.first_row, segment.first_row);
    last = std::max(last, segment.first_row + segment.rows);
    for (int r = 0; r < segment.rows; ++r) row_list.emplace_back(&segment, r);
  }
  const std::size_t queries = static_cast<std::size_t>(last - pass.first_row) * geometry.query_heads;
  pass.query_codes = scratch.allocate<std::int16_t>(queries * geometry.head_dim);
  pass.query_scales = scratch.allocate<float>(queries);
  stream.pool().split(static_cast<int>(row_list.size()), 1, [&](int begin, int end) {
    for (int at = begin; at < end; ++at) {
      const auto& [segment, r] = row_list[static_cast<std::size_t>(at)];
      prepare_row(pass, *segment, r);
    }
  });

  const int threads = stream.pool().threads();
  const std::vector<Task> tasks = tasks_of(pass, segments, threads);
  std::int64_t total = 0;
  for (const Task& task : tasks) total += task.cost;
  const int width = group_rows * (geometry.query_heads / geometry.kv_heads);
  auto* query_states = scratch.allocate<AttentionQuery>(static_cast<std::size_t>(threads) * width);
  auto* sums = scratch.allocate<float>(static_cast<std::size_t>(threads) * width * geometry.head_dim);
  stream.pool().run([&](int thread) {
    std::int64_t at = 0;  // a task belongs to the thread in whose share of the cost its middle lies
    for (const Task& task : tasks) {
      const std::int64_t middle = 2 * at + task.cost;
      at += task.cost;
      if (middle * threads / (2 * total) != thread) continue;
      attend_group(pass, *task.segment, task.first, task.rows, task.kv_head, query_states + thread * width,
                   sums + std::int64_t{thread} * width * geometry.head_dim);
    }
  });
}

}  // namespace splash::ops
