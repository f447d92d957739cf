// Paged key-value memory: a page holds 32 consecutive positions of one lane (or of a shared prefix) for all attention
// layers. ref keeps float32; cpu keeps int8 with one float32 scale per token and head (scale = max|x| / 127). The order
// of the bytes inside a layer's part of a page belongs to the stream's implementation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "link/limits.h"
#include "ops/segment.h"

namespace splash::ops {

enum class KvFormat { f32, int8 };

struct KvGeometry {
  KvFormat format = KvFormat::int8;
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;

  // Bytes of one layer in one page: K and V rows and, for int8, their scales.
  std::int64_t layer_bytes() const {
    const std::int64_t values = std::int64_t{2} * kv_heads * link::page_tokens * head_dim;
    return format == KvFormat::f32 ? values * 4 : values + std::int64_t{2} * kv_heads * link::page_tokens * 4;
  }
  std::int64_t page_bytes() const { return layer_bytes() * layers; }
};

struct KvPool {
  KvGeometry geometry;
  std::byte* base = nullptr;  // pages * page_bytes(), 64-byte aligned

  std::byte* at(PageId page, int layer) const {
    return base + page * geometry.page_bytes() + layer * geometry.layer_bytes();
  }
};

}  // namespace splash::ops
