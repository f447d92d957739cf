#include "http/connection.h"

#include <fmt/format.h>

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>
#include <utility>

#include "http/target.h"

namespace splash::http {

namespace asio = boost::asio;
namespace beast = boost::beast;
using boost::system::error_code;

namespace {

bool is_parse_error(const error_code& error) {
  return error && error.category() == make_error_code(beast::http::error::bad_method).category();
}

}  // namespace

// The handler's end of one answer. It outlives neither the answer nor the connection in effect: after either has ended
// its calls do nothing. Callers hold it by a shared_ptr of their own.
class ConnectionExchange final : public Exchange, public std::enable_shared_from_this<ConnectionExchange> {
 public:
  ConnectionExchange(std::shared_ptr<Connection> connection, bool head_only, std::vector<Header> common)
      : executor_(connection->socket_.get_executor()),
        connection_(std::move(connection)),
        common_(std::move(common)),
        head_only_(head_only) {}

  void respond(Response response) override {
    if (!connection_ || started_) return;
    started_ = true;
    const auto connection = connection_;
    connection->keep_alive_ &= !response.close && !connection->owner_.draining();
    std::string bytes = response_head(response, common_, Framing::length, connection->keep_alive_);
    if (!head_only_) bytes += response.body;
    end();
    connection->complete_ = true;
    connection->send(std::move(bytes));
  }

  void start_stream(Response head) override {
    if (!connection_ || started_) return;
    started_ = true;
    const auto connection = connection_;
    framing_ = connection->http_1_0_ ? Framing::until_close : Framing::chunked;
    connection->keep_alive_ &= framing_ == Framing::chunked && !head.close && !connection->owner_.draining();
    connection->send(response_head(head, common_, framing_, connection->keep_alive_));
  }

  void write(std::string_view bytes) override {
    if (!connection_ || !started_ || head_only_) return;
    const auto connection = connection_;  // send may end the exchange
    connection->send(framing_ == Framing::chunked ? chunk(bytes) : std::string(bytes));
  }

  void finish() override {
    if (!connection_ || !started_) return;
    const auto connection = connection_;
    end();
    connection->complete_ = true;
    connection->send(framing_ == Framing::chunked && !head_only_ ? std::string(last_chunk) : std::string());
  }

  void abort() override {
    if (!connection_) return;
    const auto connection = connection_;
    end();
    connection->complete_ = true;
    connection->keep_alive_ = false;
    connection->send({});
  }

  bool gone() const override { return gone_; }
  void on_gone(std::function<void()> callback) override {
    if (gone_) return callback();
    on_gone_ = std::move(callback);
  }

  void post(std::function<void()> task) override { asio::post(executor_, std::move(task)); }
  void after(Duration delay, std::function<void()> task) override {
    auto timer = std::make_shared<asio::steady_timer>(executor_, delay);
    timer->async_wait([self = shared_from_this(), timer, task = std::move(task)](error_code error) {
      if (!error && self->connection_) task();
    });
  }

  // The client has gone, or the connection is cut.
  void lose() {
    if (!connection_) return;
    auto callback = std::move(on_gone_);
    end();
    gone_ = true;
    if (callback) callback();
  }

 private:
  // Parts the two ends. Whoever calls holds the exchange, and a copy of connection_ where it goes on using it.
  void end() {
    on_gone_ = nullptr;
    connection_->exchange_.reset();
    connection_.reset();
  }

