#include "api/workers.h"

#include <gtest/gtest.h>

#include <future>
#include <latch>
#include <memory>
#include <set>

namespace splash::api {
namespace {

// Runs `task` on a worker and says on which.
std::future<std::thread::id> where(Workers& workers, std::function<void()> task = [] {}) {
  auto promise = std::make_shared<std::promise<std::thread::id>>();
  workers.post([promise, task = std::move(task)] {
    task();
    promise->set_value(std::this_thread::get_id());
  });
  return promise->get_future();
}

TEST(Workers, TasksThatFollowEachOtherMeetOneThread) {
  Workers workers(3);
  std::set<std::thread::id> threads;
  for (int i = 0; i < 50; ++i) {
    while (workers.idle() < 3) std::this_thread::yield();
    threads.insert(where(workers).get());
  }
  EXPECT_EQ(threads.size(), 1u);
}

TEST(Workers, TasksAtOnceMeetAllThreads) {
  Workers workers(3);
  std::latch all(3);  // each waits for the other two
  std::vector<std::future<std::thread::id>> places;
  for (int i = 0; i < 3; ++i) places.push_back(where(workers, [&] { all.arrive_and_wait(); }));
  for (int i = 0; i < 20; ++i) places.push_back(where(workers));
  std::set<std::thread::id> threads;
  for (auto& place : places) threads.insert(place.get());
  EXPECT_EQ(threads.size(), 3u);
}

}  // namespace
}  // namespace splash::api
