#include "cache/page_pool.h"

#include <algorithm>

#include "base/check.h"

namespace splash::cache {

PagePool::PagePool(int pages) : holds_(pages) {
  SPLASH_CHECK(pages > 0);
  free_.reserve(pages);
}

int PagePool::to_open(int pages) const {
  return std::clamp(pages - static_cast<int>(free_.size()), 0, total() - opened_);
}

void PagePool::open(int pages) {
  SPLASH_CHECK(pages >= 0 && pages <= total() - opened_);
  opened_ += pages;
  for (PageId page = opened_ - 1; page >= opened_ - pages; --page) free_.push_back(page);
}

void PagePool::give_up_unopened() { holds_.resize(opened_); }

PageId PagePool::take() {
  SPLASH_CHECK(!free_.empty(), "no free page: make room first");
  const PageId page = free_.back();
  free_.pop_back();
  SPLASH_CHECK(is_free(page));
  holds_[page].lanes = 1;
  return page;
}

void PagePool::lane_hold(PageId page) {
  SPLASH_CHECK(!is_free(page), "page {}", page);
  if (holds_[page].lanes++ == 0) --cached_only_;
}

void PagePool::lane_release(PageId page) {
  SPLASH_CHECK(holds_[page].lanes > 0, "page {}", page);
  if (--holds_[page].lanes > 0) return;
  if (holds_[page].cache > 0) {
    ++cached_only_;
  } else {
    free_.push_back(page);
  }
}

void PagePool::cache_hold(PageId page) {
  SPLASH_CHECK(!is_free(page), "page {}", page);
  ++holds_[page].cache;
}

void PagePool::cache_release(PageId page) {
  SPLASH_CHECK(holds_[page].cache > 0, "page {}", page);
  if (--holds_[page].cache > 0 || holds_[page].lanes > 0) return;
  --cached_only_;
  free_.push_back(page);
}

}  // namespace splash::cache
