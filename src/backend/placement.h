// Where host blocks go in one allocation of device memory: a pure function of their addresses and sizes, so that it can
// be tested and printed without a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace splash {

struct Placement {
  const std::byte* from = nullptr;
  std::int64_t bytes = 0;
  std::int64_t offset = 0;
};

class PlacementPlan {
 public:
  static constexpr std::int64_t alignment = 256;  // what cudaMalloc promises; bulk copies need 16

  // The block's offset. A block that is already placed (a tied head is the embedding) keeps its first one.
  std::int64_t add(const void* from, std::int64_t bytes);
  std::int64_t total_bytes() const { return total_; }
  std::span<const Placement> blocks() const { return blocks_; }

 private:
  std::vector<Placement> blocks_;
  std::unordered_map<const void*, std::size_t> placed_;
  std::int64_t total_ = 0;
};

// The plan cut into pieces that fill a staging buffer of `piece_bytes`: each piece is a run of blocks' bytes in order
// of their offsets, and no byte (but the gaps of alignment) is left out or copied twice.
struct StagedCopy {
  const std::byte* from = nullptr;
  std::int64_t bytes = 0;
  std::int64_t at = 0;  // in the staging buffer
};
struct StagedPiece {
  std::int64_t offset = 0;  // of the piece in device memory
  std::int64_t bytes = 0;
  std::vector<StagedCopy> copies;
};
std::vector<StagedPiece> staged_pieces(const PlacementPlan& plan, std::int64_t piece_bytes);

}  // namespace splash
