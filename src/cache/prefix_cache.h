// The prefix cache: a tree of 32-token blocks, each with its KV page, and snapshots of the recurrent state at exact
// committed positions on it. A position in the middle of a block is a tail: the snapshot owns the tail's tokens and
// holds the page they stand in (rows of a page never change once committed, so the lane that goes on writing behind
// them may share it; whoever resumes from the snapshot copies it first).
//
// A hybrid model can resume only where it has both the pages and the state. So the rule of this cache: every leaf of
// the tree carries a snapshot. Pages enter with a snapshot and leave with the last snapshot that needs them; the unit
// of eviction is the snapshot.
//
// Tokens are compared one by one, always; the hash only finds the candidates.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/page_pool.h"
#include "link/limits.h"
#include "link/token.h"

namespace splash::cache {

using model::SnapshotId;

// Checkpoints are taken on the way and never push a conversation's snapshot out.
enum class Kind { checkpoint, conversation };

// A block of the tree that ends a prefix of a lane, up to which the lane holds the cache's own pages: whoever files a longer
// prefix of the same tokens begins there. The block may have gone meanwhile; then the walk begins at the root.
struct Place {
  int block = 0;
  std::uint64_t born = 0;
};

struct Match {
  int position = 0;  // committed tokens at the snapshot; 0 = nothing to resume from
  SnapshotId snapshot = -1;
  std::vector<PageId> pages;  // the full pages before `position`
  PageId tail = -1;           // the page with the position % 32 rows that follow them; -1 = none
  int chain = 0;              // tokens whose pages are cached, with or without a snapshot at the end
  Place place;                // where `pages` ends

  int cached_pages() const { return static_cast<int>(pages.size()); }
};

class PrefixCache {
 public:
  // `hash_mask` is for tests: with few bits everything collides, and only the comparison tells blocks apart.
  PrefixCache(PagePool& pages, int snapshots, std::uint64_t hash_mask = ~std::uint64_t{0});

  // The snapshot with the longest prefix of `tokens` that is not longer than `limit`.
  Match match(std::span<const Token> tokens, int limit) const;
  // Marks a snapshot as just used.
  void touch(SnapshotId snapshot);

  // Files the state of a lane at tokens.size() committed tokens, whose rows stand in `pages`. Full pages that the cache
  // already has are swapped: the lane's entry becomes the cached page and its own is let go. Returns the slot to save
  // the state into, or nothing when that prefix has a snapshot already or no slot is to be had for this kind.
  // `place`: of a match or an earlier publish of this lane, {} for a lane that has had neither; moves on to the new end.
  std::optional<SnapshotId> publish(std::span<const Token> tokens, std::span<PageId> pages, Kind kind, Place& place);

  // Drops snapshots, checkpoints first, then least recently used, until `pages` pages are free. Only snapshots whose
  // going frees a page are dropped. False (and nothing dropped) when that many cannot be freed.
  bool make_room(int pages);

  void clear();

  int snapshots_total() const { return static_cast<int>(snapshots_.size()); }
  int snapshots_used() const { return snapshots_total() - static_cast<int>(free_snapshots_.size()); }
  bool is_free(SnapshotId snapshot) const { return !snapshots_[snapshot].live; }
  std::uint64_t evicted() const { return evicted_; }
  // Changes whenever a match may.
  std::uint64_t version() const { return version_; }

  // Checks the rule above and the page holds; aborts on a breach. For tests.
  void audit() const;

 private:
  static constexpr int block_tokens = link::page_tokens;
  static constexpr int root = 0;

  struct Block {
    int parent = -1;
    int depth = 0;  // blocks from the root to here, this one included
    int children = 0;
    int newest = -1;  // child; a hint, which may have gone
    bool live = false;
    std::uint64_t born = 0;
    PageId page = -1;
    std::uint64_t hash = 0;
    std::array<Token, block_tokens> tokens{};
    std::vector<SnapshotId> snapshots;  // at this block's end or in a tail behind it
  };
  struct Snapshot {
    bool live = false;
    Kind kind = Kind::checkpoint;
    int block = root;
    std::vector<Token> tail;
    PageId tail_page = -1;
    std::uint64_t last_use = 0;
  };

  std::uint64_t hash_of(int parent, std::span<const Token> tokens) const;
  bool is_child(int block, int parent, std::span<const Token> tokens) const;
  int find_child(int parent, std::span<const Token> tokens) const;
  int add_child(int parent, std::span<const Token> tokens, PageId page);
  int block_at(const Place& place, int most_depth) const;
  SnapshotId snapshot_at(int block, std::span<const Token> tail) const;
  bool take_slot(Kind kind);
  SnapshotId oldest(Kind kind, bool freeing_pages) const;
  bool frees_a_page(const Snapshot& snapshot) const;
  void drop(SnapshotId snapshot);
  void prune(int block);

  PagePool& pages_;
  const std::uint64_t hash_mask_;
  std::vector<Block> blocks_;
  std::vector<int> free_blocks_;
  std::unordered_multimap<std::uint64_t, int> index_;  // hash of (parent, tokens) -> block
  std::vector<Snapshot> snapshots_;
  std::vector<SnapshotId> free_snapshots_;
  std::uint64_t clock_ = 0;  // uses so far; orders last_use
  std::uint64_t evicted_ = 0;
  std::uint64_t version_ = 0;
  std::uint64_t born_ = 0;  // blocks so far
};

}  // namespace splash::cache
