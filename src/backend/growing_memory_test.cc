#include "backend/growing_memory.h"

#include <gtest/gtest.h>

#include <vector>

namespace splash {
namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

// A device with so much memory, which checks what it is asked.
class FakeMapper final : public MemoryMapper {
 public:
  FakeMapper(std::size_t device_bytes, std::vector<std::size_t>& maps) : free_(device_bytes), maps_(maps) {}
  std::size_t granule_bytes() const override { return 2 * mib; }
  Result<std::byte*> reserve(std::size_t bytes) override {
    EXPECT_EQ(bytes % granule_bytes(), 0u);
    reserved_ = bytes;
    return reinterpret_cast<std::byte*>(0x7000'0000'0000);
  }
  Status map(std::size_t offset, std::size_t bytes) override {
    EXPECT_EQ(offset, mapped_) << "in order, nothing twice";
    EXPECT_TRUE(bytes > 0 && bytes % granule_bytes() == 0 && offset + bytes <= reserved_);
    if (bytes > free_) return fail(ErrorKind::overloaded, "{} MiB are free", free_ / mib);
    free_ -= bytes;
    mapped_ += bytes;
    maps_.push_back(bytes / mib);
    return {};
  }

 private:
  std::size_t free_, reserved_ = 0, mapped_ = 0;
  std::vector<std::size_t>& maps_;
};

TEST(GrowingMemory, GrowsByAQuarterInWholeGranules) {
  EXPECT_EQ(grown_bytes(0, 2 * mib, 1000 * mib, 2 * mib), 66 * mib);
  EXPECT_EQ(grown_bytes(0, 101 * mib, 1000 * mib, 2 * mib), 166 * mib) << "beyond what is wanted";
  EXPECT_EQ(grown_bytes(400 * mib, 401 * mib, 1000 * mib, 2 * mib), 502 * mib);
  EXPECT_EQ(grown_bytes(900 * mib, 901 * mib, 1000 * mib, 2 * mib), 1000 * mib) << "no more than reserved";
  EXPECT_EQ(grown_bytes(0, 1, 3 * mib, 2 * mib), 4 * mib) << "a last granule that is not full";
}

TEST(GrowingMemory, AsksTheDeviceSeldom) {
  std::vector<std::size_t> maps;
  auto memory = GrowingMemory::reserve(std::make_unique<FakeMapper>(4096 * mib, maps), 2001 * mib);
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->mapped_bytes(), 0u) << "nothing is taken before it is needed";
  std::size_t fresh = 0;
  for (std::size_t bytes = 0; bytes <= 2001 * mib; bytes += mib / 2) {
    const auto part = memory->grow_to(bytes);
    ASSERT_TRUE(part);
    if (!part->empty()) {
      EXPECT_EQ(part->data(), memory->data() + fresh) << "the new part begins where the old ended";
    }
    fresh += part->size();
    EXPECT_GE(memory->mapped_bytes(), bytes);
  }
  EXPECT_EQ(fresh, 2002 * mib);
  EXPECT_LE(maps.size(), 14u);
}

TEST(GrowingMemory, AFullDeviceIsAnErrorThatChangesNothing) {
  std::vector<std::size_t> maps;
  auto memory = GrowingMemory::reserve(std::make_unique<FakeMapper>(70 * mib, maps), 1000 * mib);
  ASSERT_TRUE(memory);
  ASSERT_TRUE(memory->grow_to(mib));
  EXPECT_EQ(memory->mapped_bytes(), 66 * mib);
  const auto refused = memory->grow_to(100 * mib);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::overloaded);
  EXPECT_EQ(memory->mapped_bytes(), 66 * mib);
  ASSERT_TRUE(memory->grow_to(67 * mib)) << "what is wanted fits, what would be generous does not";
  EXPECT_EQ(memory->mapped_bytes(), 68 * mib);
  EXPECT_EQ(maps, (std::vector<std::size_t>{66, 2}));
  EXPECT_TRUE(memory->grow_to(68 * mib)->empty());
}

}  // namespace
}  // namespace splash
