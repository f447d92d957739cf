// The one place where other threads touch the engine: a queue of commands with a bell.
#pragma once

#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "link/command.h"

namespace splash::engine {

class Inbox {
 public:
  // False when the engine has gone: nobody will take the command, which is left as it was.
  bool post(link::Command& command) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return false;
      commands_.push_back(std::move(command));
    }
    bell_.notify_one();
    return true;
  }

  // Closes for good if nothing is waiting; so no command is lost between the last take() and the end.
  bool close_if_empty() {
    const std::lock_guard lock(mutex_);
    closed_ = commands_.empty();
    return closed_;
  }

  // Everything posted so far, in order.
  std::vector<link::Command> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(commands_, {});
  }

  bool empty() const {
    const std::lock_guard lock(mutex_);
    return commands_.empty();
  }

  // Sleeps until something was posted, interrupt() was called or `until` has passed.
  void wait(TimePoint until) {
    std::unique_lock lock(mutex_);
    const auto rung = [&] { return interrupted_ || !commands_.empty(); };
    // Some libraries overflow on wait_until(max): wait without end instead.
    if (until == TimePoint::max()) {
      bell_.wait(lock, rung);
    } else {
      bell_.wait_until(lock, until, rung);
    }
    interrupted_ = false;
  }

  void interrupt() {
    {
      const std::lock_guard lock(mutex_);
      interrupted_ = true;
    }
    bell_.notify_one();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable bell_;
  std::vector<link::Command> commands_;
  bool interrupted_ = false;
  bool closed_ = false;
};

}  // namespace splash::engine
