// Stop strings in a stream of text: what comes before the first one that is completed, holding back only what may still
// become one.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace splash::chat {

class StopFilter {
 public:
  explicit StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {
    std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
  }

  // Text that is free to go. The stop string that is completed first ends it, the longest of those that end there, so
  // the result does not depend on how the text is cut into pieces.
  std::string push(std::string_view text) {
    if (met()) return {};
    held_ += text;
    std::size_t end = std::string::npos;
    for (const std::string& stop : stops_) {
      const std::size_t at = held_.find(stop);
      if (at == std::string::npos) continue;
      const std::size_t stop_end = at + stop.size();
      if (stop_end < end || (stop_end == end && stop.size() > met_.size())) {
        end = stop_end;
        met_ = stop;
      }
    }
    if (met()) {
      held_.resize(end - met_.size());
      return std::exchange(held_, {});
    }
    const std::size_t keep = longest_beginning();
    std::string free = held_.substr(0, held_.size() - keep);
    held_.erase(0, free.size());
    return free;
  }

  // No more text follows for now: nothing held back can become a stop string.
  std::string flush() { return met() ? std::string() : std::exchange(held_, {}); }

  bool met() const { return !met_.empty(); }
  const std::string& stop() const { return met_; }

 private:
  // Length of the longest end of held_ that begins a stop string.
  std::size_t longest_beginning() const {
    std::size_t longest = 0;
    for (const std::string& stop : stops_) {
      for (std::size_t size = std::min(stop.size() - 1, held_.size()); size > longest; --size) {
        if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, size))) {
          longest = size;
          break;
        }
      }
    }
    return longest;
  }

  std::vector<std::string> stops_;
  std::string held_;
  std::string met_;
};

}  // namespace splash::chat
