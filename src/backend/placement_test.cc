#include "backend/placement.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/rng.h"

namespace splash {
namespace {

TEST(Placement, BlocksAreAlignedApartAndPlacedOnce) {
  const std::vector<std::byte> memory(10'000);
  PlacementPlan plan;
  EXPECT_EQ(plan.add(memory.data(), 1), 0);
  EXPECT_EQ(plan.add(memory.data() + 1, 256), 256);
  EXPECT_EQ(plan.add(memory.data() + 500, 257), 512);
  EXPECT_EQ(plan.add(memory.data() + 1, 256), 256) << "a tied matrix is there once";
  EXPECT_EQ(plan.total_bytes(), 1024);
  EXPECT_EQ(plan.blocks().size(), 3u);
}

// Random blocks through random staging sizes: the image that arrives is the blocks at their offsets.
TEST(Placement, StagedPiecesCarryEveryByteOnce) {
  std::vector<std::byte> memory(200'000);
  for (std::size_t i = 0; i < memory.size(); ++i) {
    memory[i] = static_cast<std::byte>(philox4x32({static_cast<std::uint32_t>(i), 0, 0, 0}, {7, 0})[0]);
  }
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    PlacementPlan plan;
    std::size_t at = 0;
    for (int i = 0; i < 30 && at < memory.size(); ++i) {
      const auto bytes =
          std::min(memory.size() - at, static_cast<std::size_t>(uniform(seed, i, Purpose::test) * 12'000) + 1);
      plan.add(memory.data() + at, static_cast<std::int64_t>(bytes));
      at += bytes;
    }
    const std::int64_t piece_bytes = 256 * (1 + static_cast<std::int64_t>(uniform(seed, 99, Purpose::test) * 40));
    std::vector<std::byte> image(static_cast<std::size_t>(plan.total_bytes())), staging(piece_bytes);
    std::int64_t copied = 0;
    for (const StagedPiece& piece : staged_pieces(plan, piece_bytes)) {
      for (const StagedCopy& copy : piece.copies) {
        ASSERT_LE(copy.at + copy.bytes, piece.bytes);
        std::memcpy(staging.data() + copy.at, copy.from, static_cast<std::size_t>(copy.bytes));
        copied += copy.bytes;
      }
      std::memcpy(image.data() + piece.offset, staging.data(), static_cast<std::size_t>(piece.bytes));
    }
    EXPECT_EQ(copied, static_cast<std::int64_t>(at));
    for (const Placement& block : plan.blocks()) {
      EXPECT_EQ(block.offset % PlacementPlan::alignment, 0);
      EXPECT_EQ(std::memcmp(image.data() + block.offset, block.from, static_cast<std::size_t>(block.bytes)), 0);
    }
  }
}

}  // namespace
}  // namespace splash
