// Who holds which KV page. A page may be held by several lanes and by several places of the prefix cache; it is free
// when nobody holds it. Index arithmetic only: the rows live in the model.
//
// Pages are opened in order as they are needed: behind one that is not there is only the memory plan's word, and a device
// may refuse it (Engine::open_pages). Until then it counts as free.
#pragma once

#include <vector>

#include "model/model.h"

namespace splash::cache {

using model::PageId;

class PagePool {
 public:
  explicit PagePool(int pages);

  int total() const { return static_cast<int>(holds_.size()); }
  int opened() const { return opened_; }
  int free() const { return static_cast<int>(free_.size()) + total() - opened_; }
  int cached_only() const { return cached_only_; }  // evicting the whole cache would free these
  int held_by_lanes() const { return total() - free() - cached_only_; }
  // Pages that a lane could get, the cache's own included.
  int available() const { return free() + cached_only_; }

  // A free page, held by one lane. There must be an opened one.
  PageId take();

  // How many pages must be opened before `pages` can be taken; no more than there are.
  int to_open(int pages) const;
  void open(int pages);
  // There will be no more than the opened ones: total() becomes their number.
  void give_up_unopened();

  void lane_hold(PageId page);
  void lane_release(PageId page);
  void cache_hold(PageId page);  // the page must be held by someone already
  void cache_release(PageId page);

  bool is_free(PageId page) const { return holds_[page].lanes == 0 && holds_[page].cache == 0; }
  int lane_holds(PageId page) const { return holds_[page].lanes; }
  int cache_holds(PageId page) const { return holds_[page].cache; }

 private:
  struct Holds {
    int lanes = 0;
    int cache = 0;
  };
  std::vector<Holds> holds_;
  std::vector<PageId> free_;  // opened; last in, first out: the warmest rows are written again first
  int opened_ = 0;
  int cached_only_ = 0;
};

}  // namespace splash::cache
