// Who holds which KV page. A page may be held by several lanes and by several places of the prefix cache; it is free
// when nobody holds it. Index arithmetic only: the rows live in the model.
#pragma once

#include <vector>

#include "model/model.h"

namespace splash::cache {

using model::PageId;

class PagePool {
 public:
  explicit PagePool(int pages);

  int total() const { return static_cast<int>(holds_.size()); }
  int free() const { return static_cast<int>(free_.size()); }
  int cached_only() const { return cached_only_; }  // evicting the whole cache would free these
  int held_by_lanes() const { return total() - free() - cached_only_; }
  // Pages that a lane could get, the cache's own included.
  int available() const { return free() + cached_only_; }

  // A free page, held by one lane. There must be one.
  PageId take();

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
  std::vector<PageId> free_;  // last in, first out: the warmest rows are written again first
  int cached_only_ = 0;
};

}  // namespace splash::cache
