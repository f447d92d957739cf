#include "base/thread_pool.h"

#include "base/check.h"
#include "base/pause.h"

namespace splash {

namespace {
// About 50 us of spinning on current x86 cores; longer waits sleep.
constexpr int spin_rounds = 2000;
}  // namespace

ThreadPool::ThreadPool(int threads) : threads_(threads) {
  SPLASH_CHECK(threads >= 1);
  for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_raw(Raw function, void* context) {
  if (threads_ == 1) return function(context, 0);
  function_ = function;
  context_ = context;
  running_.store(threads_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  function(context, 0);
  for (int round = 0; running_.load(std::memory_order_acquire) != 0; ++round) {
    if (round < spin_rounds) {
      pause_cpu();
    } else {
      std::this_thread::yield();  // a helper lost its core; spinning on would only keep it off
    }
  }
}

void ThreadPool::work(int thread) {
  std::uint32_t seen = 0;
  while (true) {
    std::uint32_t now = generation_.load(std::memory_order_acquire);
    for (int round = 0; now == seen && round < spin_rounds; ++round) {
      pause_cpu();
      now = generation_.load(std::memory_order_acquire);
    }
    if (now == seen) {
      generation_.wait(seen, std::memory_order_acquire);
      continue;
    }
    seen = now;
    if (stop_.load(std::memory_order_relaxed)) return;
    function_(context_, thread);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace splash
