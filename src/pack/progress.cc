#include "pack/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace splash::pack {

namespace {
constexpr int bar_width = 30;
constexpr std::chrono::milliseconds redraw_interval{100};
}  // namespace

Progress::Progress(std::string title, std::int64_t total_bytes, bool show)
    : title_(std::move(title)),
      total_bytes_(std::max<std::int64_t>(total_bytes, 1)),
      show_(show),
      terminal_(::isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  if (!show_ || !terminal_) return;
  draw(done_.load());
  std::fputs("\n", stderr);
}

void Progress::add(std::int64_t bytes) {
  const std::int64_t done = done_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (!show_) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;  // another thread draws
  const auto now = std::chrono::steady_clock::now();
  const int tenth = static_cast<int>(done * 10 / total_bytes_);
  if (terminal_ ? now - last_drawn_ < redraw_interval : tenth == last_tenth_) return;
  last_drawn_ = now;
  last_tenth_ = tenth;
  draw(done);
}

void Progress::draw(std::int64_t done) {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  const double rate = static_cast<double>(done) / std::max(elapsed.count(), 1e-3);
  const int filled = static_cast<int>(done * bar_width / total_bytes_);
  std::string line = title_;
  if (terminal_) line = fmt::format("\r{} [{:#<{}}{:.<{}}]", title_, "", filled, "", bar_width - filled);
  line += fmt::format(" {:3}%  {:.2f} of {:.2f} GB  {:.2f} GB/s", done * 100 / total_bytes_,
                      static_cast<double>(done) / 1e9, static_cast<double>(total_bytes_) / 1e9, rate / 1e9);
  fmt::print(stderr, "{}{}", line, terminal_ ? "" : "\n");
}

}  // namespace splash::pack
