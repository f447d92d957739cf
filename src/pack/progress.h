// Progress on standard error: a bar that redraws itself on a terminal, a line per tenth elsewhere.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace splash::pack {

class Progress {
 public:
  Progress(std::string title, std::int64_t total_bytes, bool show);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(std::int64_t bytes);  // from any thread

 private:
  void draw(std::int64_t done);

  std::string title_;
  std::int64_t total_bytes_;
  bool show_;
  bool terminal_;
  std::chrono::steady_clock::time_point start_;
  std::atomic<std::int64_t> done_{0};
  std::mutex mutex_;  // guards what is drawn
  std::chrono::steady_clock::time_point last_drawn_{};
  int last_tenth_ = 0;
};

}  // namespace splash::pack
