#include "cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/rng.h"

namespace splash::cache {
namespace {

std::vector<Token> counting(int count, Token first = 0) {
  std::vector<Token> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A lane as the cache sees it: tokens and the pages they stand in.
struct Lane {
  PagePool& pool;
  std::vector<Token> tokens;
  std::vector<PageId> pages;
  Place place;

  Lane(PagePool& pool_, std::vector<Token> tokens_) : pool(pool_), tokens(std::move(tokens_)) { grow(); }
  ~Lane() { release(); }
  void grow() {
    while (pages.size() * link::page_tokens < tokens.size()) {
      pool.open(pool.to_open(1));
      pages.push_back(pool.take());
    }
  }
  void release() {
    for (const PageId page : pages) pool.lane_release(page);
    pages.clear();
  }
};

TEST(PagePool, CountsHolders) {
  PagePool pool(3);
  pool.open(1);
  const PageId page = pool.take();
  pool.cache_hold(page);
  pool.lane_hold(page);
  EXPECT_EQ(pool.held_by_lanes(), 1);
  pool.lane_release(page);
  pool.lane_release(page);
  EXPECT_EQ(pool.cached_only(), 1);
  EXPECT_EQ(pool.free(), 2);
  EXPECT_EQ(pool.available(), 3);
  pool.cache_release(page);
  EXPECT_TRUE(pool.is_free(page));
  EXPECT_EQ(pool.free(), 3);
  EXPECT_EQ(pool.cached_only(), 0);
}

TEST(PagePool, OpensInOrderAndCanBeRefusedTheRest) {
  PagePool pool(5);
  EXPECT_EQ(pool.free(), 5) << "the plan's word";
  EXPECT_EQ(pool.to_open(2), 2);
  EXPECT_EQ(pool.to_open(9), 5);
  pool.open(2);
  EXPECT_EQ(pool.take(), 0) << "the lowest first: memory is mapped in order";
  EXPECT_EQ(pool.take(), 1);
  EXPECT_EQ(pool.to_open(1), 1);
  pool.lane_release(0);
  EXPECT_EQ(pool.to_open(1), 0) << "a free page goes before one that is not opened";
  EXPECT_EQ(pool.to_open(3), 2);
  EXPECT_EQ(pool.free(), 4);
  pool.give_up_unopened();
  EXPECT_EQ(pool.total(), 2);
  EXPECT_EQ(pool.free(), 1);
  EXPECT_EQ(pool.held_by_lanes(), 1);
  EXPECT_EQ(pool.to_open(3), 0);
  EXPECT_EQ(pool.take(), 0);
  EXPECT_EQ(pool.available(), 0);
}

TEST(PrefixCache, ResumesAtTheLongestSnapshotThatLeavesTheLimit) {
  PagePool pool(16);
  PrefixCache cache(pool, 4);
  Lane lane(pool, counting(100));
  ASSERT_TRUE(cache.publish(std::span(lane.tokens).first(70), lane.pages, Kind::conversation, lane.place));
  ASSERT_TRUE(cache.publish(std::span(lane.tokens).first(96), lane.pages, Kind::conversation, lane.place));
  cache.audit();

  Match match = cache.match(counting(200), 199);
  EXPECT_EQ(match.position, 96);
  EXPECT_EQ(match.cached_pages(), 3);
  EXPECT_EQ(match.tail, -1);
  match = cache.match(counting(200), 95);
  EXPECT_EQ(match.position, 70);
  EXPECT_EQ(match.cached_pages(), 2);
  EXPECT_EQ(match.tail, lane.pages[2]) << "the tail shares the page that the lane went on writing";
  EXPECT_EQ(cache.match(counting(200), 69).position, 0);
}

// Every hash collides here: were any token not compared, a changed prompt would match.
TEST(PrefixCache, ComparesEveryToken) {
  PagePool pool(16);
  PrefixCache cache(pool, 4, /*hash_mask=*/0);
  Lane lane(pool, counting(70));
  ASSERT_TRUE(cache.publish(lane.tokens, lane.pages, Kind::conversation, lane.place));
  for (int changed = 0; changed < 70; ++changed) {
    std::vector<Token> other = counting(90);
    other[changed] += 1000;
    const Match match = cache.match(other, 89);
    EXPECT_EQ(match.position, 0) << changed;
    EXPECT_EQ(match.chain, changed / 32 * 32) << changed;
  }
}

TEST(PrefixCache, SharesEqualPagesBetweenLanes) {
  PagePool pool(16);
  PrefixCache cache(pool, 4);
  Lane first(pool, counting(64));
  Lane second(pool, counting(80));
  ASSERT_TRUE(cache.publish(first.tokens, first.pages, Kind::conversation, first.place));
  EXPECT_EQ(pool.free(), 16 - 5);
  ASSERT_TRUE(cache.publish(second.tokens, second.pages, Kind::conversation, second.place));
  EXPECT_EQ(second.pages[0], first.pages[0]);
  EXPECT_EQ(second.pages[1], first.pages[1]);
  EXPECT_EQ(pool.free(), 16 - 3);
  cache.audit();
}

TEST(PrefixCache, SamePrefixIsFiledOnce) {
  PagePool pool(16);
  PrefixCache cache(pool, 4);
  Lane lane(pool, counting(40));
  ASSERT_TRUE(cache.publish(lane.tokens, lane.pages, Kind::checkpoint, lane.place));
  EXPECT_FALSE(cache.publish(lane.tokens, lane.pages, Kind::conversation, lane.place));
  EXPECT_EQ(cache.snapshots_used(), 1);
  // It counts as a conversation now: a checkpoint may not push it out.
  PrefixCache one(pool, 1);
  Lane other(pool, counting(40, 500));
  Place there;
  ASSERT_TRUE(one.publish(lane.tokens, lane.pages, Kind::checkpoint, there));
  EXPECT_FALSE(one.publish(lane.tokens, lane.pages, Kind::conversation, there));
  EXPECT_FALSE(one.publish(other.tokens, other.pages, Kind::checkpoint, other.place));
  EXPECT_TRUE(one.publish(other.tokens, other.pages, Kind::conversation, other.place));
  EXPECT_EQ(one.match(counting(50), 49).position, 0);
}

TEST(PrefixCache, EvictsCheckpointsThenTheLeastRecentlyUsed) {
  PagePool pool(32);
  PrefixCache cache(pool, 3);
  std::vector<Lane> lanes;
  lanes.reserve(4);
  for (int i = 0; i < 4; ++i) lanes.emplace_back(pool, counting(64, i * 1000));
  ASSERT_TRUE(cache.publish(lanes[0].tokens, lanes[0].pages, Kind::conversation, lanes[0].place));
  ASSERT_TRUE(cache.publish(lanes[1].tokens, lanes[1].pages, Kind::conversation, lanes[1].place));
  ASSERT_TRUE(cache.publish(lanes[2].tokens, lanes[2].pages, Kind::checkpoint, lanes[2].place));
  ASSERT_TRUE(cache.publish(lanes[3].tokens, lanes[3].pages, Kind::conversation, lanes[3].place));
  EXPECT_EQ(cache.match(lanes[2].tokens, 64).position, 0);
  cache.touch(cache.match(lanes[0].tokens, 64).snapshot);
  for (Lane& lane : lanes) lane.release();
  EXPECT_TRUE(cache.make_room(pool.free() + 1));
  EXPECT_EQ(cache.match(counting(64, 1000), 64).position, 0) << "least recently used";
  EXPECT_EQ(cache.match(counting(64, 0), 64).position, 64);
  cache.audit();
}

// A lane that files a longer prefix begins where it last filed one; when that has gone, and its number is another text's, at
// the root.
TEST(PrefixCache, APlaceThatHasGoneIsNoPlace) {
  PagePool pool(32);
  PrefixCache cache(pool, 1);
  Lane lane(pool, counting(160)), other(pool, counting(96, 1000));
  ASSERT_TRUE(cache.publish(std::span(lane.tokens).first(64), lane.pages, Kind::conversation, lane.place));
  ASSERT_TRUE(cache.publish(other.tokens, other.pages, Kind::conversation, other.place));
  EXPECT_EQ(lane.place.block, other.place.block - 1) << "the same numbers again";
  ASSERT_TRUE(cache.publish(lane.tokens, lane.pages, Kind::conversation, lane.place));
  cache.audit();
  const Match match = cache.match(lane.tokens, 160);
  EXPECT_EQ(match.position, 160);
  EXPECT_EQ(match.place.block, lane.place.block);
  EXPECT_TRUE(std::ranges::equal(match.pages, lane.pages));
}

// Waiting for pages is asked again only when the answer may be another.
TEST(PrefixCache, VersionChangesWithWhatAMatchFinds) {
  PagePool pool(16);
  PrefixCache cache(pool, 4);
  Lane lane(pool, counting(64));
  const auto empty = cache.version();
  ASSERT_TRUE(cache.publish(lane.tokens, lane.pages, Kind::conversation, lane.place));
  const auto filed = cache.version();
  EXPECT_NE(filed, empty);
  EXPECT_FALSE(cache.publish(lane.tokens, lane.pages, Kind::conversation, lane.place));
  cache.touch(cache.match(lane.tokens, 64).snapshot);
  EXPECT_EQ(cache.version(), filed);
  cache.clear();
  EXPECT_NE(cache.version(), filed);
}

TEST(PrefixCache, NeverTakesAPageFromALane) {
  PagePool pool(8);
  PrefixCache cache(pool, 4);
  Lane busy(pool, counting(96));
  Lane idle(pool, counting(96, 1000));
  ASSERT_TRUE(cache.publish(std::span(busy.tokens).first(50), busy.pages, Kind::conversation, busy.place));
  ASSERT_TRUE(cache.publish(idle.tokens, idle.pages, Kind::conversation, idle.place));
  idle.release();
  EXPECT_FALSE(cache.make_room(6)) << "2 free and 3 idle pages are 5";
  EXPECT_EQ(cache.snapshots_used(), 2) << "a refusal drops nothing";
  EXPECT_TRUE(cache.make_room(5));
  EXPECT_EQ(cache.match(busy.tokens, 96).position, 50) << "dropping it would have freed nothing";
  cache.audit();
}

TEST(PrefixCache, RandomLivesKeepTheRule) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    std::uint64_t draw = 0;
    const auto below = [&](int limit) { return static_cast<int>(uniform(seed, draw++, Purpose::test) * limit); };
    PagePool pool(24);
    PrefixCache cache(pool, 1 + below(6), seed % 2 == 0 ? ~std::uint64_t{0} : std::uint64_t{1});
    for (int turn = 0; turn < 200; ++turn) {
      // Few distinct blocks, so that prefixes meet and part everywhere.
      std::vector<Token> tokens(1 + below(200));
      for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<Token>(i / 32 == 0 ? 7 : below(40) / 39);
      const Match match = cache.match(tokens, static_cast<int>(tokens.size()));
      ASSERT_LE(match.position, static_cast<int>(tokens.size()));
      if (!cache.make_room(7)) FAIL() << "no lane is alive: everything can be freed";
      Lane lane(pool, tokens);
      // One after the other, mostly longer ones; the slot of the second may be what the first had.
      for (int filed = 0, length = 0; filed < 1 + below(3); ++filed) {
        length = below(4) == 0 ? 1 + below(static_cast<int>(tokens.size()))
                               : length + below(static_cast<int>(tokens.size()) - length + 1);
        if (length == 0) continue;
        const auto prefix = std::span(tokens).first(length);
        const auto slot = cache.publish(prefix, lane.pages, below(2) == 0 ? Kind::checkpoint : Kind::conversation, lane.place);
        cache.audit();
        if (!slot) continue;
        const Match filed_now = cache.match(prefix, length);
        ASSERT_EQ(filed_now.snapshot, *slot);
        ASSERT_TRUE(std::ranges::equal(filed_now.pages, std::span(lane.pages).first(length / link::page_tokens)));
      }
    }
    cache.clear();
    cache.audit();
    EXPECT_EQ(pool.free(), 24);
    EXPECT_EQ(cache.snapshots_used(), 0);
  }
}

}  // namespace
}  // namespace splash::cache
