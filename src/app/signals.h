// SIGINT and SIGTERM as something to wait for. The first asks for an orderly end, the second ends the process at once.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace splash::app {

// The exit status of a verb that a signal ended, as shells report SIGINT.
inline constexpr int exit_interrupted = 130;

class StopSignals {
 public:
  // Before any other thread starts: they inherit the blocked signals, so that only the waiting thread takes them.
  static StopSignals& take() {
    static StopSignals* const instance = new StopSignals;  // never destroyed: its thread waits until the process ends
    return *instance;
  }

  const std::atomic<bool>* flag() const { return &requested_; }
  bool requested() const { return requested_; }
  // As the first signal.
  void request() {
    {
      const std::lock_guard lock(mutex_);
      requested_ = true;
    }
    bell_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    bell_.wait(lock, [this] { return requested_.load(); });
  }

 private:
  StopSignals() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    std::thread([this] { run(); }).detach();
  }
  void run() {
    int signal = 0;
    sigwait(&signals_, &signal);
    request();
    sigwait(&signals_, &signal);
    _exit(128 + signal);
  }

  sigset_t signals_;
  std::atomic<bool> requested_{false};
  std::mutex mutex_;
  std::condition_variable bell_;
};

}  // namespace splash::app
