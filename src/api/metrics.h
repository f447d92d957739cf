// What the text half measures, and the text of /metrics.
#pragma once

#include <memory>
#include <string>

#include "api/backend.h"
#include "base/clock.h"

namespace splash::api {

// Thread-safe. The engine's own numbers come from Backend::status when they are asked for.
class Metrics {
 public:
  Metrics();
  ~Metrics();
  void request_ended(int status);  // of any route but the probes
  void first_token_after(Duration since_arrival);
  void generation_took(Duration since_arrival);
  std::string text(const Backend& backend) const;  // Prometheus text format 0.0.4

 private:
  struct Series;
  std::unique_ptr<Series> series_;
};

}  // namespace splash::api
