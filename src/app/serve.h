// The verb serve, and the server as the bench drives it.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>

#include "api/service.h"
#include "app/runtime.h"
#include "http/server.h"

namespace splash::app {

void add_serve_verb(CLI::App& app, int& exit_code);

// A model behind a port.
class Serving {
 public:
  static Result<std::unique_ptr<Serving>> open(std::unique_ptr<http::Server> server, std::unique_ptr<Runtime> runtime,
                                               api::Backend backend);
  ~Serving() { stop(Duration::zero()); }

  int port() const { return server_->port(); }
  Runtime& runtime() { return *runtime_; }

  // No new requests; the running ones may end within `grace`, then they are told and cut.
  void stop(Duration grace);

 private:
  Serving() = default;
  // In this order: the server's thread and the service's workers post to the engine, the engine's last events post to
  // the server's context.
  std::unique_ptr<http::Server> server_;
  std::unique_ptr<Runtime> runtime_;
  std::shared_ptr<api::Service> service_;
};

}  // namespace splash::app
