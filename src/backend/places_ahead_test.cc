#include "backend/places_ahead.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace splash {
namespace {

constexpr std::size_t page = 65'536;  // or less
constexpr std::size_t place_bytes = 2 * page - 100;

// What the test sees and steers of a pinner, which its owner takes along.
struct Pinning {
  std::mutex mutex;
  std::condition_variable changed;
  int allowed = 1 << 30;  // pins that may begin; the next one waits
  int refused_from = 1 << 30;
  int begun = 0, done = 0, unpinned = 0;
  std::vector<std::byte*> places;

  void allow(int pins) {
    const std::lock_guard lock(mutex);
    allowed = pins;
    changed.notify_all();
  }
  void await_begun(int pins) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return begun >= pins; });
  }
};

class FakePinner final : public Pinner {
 public:
  explicit FakePinner(std::shared_ptr<Pinning> pinning) : pinning_(std::move(pinning)) {}
  Status pin(std::span<std::byte> memory) override {
    Pinning& p = *pinning_;
    std::unique_lock lock(p.mutex);
    const int number = p.begun++;
    p.changed.notify_all();
    p.changed.wait(lock, [&] { return number < p.allowed; });
    std::memset(memory.data(), number + 1, memory.size());
    if (number >= p.refused_from) return fail(ErrorKind::overloaded, "the fake system pins no more");
    p.places.push_back(memory.data());
    ++p.done;
    return {};
  }
  void unpin(std::span<std::byte> memory) override {
    EXPECT_EQ(std::ranges::count(pinning_->places, memory.data()), 1);
    ++pinning_->unpinned;
  }

 private:
  std::shared_ptr<Pinning> pinning_;
};

struct Rig {
  Rig(int places, int ahead, std::size_t piece_bytes = 4 * page)
      : memory(*PlacesAhead::reserve(std::make_unique<FakePinner>(pinning),
                                     {place_bytes, places, ahead, piece_bytes})) {}
  std::shared_ptr<Pinning> pinning = std::make_shared<Pinning>();
  std::unique_ptr<PlacesAhead> memory;
};

TEST(PlacesAhead, TakesNothingBeforeItIsNeededAndThenSomeMore) {
  Rig rig(20, 3);
  EXPECT_EQ(rig.memory->ready(), 0);
  std::byte* first = rig.memory->wait_for(0);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first, rig.memory->find(0));
  rig.memory->prepare(4);  // what was to come by itself
  EXPECT_NE(rig.memory->find(2), nullptr) << "ready before anyone waits";
  rig.memory->prepare(6);
  rig.pinning->await_begun(6);
  EXPECT_EQ(rig.memory->ready(), 6) << "three beyond the last that was asked for, no more";
  rig.memory.reset();
  EXPECT_EQ(rig.pinning->unpinned, 6);
}

TEST(PlacesAhead, WhoSeesANeedComingGetsPlacesUnderWay) {
  Rig rig(4, 0);
  rig.memory->expect(-3);
  rig.memory->expect(0);
  rig.memory->expect(2);
  rig.pinning->await_begun(2);
  EXPECT_NE(rig.memory->wait_for(1), nullptr);
  EXPECT_EQ(rig.memory->ready(), 2);
  rig.memory->expect(1);
  rig.memory->expect(9);
  rig.pinning->await_begun(4);
}

TEST(PlacesAhead, ANumberThatIsNotReadyIsSaidToBeAndComes) {
  Rig rig(8, 1);
  rig.pinning->allow(0);
  EXPECT_EQ(rig.memory->find(4), nullptr) << "nobody waits";
  rig.pinning->await_begun(1);
  EXPECT_EQ(rig.memory->find(0), nullptr);
  rig.pinning->allow(5);
  std::byte* there = rig.memory->wait_for(4);
  EXPECT_EQ(there, rig.memory->find(4));
  EXPECT_EQ(rig.memory->find(5), nullptr) << "on its way";
  rig.pinning->allow(100);
  std::byte* last = rig.memory->wait_for(7);
  EXPECT_GE(static_cast<std::size_t>(last - there), 3 * place_bytes);
  std::memset(last, 1, place_bytes);
  EXPECT_EQ(rig.memory->ready(), 8);
}

TEST(PlacesAhead, WhatCannotBePinnedIsOrdinaryMemory) {
  Rig rig(6, 0);
  rig.pinning->refused_from = 2;
  for (int place = 0; place < 6; ++place) {
    std::byte* memory = rig.memory->wait_for(place);
    ASSERT_NE(memory, nullptr);
    std::memset(memory, 0, place_bytes);
  }
  EXPECT_EQ(rig.pinning->begun, 3) << "a system that refused is not asked again";
  rig.memory.reset();
  EXPECT_EQ(rig.pinning->done, 2);
  EXPECT_EQ(rig.pinning->unpinned, 2);
}

// Refused in the middle of a place: every copy of a piece is to one kind of memory.
TEST(PlacesAhead, APlaceIsPinnedPieceByPiece) {
  Rig rig(3, 0, page);
  rig.pinning->refused_from = 3;
  std::byte* first = rig.memory->wait_for(0);
  std::byte* second = rig.memory->wait_for(1);
  EXPECT_EQ(rig.pinning->places, (std::vector<std::byte*>{first, first + page, second}));
  std::vector<std::pair<std::size_t, std::size_t>> cuts;
  const auto note = [&](std::size_t offset, std::size_t bytes) { cuts.emplace_back(offset, bytes); };
  rig.memory->in_pieces(0, place_bytes, note);
  rig.memory->in_pieces(10, 20, note);
  rig.memory->in_pieces(page - 1, page + 1, note);
  rig.memory->in_pieces(page, page, note);
  EXPECT_EQ(cuts, (std::vector<std::pair<std::size_t, std::size_t>>{
                      {0, page}, {page, page - 100}, {10, 10}, {page - 1, 1}, {page, 1}}));
  rig.memory.reset();
  EXPECT_EQ(rig.pinning->unpinned, 3);
}

TEST(PlacesAhead, EndsWhilePinning) {
  Rig rig(6, 4);
  rig.pinning->allow(1);
  rig.memory->wait_for(0);
  rig.pinning->await_begun(2);
  std::thread ending([&] { rig.memory.reset(); });
  rig.pinning->allow(100);
  ending.join();
  EXPECT_GE(rig.pinning->done, 2) << "what was under way is finished first";
  EXPECT_EQ(rig.pinning->done, rig.pinning->unpinned);
}

TEST(PlacesAhead, LargePlacesAreBroughtBySeveralThreads) {
  const std::size_t large = (std::size_t{130} << 20) + 5000;
  auto pinning = std::make_shared<Pinning>();
  auto memory = *PlacesAhead::reserve(std::make_unique<FakePinner>(pinning), {.place_bytes = large, .places = 2});
  std::byte* place = memory->wait_for(0);
  EXPECT_EQ(pinning->done, 9) << "pieces of 16 MiB";
  place[large - 1] = std::byte{1};
}

TEST(PlacesAhead, NoPlacesAtAll) {
  Rig rig(0, 2);
  rig.memory->prepare(0);
  rig.memory->expect(2);
  rig.memory->prepare(3);
  EXPECT_EQ(rig.memory->ready(), 0);
}

}  // namespace
}  // namespace splash
