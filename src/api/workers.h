// A few threads for what would hold up the io thread: JSON, templates, tokenizing, grammars.
//
// Whoever became idle last takes the next task: its memory and caches are warm. A thread's first long prompt takes it 4 ms more
// than the next (32K tokens: 1,600 page faults), and the second turn of a conversation would meet the second thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace splash::api {

class Workers {
 public:
  explicit Workers(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  }
  // Tasks that have not begun are dropped.
  ~Workers() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      for (Idle* worker : idle_) worker->bell.notify_one();
    }
    for (std::thread& thread : threads_) thread.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  void post(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (idle_.empty()) return;
    Idle* const worker = idle_.back();
    idle_.pop_back();
    worker->called = true;
    worker->bell.notify_one();
  }

  // Threads that wait for a task.
  int idle() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(idle_.size());
  }

 private:
  struct Idle {
    std::condition_variable bell;
    bool called = false;
  };

  void run() {
    Idle self;
    std::unique_lock lock(mutex_);
    while (true) {
      while (tasks_.empty() && !stopping_) {
        self.called = false;
        idle_.push_back(&self);
        self.bell.wait(lock, [&] { return stopping_ || self.called; });
      }
      if (stopping_) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  mutable std::mutex mutex_;
  std::vector<Idle*> idle_;  // the last one since the shortest time
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace splash::api
