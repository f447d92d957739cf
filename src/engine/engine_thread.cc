#include "engine/engine_thread.h"

#include <algorithm>

namespace splash::engine {

EngineThread::EngineThread(Engine& engine, const Clock& clock)
    : engine_(engine), clock_(clock), thread_([this] { run(); }) {}

void EngineThread::stop(Duration grace) {
  give_up_ = clock_.now() + grace;
  stopping_ = true;
  engine_.interrupt();
  const std::lock_guard lock(join_);
  if (thread_.joinable()) thread_.join();
}

void EngineThread::run() {
  while (true) {
    TimePoint wake = TimePoint::max();
    if (stopping_) {
      engine_.close_door();
      wake = give_up_;
      if (clock_.now() >= wake) engine_.fail_all({ErrorKind::cancelled, "the server is shutting down", ""});
      if (engine_.retire()) return;
    }
    if (!engine_.tick(clock_.now())) engine_.wait(std::min(wake, engine_.next_wake()));
  }
}

}  // namespace splash::engine
