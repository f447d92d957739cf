#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/draft/draft.h"
#include "ops/rotary_ref.h"

namespace splash::ops {

void block_conv(ref::Stream&, const BlockConv& conv, MatrixView<const float> coefficients, MatrixView<const float> y,
                bool accumulate, MatrixView<float> out) {
  const int hidden = y.cols, groups = hidden / conv.group;
  SPLASH_CHECK(y.rows % conv.block == 0 && coefficients.cols == 4 * groups && coefficients.rows == y.rows &&
               conv.base.size() == std::size_t(4) * hidden && out.rows == y.rows && out.cols == hidden);
  for (int t = 0; t < y.rows; ++t) {
    const bool first = t % conv.block == 0;  // the predecessor tap never leaves the block
    for (int ch = 0; ch < hidden; ++ch) {
      const auto tap = [&](int j) {
        return double{conv.base[std::size_t(conv.stage * 2 + j) * hidden + ch]} +
               coefficients.row(t)[(conv.stage * 2 + j) * groups + ch / conv.group];
      };
      const double value = tap(0) * y.row(t)[ch] + (first ? 0.0 : tap(1) * y.row(t - 1)[ch]);
      out.row(t)[ch] = static_cast<float>(accumulate ? out.row(t)[ch] + value : value);
    }
  }
}

namespace {

// One head of keys: normed, then all of it rotated.
void make_key(const DraftAttentionGeometry& geometry, std::span<const float> norm, const float* from, int position,
              float* to) {
  const std::span<float> key(to, geometry.head_dim);
  reference::norm_head(std::span(from, geometry.head_dim), norm, geometry.rms_eps, key);
  reference::rotate_head(key, geometry.head_dim, geometry.rope_theta, position);
}

}  // namespace

void draft_context(ref::Stream&, const DraftAttentionGeometry& geometry, std::span<const float> k_norm,
                   MatrixView<const float> k, MatrixView<const float> v,
                   std::span<const DraftContextSegment> segments) {
  const int d = geometry.head_dim, width = geometry.kv_heads * d;
  for (const DraftContextSegment& segment : segments) {
    for (int i = 0; i < segment.rows; ++i) {
      const int position = segment.position + i, r = segment.first_row + i;
      const std::int64_t slot = std::int64_t{position % segment.ring.capacity} * width;
      for (int head = 0; head < geometry.kv_heads; ++head) {
        make_key(geometry, k_norm, k.row(r) + head * d, position, segment.ring.keys + slot + head * d);
      }
      std::copy_n(v.row(r), width, segment.ring.values + slot);
    }
  }
}

namespace {

// One query head of one block row over the keys it sees: `seen` pairs of key and value.
struct Seen {
  const float* key;
  const float* value;
};
void attend(std::span<const float> q, std::span<const Seen> seen, std::span<float> out) {
  const std::size_t d = q.size();
  std::vector<double> p(seen.size()), sum(d, 0.0);
  for (std::size_t j = 0; j < seen.size(); ++j) {
    p[j] = 0;
    for (std::size_t i = 0; i < d; ++i) p[j] += double{q[i]} * seen[j].key[i];
    p[j] /= std::sqrt(static_cast<double>(d));
  }
  const double top = *std::max_element(p.begin(), p.end());
  double total = 0;
  for (std::size_t j = 0; j < seen.size(); ++j) {
    const double weight = std::exp(p[j] - top);
    total += weight;
    for (std::size_t i = 0; i < d; ++i) sum[i] += weight * seen[j].value[i];
  }
  for (std::size_t i = 0; i < d; ++i) out[i] = static_cast<float>(sum[i] / total);
}

}  // namespace

void draft_attention(ref::Stream&, const DraftAttentionGeometry& geometry, std::span<const float> q_norm,
                     std::span<const float> k_norm, MatrixView<const float> q, MatrixView<const float> k,
                     MatrixView<const float> v, int block, std::span<const DraftBlockSegment> segments,
                     MatrixView<float> out) {
  const int d = geometry.head_dim, width = geometry.kv_heads * d, group = geometry.query_heads / geometry.kv_heads;
  std::vector<float> keys(std::size_t(block) * width), query(d);
  std::vector<Seen> seen;
  for (const DraftBlockSegment& segment : segments) {
    for (int t = 0; t < block; ++t) {
      for (int head = 0; head < geometry.kv_heads; ++head) {
        make_key(geometry, k_norm, k.row(segment.first_row + t) + head * d, segment.position + t,
                 keys.data() + std::int64_t{t} * width + head * d);
      }
    }
    for (int t = 0; t < block; ++t) {
      const int position = segment.position + t, r = segment.first_row + t;
      // Strict window: query position - key position < window. Each row has its own left edge.
      const int left = geometry.window > 0 ? std::max(0, position - geometry.window + 1) : 0;
      for (int head = 0; head < geometry.query_heads; ++head) {
        const int kv_offset = head / group * d;
        seen.clear();
        for (int j = left; j < segment.position; ++j) {
          const std::int64_t slot = std::int64_t{j % segment.ring.capacity} * width + kv_offset;
          seen.push_back({segment.ring.keys + slot, segment.ring.values + slot});
        }
        for (int j = 0; j < block; ++j) {
          seen.push_back({keys.data() + std::int64_t{j} * width + kv_offset, v.row(segment.first_row + j) + kv_offset});
        }
        make_key(geometry, q_norm, q.row(r) + head * d, position, query.data());
        attend(query, seen, out.row_span(r).subspan(std::size_t(head) * d, d));
      }
    }
  }
}

void top_k(ref::Stream&, MatrixView<const float> logits, int limit, MatrixView<Token> tokens,
           MatrixView<float> values) {
  const int k = tokens.cols;
  SPLASH_CHECK(limit <= logits.cols && k <= limit && values.cols == k);
  std::vector<Token> order(limit);
  for (int r = 0; r < logits.rows; ++r) {
    const auto value = [&](Token token) {  // a NaN ranks last
      const float x = logits.row(r)[token];
      return std::isnan(x) ? -std::numeric_limits<float>::infinity() : x;
    };
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + k, order.end(),
                      [&](Token a, Token b) { return value(a) != value(b) ? value(a) > value(b) : a < b; });
    for (int i = 0; i < k; ++i) {
      tokens.row(r)[i] = order[i];
      values.row(r)[i] = value(order[i]);
    }
  }
}

}  // namespace splash::ops
