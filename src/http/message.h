// Requests and responses as plain values, and the exchange through which one request is answered. No socket in sight.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace splash::http {

struct Header {
  std::string name;
  std::string value;
};

// A request without its body.
struct Head {
  std::string method;
  std::string target;  // as it came
  std::string path;    // percent-decoded, `.`, `..` and `//` resolved, without query; starts with '/'
  std::vector<Header> headers;
  std::optional<std::uint64_t> content_length;  // absent: no body, or a chunked one

  // Value of the first field of that name, in any case; nullptr if there is none.
  const std::string* find(std::string_view name) const;
  int count(std::string_view name) const;
};

struct Request {
  Head head;
  std::string body;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<Header> headers;  // beside Content-Type, Content-Length and Connection
  bool close = false;           // end the connection after it
};

// The answering of one request. All calls are made on the server's io thread, where all callbacks run too; only post()
// may be called from any thread. Holding on to an exchange after its client has gone is harmless.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual void respond(Response response) = 0;     // the whole answer
  virtual void start_stream(Response head) = 0;    // or: a head, then pieces as they come, then finish()
  virtual void write(std::string_view bytes) = 0;  // never blocks; a reader too far behind is cut off
  virtual void finish() = 0;
  virtual void abort() = 0;  // closes without the stream's end mark: the answer is not whole

  virtual bool gone() const = 0;
  // Called at most once, as soon as the client is known to have gone before the answer was complete.
  virtual void on_gone(std::function<void()> callback) = 0;

  virtual void post(std::function<void()> task) = 0;
  virtual void after(Duration delay, std::function<void()> task) = 0;  // dropped if the exchange has ended by then
};

// What stands behind the server. Called on the io thread; must return at once.
class Handler {
 public:
  virtual ~Handler() = default;
  // The head has arrived, the body has not. A response refuses the request before its body is read.
  virtual std::optional<Response> refuse(const Head& head) = 0;
  virtual void handle(Request request, std::shared_ptr<Exchange> exchange) = 0;
  // The body of an error that the server itself finds, in the shape the path's clients understand.
  virtual Response error(const Head& head, int status, std::string_view message) = 0;
  // Added to every response (CORS).
  virtual std::vector<Header> common_headers(const Head& head) = 0;
};

bool equals_ignoring_case(std::string_view a, std::string_view b);

}  // namespace splash::http
