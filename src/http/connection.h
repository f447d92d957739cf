// One client connection: reads a request, hands it to the handler, writes the answer, again. Everything here runs on
// the server's single io thread, so there is nothing to lock. The only two files that see Beast and Asio are
// connection.cc and server.cc.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <optional>
#include <string>

#include "http/guard.h"
#include "http/limits.h"
#include "http/message.h"
#include "http/wire.h"

namespace splash::http {

class ConnectionExchange;

// What a connection needs of its server.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;
  virtual Handler& handler() = 0;
  virtual const Guard& guard() const = 0;
  virtual const Limits& limits() const = 0;
  virtual bool draining() const = 0;
  // Counts bytes of bodies against Limits::body_bytes_in_flight; false: they do not fit.
  virtual bool charge(std::size_t bytes) = 0;
  virtual void refund(std::size_t bytes) = 0;
  virtual void closed(class Connection* connection) = 0;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Tcp = boost::asio::ip::tcp;

  Connection(Tcp::socket socket, ConnectionOwner& owner);
  ~Connection();

  void start();              // read the first request
  void refuse_overloaded();  // say 503 and end
  void drain();              // end now if idle, else after the running answer
  void close();              // end at once
  bool idle() const { return state_ == State::idle || state_ == State::reading_head; }
  bool busy() const { return state_ == State::reading_body || state_ == State::answering; }
  TimePoint waiting_since() const { return waiting_since_; }

 private:
  friend class ConnectionExchange;
  enum class State {
    idle,  // between requests; the watch reads
    reading_head,
    reading_body,
    answering,  // the handler has the request; the watch reads, to notice the client's going
    lingering,  // all is written; reads and drops until the client closes
    closed
  };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void read_head();
  void on_head(boost::system::error_code error);
  void read_fields();  // what the parser has, even of a broken head
  bool take_head();    // checks it; false: an error was answered
  void begin_body();
  void read_body();
  void on_body(boost::system::error_code error);
  bool charge_body(std::size_t bytes);
  void dispatch();

  void watch();
  void on_watch(boost::system::error_code error, std::size_t bytes);

  void answer_error(int status, std::string_view message);  // and close after it
  void begin_exchange();
  void send(std::string bytes);  // queues and flushes
  void flush();
  void after_answer();
  void next_request();
  void linger();
  void client_gone();

  void arm(std::chrono::milliseconds time);
  void disarm();
  void on_deadline();

  Tcp::socket socket_;
  ConnectionOwner& owner_;
  boost::asio::steady_timer timer_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  Head head_;
  std::string local_address_;

  State state_ = State::reading_head;
  TimePoint waiting_since_;
  TimePoint body_deadline_;
  std::size_t charged_ = 0;  // body bytes of this request counted with the owner
  std::size_t drained_ = 0;  // bytes dropped while lingering
  bool watching_ = false;
  bool keep_alive_ = false;
  bool http_1_0_ = false;
  bool complete_ = false;  // the answer has been handed over whole

  std::string queued_;  // waits for the write in flight
  std::string in_flight_;
  bool writing_ = false;

  std::shared_ptr<ConnectionExchange> exchange_;
};

}  // namespace splash::http
