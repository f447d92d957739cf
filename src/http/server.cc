#include "http/server.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <future>
#include <thread>
#include <unordered_map>

#include "base/log.h"
#include "http/connection.h"

namespace splash::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr int listen_backlog = 1024;
constexpr std::chrono::milliseconds accept_pause{100};  // after running out of file descriptors

class TcpServer final : public Server, private ConnectionOwner {
  // Runs `task` on the io thread and waits for its value.
  template <class Task>
  auto on_io_thread(Task task) {
    std::promise<decltype(task())> result;
    asio::post(context_, [&] { result.set_value(task()); });
    return result.get_future().get();
  }

 public:
  explicit TcpServer(ServerOptions options)
      : options_(std::move(options)), guard_(options_.guard), acceptor_(context_), pause_(context_) {}

  ~TcpServer() override { stop(); }

  Status open() {
    const std::string host = options_.host == "localhost" ? "127.0.0.1" : options_.host;
    error_code error;
    const auto address = asio::ip::make_address(host, error);
    if (error) return fail_parameter(ErrorKind::invalid, "--host", "'{}' is not an IP address", options_.host);
    const tcp::endpoint endpoint(address, static_cast<std::uint16_t>(options_.port));
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (error) return refuse_address(error);
    port_ = acceptor_.local_endpoint().port();
    return {};
  }

  int port() const override { return port_; }
  const Guard& guard() const override { return guard_; }

  Status start(std::shared_ptr<Handler> handler) override {
    handler_ = std::move(handler);
    error_code error;
    acceptor_.listen(listen_backlog, error);
    if (error) return refuse_address(error);
    accept();
    thread_ = std::thread([this] { context_.run(); });
    return {};
  }

  bool drain(Duration grace) override {
    if (!thread_.joinable()) return true;
    on_io_thread([this] {
      draining_ = true;
      error_code ignored;
      acceptor_.close(ignored);
      pause_.cancel();
      for (const auto& connection : snapshot()) connection->drain();
      return 0;
    });
    const TimePoint end = std::chrono::steady_clock::now() + grace;
    while (true) {
      const auto busy = on_io_thread([this] {
        return std::count_if(connections_.begin(), connections_.end(), [](const auto& c) { return c.second->busy(); });
      });
      if (busy == 0) return true;
      if (std::chrono::steady_clock::now() >= end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  void stop() override {
    if (!thread_.joinable()) return;
    on_io_thread([this] {
      draining_ = true;
      error_code ignored;
      acceptor_.close(ignored);
      pause_.cancel();
      for (const auto& connection : snapshot()) connection->close();
      return 0;
    });
    work_.reset();
    context_.stop();
    thread_.join();
    handler_.reset();  // while the context that its threads may post to is still there
  }

  int connections() const override { return connection_count_.load(); }

 private:
  Status refuse_address(const error_code& error) {
    if (error == asio::error::address_in_use)
      return fail_parameter(ErrorKind::io, "--port",
                            "port {} on {} is in use by another program; stop it or choose another with --port",
                            options_.port, options_.host);
    return fail_parameter(ErrorKind::io, "--host", "cannot listen on {}:{}: {}", options_.host, options_.port,
                          error.message());
  }

  std::vector<std::shared_ptr<Connection>> snapshot() const {
    std::vector<std::shared_ptr<Connection>> all;
    for (const auto& [_, connection] : connections_) all.push_back(connection);
    return all;
  }

  void accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (draining_ || error == asio::error::operation_aborted) return;
      if (!error) {
        admit(std::move(socket));
        return accept();
      }
      // Most likely out of file descriptors: those in use must end first.
      log::warn("accept failed: {}", error.message());
      pause_.expires_after(accept_pause);
      pause_.async_wait([this](error_code cancelled) {
        if (!cancelled && !draining_) accept();
      });
    });
  }

  void admit(tcp::socket socket) {
    const auto connection = std::make_shared<Connection>(std::move(socket), static_cast<ConnectionOwner&>(*this));
    bool full = static_cast<int>(connections_.size()) >= options_.limits.connections;
    if (full) full = !evict_longest_idle();
    connections_.emplace(connection.get(), connection);
    connection_count_ = static_cast<int>(connections_.size());
    if (full)
      connection->refuse_overloaded();
    else
      connection->start();
  }

  bool evict_longest_idle() {
    std::shared_ptr<Connection> longest;
    for (const auto& [_, connection] : connections_)
      if (connection->idle() && (!longest || connection->waiting_since() < longest->waiting_since()))
        longest = connection;
    if (!longest) return false;
    longest->close();
    return true;
  }

  Handler& handler() override { return *handler_; }
  const Limits& limits() const override { return options_.limits; }
  bool draining() const override { return draining_; }
  bool charge(std::size_t bytes) override {
    if (body_bytes_ + bytes > options_.limits.body_bytes_in_flight) return false;
    body_bytes_ += bytes;
    return true;
  }
  void refund(std::size_t bytes) override { body_bytes_ -= bytes; }
  void closed(Connection* connection) override {
    connections_.erase(connection);
    connection_count_ = static_cast<int>(connections_.size());
  }

  ServerOptions options_;
  Guard guard_;
  int port_ = 0;  // the one really taken
  std::shared_ptr<Handler> handler_;
  // Above the context, whose destruction drops connections that give their bytes back.
  std::size_t body_bytes_ = 0;
  bool draining_ = false;
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections_;
  std::atomic<int> connection_count_{0};
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::bind(ServerOptions options) {
  auto server = std::make_unique<TcpServer>(std::move(options));
  SPLASH_TRY_STATUS(server->open());
  return server;
}

}  // namespace splash::http
