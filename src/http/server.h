// The HTTP/1.1 server: one io thread, any number of connections, each answering one request at a time.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "http/guard.h"
#include "http/limits.h"
#include "http/message.h"

namespace splash::http {

struct ServerOptions {
  std::string host = "127.0.0.1";  // an IPv4 or IPv6 address, or "localhost"
  int port = 8080;                 // 0: any free one
  GuardOptions guard;
  Limits limits;
};

class Server {
 public:
  // Takes the address at once, so that a port in use is known before anything slow; nothing is accepted before start().
  static Result<std::unique_ptr<Server>> bind(ServerOptions options);
  virtual ~Server() = default;  // stops at once

  virtual int port() const = 0;
  virtual const Guard& guard() const = 0;
  virtual Status start(std::shared_ptr<Handler> handler) = 0;

  // No new connections, no further request on a kept one; waits until the running ones have ended, at most `grace`.
  // True if all ended by themselves.
  virtual bool drain(Duration grace) = 0;
  // Cuts what still runs and ends the io thread.
  virtual void stop() = 0;

  virtual int connections() const = 0;
};

}  // namespace splash::http
