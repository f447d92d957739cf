// The server's rooms: which path does what, for whom, and the handler that leads there.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "api/backend.h"
#include "api/error.h"
#include "api/metrics.h"
#include "api/workers.h"
#include "http/guard.h"
#include "http/message.h"

namespace splash::api {

class Service final : public http::Handler {
 public:
  // `guard` (the server's) checks keys; it, and the backend's engine, outlive the service.
  Service(Backend backend, const http::Guard& guard);

  std::optional<http::Response> refuse(const http::Head& head) override;
  void handle(http::Request request, std::shared_ptr<http::Exchange> exchange) override;
  http::Response error(const http::Head& head, int status, std::string_view message) override;
  std::vector<http::Header> common_headers(const http::Head& head) override;

  // /ready says no from now on (shutting down).
  void set_ready(bool ready) { ready_ = ready; }

  // What the routes lead to (the table is in service.cc).
  using Exchange = std::shared_ptr<http::Exchange>;
  void get_health(http::Request request, const Exchange& exchange);
  void get_ready(http::Request request, const Exchange& exchange);
  void get_metrics(http::Request request, const Exchange& exchange);
  void get_models(http::Request request, const Exchange& exchange);
  void get_model(http::Request request, const Exchange& exchange);
  void post_chat(http::Request request, const Exchange& exchange);

 private:
  http::Response preflight(const http::Head& head);
  void respond(const Exchange& exchange, http::Response response);
  void respond_error(const Exchange& exchange, const ApiError& error);

  const Backend backend_;
  const http::Guard& guard_;
  Metrics metrics_;
  std::atomic<bool> ready_{true};
  Workers workers_;  // last: its threads use the members above
};

}  // namespace splash::api
