#include "cache/prefix_cache.h"

#include <algorithm>

#include "base/check.h"

namespace splash::cache {

PrefixCache::PrefixCache(PagePool& pages, int snapshots, std::uint64_t hash_mask)
    : pages_(pages), hash_mask_(hash_mask), blocks_(1), snapshots_(snapshots) {
  blocks_[root].live = true;
  // Each block holds a page of its own: nothing is moved while lanes wait for their next step.
  blocks_.reserve(static_cast<std::size_t>(pages.total()) + 1);
  index_.reserve(static_cast<std::size_t>(pages.total()));
  for (SnapshotId snapshot = snapshots - 1; snapshot >= 0; --snapshot) free_snapshots_.push_back(snapshot);
}

// Only finds candidates, so speed matters more than strength (a step of MurmurHash3's finaliser per two tokens).
std::uint64_t PrefixCache::hash_of(int parent, std::span<const Token> tokens) const {
  static_assert(block_tokens % 2 == 0);
  std::uint64_t hash = static_cast<std::uint64_t>(parent) + 0x9E3779B97F4A7C15ull;
  for (std::size_t i = 0; i < tokens.size(); i += 2) {
    hash ^= static_cast<std::uint32_t>(tokens[i]) | static_cast<std::uint64_t>(tokens[i + 1]) << 32;
    hash *= 0xff51afd7ed558ccdull;
    hash ^= hash >> 33;
  }
  return hash & hash_mask_;
}

Match PrefixCache::match(std::span<const Token> tokens, int limit) const {
  Match match;
  std::vector<PageId> pages;
  for (int block = root; block >= 0;) {
    const int start = blocks_[block].depth * block_tokens;
    match.chain = start;
    for (const SnapshotId snapshot : blocks_[block].snapshots) {
      const std::vector<Token>& tail = snapshots_[snapshot].tail;
      const int position = start + static_cast<int>(tail.size());
      if (position <= match.position || position > limit || position > static_cast<int>(tokens.size())) continue;
      if (!std::ranges::equal(tail, tokens.subspan(start, tail.size()))) continue;
      match.position = position;
      match.snapshot = snapshot;
      match.pages = pages;
      match.tail = snapshots_[snapshot].tail_page;
      match.place = {block, blocks_[block].born};
    }
    if (start + block_tokens > static_cast<int>(tokens.size())) break;
    block = find_child(block, tokens.subspan(start, block_tokens));
    if (block >= 0) pages.push_back(blocks_[block].page);
  }
  return match;
}

void PrefixCache::touch(SnapshotId snapshot) {
  SPLASH_CHECK(snapshots_[snapshot].live);
  snapshots_[snapshot].last_use = ++clock_;
}

std::optional<SnapshotId> PrefixCache::publish(std::span<const Token> tokens, std::span<PageId> pages, Kind kind,
                                               Place& place) {
  const int blocks = static_cast<int>(tokens.size()) / block_tokens;
  const auto tail = tokens.subspan(static_cast<std::size_t>(blocks) * block_tokens);
  SPLASH_CHECK(!tokens.empty() && static_cast<int>(pages.size()) >= blocks + (tail.empty() ? 0 : 1));

  const auto content = [&](int block) {
    return tokens.subspan(static_cast<std::size_t>(blocks_[block].depth) * block_tokens, block_tokens);
  };
  int end = block_at(place, blocks);
  while (end >= 0 && blocks_[end].depth < blocks) end = find_child(end, content(end));
  const SnapshotId known = end >= 0 ? snapshot_at(end, tail) : -1;
  if (known >= 0) {
    touch(known);
    if (kind == Kind::conversation) snapshots_[known].kind = kind;
  } else if (!take_slot(kind)) {
    return std::nullopt;
  }

  int block = block_at(place, blocks);  // once more: it may have gone for the slot
  while (blocks_[block].depth < blocks) {
    PageId& page = pages[blocks_[block].depth];
    const int child = find_child(block, content(block));
    block = child >= 0 ? child : add_child(block, content(block), page);
    const PageId cached = blocks_[block].page;
    if (cached == page) continue;
    // The same tokens at the same positions: the same rows. One copy is enough.
    pages_.lane_hold(cached);
    pages_.lane_release(page);
    page = cached;
  }
  place = {block, blocks_[block].born};
  if (known >= 0) return std::nullopt;
  ++version_;

  const SnapshotId slot = free_snapshots_.back();
  free_snapshots_.pop_back();
  Snapshot& snapshot = snapshots_[slot];
  snapshot = {.live = true, .kind = kind, .block = block, .tail = {tail.begin(), tail.end()}, .last_use = ++clock_};
  if (!tail.empty()) {
    snapshot.tail_page = pages[blocks];
    pages_.cache_hold(snapshot.tail_page);
  }
  blocks_[block].snapshots.push_back(slot);
  return slot;
}

bool PrefixCache::make_room(int pages) {
  if (pages_.available() < pages) return false;
  while (pages_.free() < pages) {
    SnapshotId victim = oldest(Kind::checkpoint, true);
    if (victim < 0) victim = oldest(Kind::conversation, true);
    // Two snapshots may hold one page, so that neither going alone frees it: then the oldest of all goes.
    if (victim < 0) victim = oldest(Kind::checkpoint, false);
    if (victim < 0) victim = oldest(Kind::conversation, false);
    SPLASH_CHECK(victim >= 0, "{} pages are held by a cache without snapshots", pages_.cached_only());
    drop(victim);
    ++evicted_;
  }
  return true;
}

void PrefixCache::clear() {
  for (SnapshotId snapshot = 0; snapshot < snapshots_total(); ++snapshot) {
    if (snapshots_[snapshot].live) drop(snapshot);
  }
}

bool PrefixCache::is_child(int block, int parent, std::span<const Token> tokens) const {
  return blocks_[block].parent == parent && std::ranges::equal(blocks_[block].tokens, tokens);
}

// Most blocks have one child, and most walks are those of a conversation's next turn: no hash, no look into the index.
int PrefixCache::find_child(int parent, std::span<const Token> tokens) const {
  const int newest = blocks_[parent].newest;
  if (newest >= 0 && blocks_[newest].live && is_child(newest, parent, tokens)) return newest;
  const auto [first, last] = index_.equal_range(hash_of(parent, tokens));
  for (auto it = first; it != last; ++it) {
    if (is_child(it->second, parent, tokens)) return it->second;
  }
  return -1;
}

int PrefixCache::block_at(const Place& place, int most_depth) const {
  if (!blocks_[place.block].live || blocks_[place.block].born != place.born) return root;
  int block = place.block;
  while (blocks_[block].depth > most_depth) block = blocks_[block].parent;
  return block;
}

SnapshotId PrefixCache::snapshot_at(int block, std::span<const Token> tail) const {
  for (const SnapshotId snapshot : blocks_[block].snapshots) {
    if (std::ranges::equal(snapshots_[snapshot].tail, tail)) return snapshot;
  }
  return -1;
}

int PrefixCache::add_child(int parent, std::span<const Token> tokens, PageId page) {
  int id = static_cast<int>(blocks_.size());
  if (free_blocks_.empty()) {
    blocks_.emplace_back();
  } else {
    id = free_blocks_.back();
    free_blocks_.pop_back();
  }
  Block& block = blocks_[id];
  block = {.parent = parent, .depth = blocks_[parent].depth + 1, .live = true, .born = ++born_, .page = page};
  block.hash = hash_of(parent, tokens);
  std::ranges::copy(tokens, block.tokens.begin());
  ++blocks_[parent].children;
  blocks_[parent].newest = id;
  index_.emplace(block.hash, id);
  pages_.cache_hold(page);
  return id;
}

// Leaves at least one free slot, or says that this kind gets none.
bool PrefixCache::take_slot(Kind kind) {
  if (!free_snapshots_.empty()) return true;
  SnapshotId victim = oldest(Kind::checkpoint, false);
  if (victim < 0 && kind == Kind::conversation) victim = oldest(Kind::conversation, false);
  if (victim < 0) return false;
  drop(victim);
  ++evicted_;
  return true;
}

SnapshotId PrefixCache::oldest(Kind kind, bool freeing_pages) const {
  SnapshotId best = -1;
  for (SnapshotId id = 0; id < snapshots_total(); ++id) {
    const Snapshot& snapshot = snapshots_[id];
    if (!snapshot.live || snapshot.kind != kind) continue;
    if (best >= 0 && snapshots_[best].last_use < snapshot.last_use) continue;
    if (freeing_pages && !frees_a_page(snapshot)) continue;
    best = id;
  }
  return best;
}

bool PrefixCache::frees_a_page(const Snapshot& snapshot) const {
  const auto last_hold = [&](PageId page) { return pages_.lane_holds(page) == 0 && pages_.cache_holds(page) == 1; };
  if (snapshot.tail_page >= 0 && last_hold(snapshot.tail_page)) return true;
  std::size_t others = 1;  // snapshots that stay at this block do not let it go; the one asked about does
  for (int block = snapshot.block; block != root; block = blocks_[block].parent) {
    const int below = block == snapshot.block ? 0 : 1;
    if (blocks_[block].children > below || blocks_[block].snapshots.size() > others) return false;
    if (last_hold(blocks_[block].page)) return true;
    others = 0;
  }
  return false;
}

void PrefixCache::drop(SnapshotId id) {
  Snapshot& snapshot = snapshots_[id];
  SPLASH_CHECK(snapshot.live);
  ++version_;
  if (snapshot.tail_page >= 0) pages_.cache_release(snapshot.tail_page);
  std::erase(blocks_[snapshot.block].snapshots, id);
  const int block = snapshot.block;
  snapshot = {};
  free_snapshots_.push_back(id);
  prune(block);
}

// Lets go of every block from here up that no snapshot needs any more.
void PrefixCache::prune(int block) {
  while (block != root && blocks_[block].children == 0 && blocks_[block].snapshots.empty()) {
    const int parent = blocks_[block].parent;
    pages_.cache_release(blocks_[block].page);
    const auto [first, last] = index_.equal_range(blocks_[block].hash);
    index_.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == block; }));
    blocks_[block].live = false;
    free_blocks_.push_back(block);
    --blocks_[parent].children;
    block = parent;
  }
}

