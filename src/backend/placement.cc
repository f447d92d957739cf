#include "backend/placement.h"

#include <algorithm>

#include "base/check.h"

namespace splash {

std::int64_t PlacementPlan::add(const void* from, std::int64_t bytes) {
  SPLASH_CHECK(bytes >= 0 && (from != nullptr || bytes == 0));
  if (const auto known = placed_.find(from); known != placed_.end()) {
    const Placement& block = blocks_[known->second];
    SPLASH_CHECK(block.bytes == bytes, "a block of {} bytes was placed with {}", block.bytes, bytes);
    return block.offset;
  }
  placed_.emplace(from, blocks_.size());
  blocks_.push_back({static_cast<const std::byte*>(from), bytes, total_});
  total_ += (bytes + alignment - 1) / alignment * alignment;
  return blocks_.back().offset;
}

std::vector<StagedPiece> staged_pieces(const PlacementPlan& plan, std::int64_t piece_bytes) {
  SPLASH_CHECK(piece_bytes > 0 && piece_bytes % PlacementPlan::alignment == 0);
  std::vector<StagedPiece> pieces;
  for (std::int64_t offset = 0; offset < plan.total_bytes(); offset += piece_bytes) {
    pieces.push_back({offset, std::min(piece_bytes, plan.total_bytes() - offset), {}});
  }
  for (const Placement& block : plan.blocks()) {
    for (std::int64_t done = 0; done < block.bytes;) {
      const std::int64_t offset = block.offset + done, at = offset % piece_bytes;
      const std::int64_t count = std::min(block.bytes - done, piece_bytes - at);
      pieces[static_cast<std::size_t>(offset / piece_bytes)].copies.push_back({block.from + done, count, at});
      done += count;
    }
  }
  return pieces;
}

}  // namespace splash
