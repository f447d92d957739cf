// The thread that owns the engine's state: ticks while there is work, sleeps while there is none.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "engine/engine.h"

namespace splash::engine {

class EngineThread {
 public:
  // Starts ticking at once. `engine` and `clock` outlive this object.
  EngineThread(Engine& engine, const Clock& clock);
  ~EngineThread() { stop(Duration::zero()); }
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // Refuses new requests, lets the others run for up to `grace`, then fails what is left as cancelled. Returns when the
  // thread has ended and every sink has had its last event. Any thread but the engine's; a second call waits too.
  void stop(Duration grace);

 private:
  void run();

  Engine& engine_;
  const Clock& clock_;
  std::atomic<bool> stopping_{false};
  std::atomic<TimePoint> give_up_{TimePoint::max()};
  std::mutex join_;
  std::thread thread_;  // last: it starts when everything above is there
};

}  // namespace splash::engine