  asio::any_io_executor executor_;
  std::shared_ptr<Connection> connection_;
  std::vector<Header> common_;
  std::function<void()> on_gone_;
  Framing framing_ = Framing::length;
  bool head_only_ = false;
  bool started_ = false;
  bool gone_ = false;
};

Connection::Connection(Tcp::socket socket, ConnectionOwner& owner)
    : socket_(std::move(socket)),
      owner_(owner),
      timer_(socket_.get_executor()),
      buffer_(owner.limits().header_bytes + owner.limits().pipelined_bytes + 64 * 1024) {
  error_code ignored;
  socket_.set_option(Tcp::no_delay(true), ignored);
  const auto local = socket_.local_endpoint(ignored);
  if (!ignored) local_address_ = local.address().to_string();
}

Connection::~Connection() { owner_.refund(charged_); }

void Connection::start() { read_head(); }

// Reading a request ---------------------------------------------------------------------------------------------------

void Connection::read_head() {
  state_ = State::reading_head;
  waiting_since_ = std::chrono::steady_clock::now();
  parser_.emplace();
  parser_->header_limit(owner_.limits().header_bytes);
  parser_->body_limit(boost::none);  // checked by begin_body, after the handler has seen the head
  head_ = {};
  arm(owner_.limits().header_time);
  beast::http::async_read_header(socket_, buffer_, *parser_,
                                 [self = shared_from_this()](error_code error, std::size_t) { self->on_head(error); });
}

void Connection::on_head(error_code error) {
  if (state_ != State::reading_head) return;
  disarm();
  keep_alive_ = false;
  if (error) {
    using Parse = beast::http::error;
    const bool unparsable = is_parse_error(error);
    if (!unparsable || error == Parse::end_of_stream || error == Parse::partial_message) return close();
    read_fields();
    if (error == Parse::header_limit || error == Parse::buffer_overflow)
      return answer_error(431, "the request head is larger than this server takes");
    if (error == Parse::bad_version) return answer_error(505, "only HTTP/1.1 and HTTP/1.0 are served");
    return answer_error(400, "the request cannot be parsed as HTTP");
  }
  if (!take_head()) return;
  const bool has_body = parser_->chunked() || head_.content_length.value_or(0) > 0;
  if (auto refusal = owner_.handler().refuse(head_)) {
    if (has_body) keep_alive_ = false;  // the unread body stands in the way of the next request
    begin_exchange();
    const auto exchange = exchange_;
    return exchange->respond(std::move(*refusal));
  }
  if (has_body) return begin_body();
  dispatch();
}

void Connection::read_fields() {
  const auto& message = parser_->get();
  head_.method = std::string(message.method_string());
  head_.target = std::string(message.target());
  for (const auto& field : message)
    head_.headers.push_back({std::string(field.name_string()), std::string(field.value())});
  http_1_0_ = message.version() == 10;
}

bool Connection::take_head() {
  read_fields();
  const unsigned version = parser_->get().version();
  if (version != 10 && version != 11) return answer_error(505, "only HTTP/1.1 and HTTP/1.0 are served"), false;
  auto target = parse_target(head_.target);
  if (!target) return answer_error(400, target.error().message), false;
  head_.path = std::move(target->path);
  if (const auto length = parser_->content_length()) head_.content_length = *length;

  const Guard& guard = owner_.guard();
  auto refusal = guard.check_host(head_, target->authority, local_address_);
  if (!refusal) refusal = guard.check_origin(head_);
  if (refusal) return answer_error(refusal->status, refusal->message), false;
  if (owner_.draining()) return answer_error(503, "the server is shutting down"), false;

  const std::string* encoding = head_.find("Transfer-Encoding");
  if (encoding && !(parser_->chunked() && equals_ignoring_case(*encoding, "chunked")))
    return answer_error(400, "the only Transfer-Encoding taken is chunked"), false;
  keep_alive_ = parser_->keep_alive() && !http_1_0_;
  return true;
}

void Connection::begin_body() {
  const Limits& limits = owner_.limits();
  const std::size_t announced = head_.content_length.value_or(0);
  if (announced > limits.body_bytes)
    return answer_error(413, fmt::format("the body has {} bytes; the limit is {}", announced, limits.body_bytes));
  if (!charge_body(announced)) return;
  const std::string* expect = head_.find("Expect");
  if (expect && !equals_ignoring_case(*expect, "100-continue"))
    return answer_error(417, "the only expectation known is 100-continue");
  state_ = State::reading_body;
  if (expect && !http_1_0_) send("HTTP/1.1 100 Continue\r\n\r\n");
  parser_->body_limit(limits.body_bytes);
  parser_->eager(true);
  const auto upload =
      static_cast<std::int64_t>(announced ? announced : limits.body_bytes) / limits.body_bytes_per_second;
  body_deadline_ = std::chrono::steady_clock::now() + limits.body_silence + std::chrono::seconds(upload);
  read_body();
}

void Connection::read_body() {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(body_deadline_ - std::chrono::steady_clock::now());
  arm(std::min(left, owner_.limits().body_silence));
  beast::http::async_read_some(socket_, buffer_, *parser_,
                               [self = shared_from_this()](error_code error, std::size_t) { self->on_body(error); });
}

void Connection::on_body(error_code error) {
  if (state_ != State::reading_body) return;
  disarm();
  if (error == beast::http::error::body_limit)
    return answer_error(413, fmt::format("the body is larger than the limit of {} bytes", owner_.limits().body_bytes));
  if (error == beast::http::error::partial_message || error == beast::http::error::end_of_stream)
    return answer_error(400, "the body ends before its stated length");
  if (is_parse_error(error)) return answer_error(400, "the body cannot be parsed as HTTP");
  if (error) return close();
  if (!charge_body(parser_->get().body().size())) return;
  if (parser_->is_done()) return dispatch();
  read_body();
}

// Raises this request's share of the bodies in flight to `bytes`.
bool Connection::charge_body(std::size_t bytes) {
  if (bytes <= charged_) return true;
  if (!owner_.charge(bytes - charged_)) {
    answer_error(503, "too many request bytes are in flight; try again");
    return false;
  }
  charged_ = bytes;
  return true;
}

void Connection::dispatch() {
  begin_exchange();
  Request request{std::move(head_), std::move(parser_->get().body())};
  owner_.handler().handle(std::move(request), exchange_);
}

// Noticing that the client goes
// ----------------------------------------------------------------------------------------

void Connection::watch() {
  if (watching_ || state_ == State::closed || buffer_.size() > owner_.limits().pipelined_bytes) return;
  watching_ = true;
  socket_.async_read_some(buffer_.prepare(4096), [self = shared_from_this()](error_code error, std::size_t bytes) {
    self->on_watch(error, bytes);
  });
}

void Connection::on_watch(error_code error, std::size_t bytes) {
  watching_ = false;
  buffer_.commit(bytes);
  switch (state_) {
    case State::answering:
      if (!error) return watch();
      if (!complete_) return client_gone();
      keep_alive_ = false;  // it will not ask again, but may still read
      return;
    case State::idle:
      if (error && error != asio::error::operation_aborted) return close();
      return read_head();
    case State::lingering:
      drained_ += bytes;
      buffer_.consume(buffer_.size());
      if (error || drained_ > owner_.limits().body_bytes) return close();
      return watch();
    default:
      return;
  }
}

void Connection::client_gone() {
  const auto self = shared_from_this();
  const auto exchange = exchange_;
  close();
  if (exchange) exchange->lose();
}

// Writing the answer
// ---------------------------------------------------------------------------------------------------

void Connection::begin_exchange() {
  state_ = State::answering;
  complete_ = false;
  std::vector<Header> common = owner_.handler().common_headers(head_);
  exchange_ = std::make_shared<ConnectionExchange>(shared_from_this(), head_.method == "HEAD", std::move(common));
  watch();
}

void Connection::answer_error(int status, std::string_view message) {
  keep_alive_ = false;
  Response response = owner_.handler().error(head_, status, message);
  response.close = true;
  begin_exchange();
  const auto exchange = exchange_;
  exchange->respond(std::move(response));
}

void Connection::refuse_overloaded() { answer_error(503, "all connections of this server are taken; try again"); }

void Connection::send(std::string bytes) {
  if (state_ == State::closed) return;
  if (queued_.empty())
    queued_ = std::move(bytes);
  else
    queued_ += bytes;
  if (!complete_ && queued_.size() + in_flight_.size() > owner_.limits().unsent_bytes) return client_gone();
  flush();
}

void Connection::flush() {
  if (writing_) return;
  if (queued_.empty()) {
    if (complete_ && state_ == State::answering) after_answer();
    return;
  }
  writing_ = true;
  in_flight_ = std::exchange(queued_, {});
  if (state_ == State::answering) arm(owner_.limits().write_stall);
  asio::async_write(socket_, asio::buffer(in_flight_), [self = shared_from_this()](error_code error, std::size_t) {
    self->writing_ = false;
    self->in_flight_.clear();
    if (self->state_ == State::answering) self->disarm();
    if (self->state_ == State::closed) return;
    if (error) return self->client_gone();
    self->flush();
  });
}

void Connection::after_answer() {
  owner_.refund(std::exchange(charged_, 0));
  if (keep_alive_ && !owner_.draining()) return next_request();
  linger();
}

void Connection::next_request() {
  state_ = State::idle;
  waiting_since_ = std::chrono::steady_clock::now();
  if (!watching_) return read_head();
  // The watch's read is under way and becomes the first of the next request.
  arm(owner_.limits().idle_time);
  if (buffer_.size() > 0) socket_.cancel();
}

// Closing at once would answer bytes that still arrive with a reset, and the client might lose the response to it.
void Connection::linger() {
  state_ = State::lingering;
  drained_ = 0;
  buffer_.consume(buffer_.size());
  error_code ignored;
  socket_.shutdown(Tcp::socket::shutdown_send, ignored);
  arm(owner_.limits().linger);
  watch();
}

void Connection::drain() {
  if (idle()) return close();
  keep_alive_ = false;
}

void Connection::close() {
  if (state_ == State::closed) return;
  const auto self = shared_from_this();
  state_ = State::closed;
  disarm();
  error_code ignored;
  socket_.close(ignored);
  owner_.closed(this);
  if (const auto exchange = exchange_) exchange->lose();
}

// Time
// ------------------------------------------------------------------------------------------------------------------

void Connection::arm(std::chrono::milliseconds time) {
  timer_.expires_after(time);
  timer_.async_wait([self = shared_from_this(), due = timer_.expiry()](error_code error) {
    if (!error && self->timer_.expiry() == due) self->on_deadline();
  });
}

void Connection::disarm() { timer_.expires_at(asio::steady_timer::time_point::max()); }

void Connection::on_deadline() {
  switch (state_) {
    case State::reading_body: {
      error_code ignored;
      socket_.cancel(ignored);
      return answer_error(408, "the body did not arrive in time");
    }
    case State::answering:
      return client_gone();
    default:
      return close();
  }
}

}  // namespace splash::http