void PrefixCache::audit() const {
  std::vector<int> holds(pages_.total());
  std::vector<int> children(blocks_.size());
  std::size_t live_blocks = 0;
  for (std::size_t id = 1; id < blocks_.size(); ++id) {
    const Block& block = blocks_[id];
    if (!block.live) continue;
    ++live_blocks;
    ++holds[block.page];
    ++children[block.parent];
    SPLASH_CHECK(blocks_[block.parent].live && block.depth == blocks_[block.parent].depth + 1);
    SPLASH_CHECK(find_child(block.parent, block.tokens) == static_cast<int>(id), "block {} is filed twice or not", id);
  }
  for (std::size_t id = 0; id < blocks_.size(); ++id) {
    const Block& block = blocks_[id];
    if (!block.live) continue;
    SPLASH_CHECK(block.children == children[id]);
    SPLASH_CHECK(id == root || block.children > 0 || !block.snapshots.empty(), "leaf {} has no snapshot", id);
    for (const SnapshotId snapshot : block.snapshots) {
      SPLASH_CHECK(snapshots_[snapshot].live && snapshots_[snapshot].block == static_cast<int>(id));
    }
  }
  int used = 0;
  for (const Snapshot& snapshot : snapshots_) {
    if (!snapshot.live) continue;
    ++used;
    SPLASH_CHECK(snapshot.tail.empty() == (snapshot.tail_page < 0) && snapshot.tail.size() < block_tokens);
    SPLASH_CHECK(snapshot.block != root || !snapshot.tail.empty(), "a snapshot of nothing");
    if (snapshot.tail_page >= 0) ++holds[snapshot.tail_page];
  }
  SPLASH_CHECK(used == snapshots_used() && live_blocks == index_.size());
  for (PageId page = 0; page < pages_.total(); ++page) {
    SPLASH_CHECK(holds[page] == pages_.cache_holds(page), "page {}", page);
  }
}

}  // namespace splash::cache
