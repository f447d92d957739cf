// A fixed pool for the engine thread's parallel regions: the caller is thread 0, helpers spin briefly for the next
// region and then sleep. Regions are short (tens of microseconds), so waking by futex would cost more than the work.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace splash {

class ThreadPool {
 public:
  // `threads` in all, the caller included; 1 runs everything on the caller.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls body(thread) once for each thread in 0..threads()-1 and returns when all are done. Not reentrant; one caller.
  template <class Body>
  void run(Body&& body) {
    run_raw([](void* context, int thread) { (*static_cast<std::remove_reference_t<Body>*>(context))(thread); },
            const_cast<void*>(static_cast<const void*>(&body)));
  }

  // Splits [0, count) into threads() contiguous parts of whole `grain` items (same part for the same thread every
  // time) and calls body(begin, end) for the parts that are not empty.
  template <class Body>
  void split(int count, int grain, Body&& body) {
    const int grains = (count + grain - 1) / grain;
    if (grains <= 1 || threads_ == 1) {
      if (count > 0) body(0, count);
      return;
    }
    run([&](int thread) {
      const int begin = static_cast<int>(std::int64_t{grains} * thread / threads_) * grain;
      const int end = static_cast<int>(std::int64_t{grains} * (thread + 1) / threads_) * grain;
      if (begin < end && begin < count) body(begin, end < count ? end : count);
    });
  }

 private:
  using Raw = void (*)(void*, int);
  void run_raw(Raw function, void* context);
  void work(int thread);

  int threads_;
  Raw function_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<std::uint32_t> generation_{0};
  alignas(64) std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace splash
