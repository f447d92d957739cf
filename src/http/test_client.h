// A raw socket for tests: sends exactly the bytes it is given, also broken ones.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

namespace splash::http {

class TestClient {
 public:
  explicit TestClient(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~TestClient() { close(); }
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  bool connected() const { return connected_; }
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  // No more bytes will come; answers are still read.
  void finish_sending() { ::shutdown(socket_, SHUT_WR); }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  // Reads until `enough` says so, the server closes, or 5 seconds pass without a byte.
  template <class Enough>
  std::string read_until(Enough enough) {
    while (!enough(unread_) && more()) {
    }
    return std::exchange(unread_, {});
  }
  std::string read_to_end() {
    return read_until([](const std::string&) { return false; });
  }
  // One response with a Content-Length; following bytes are kept.
  std::string read_response() {
    const auto whole_size = [](const std::string& bytes) -> std::size_t {
      const std::size_t end = bytes.find("\r\n\r\n");
      if (end == std::string::npos) return std::string::npos;
      const std::size_t length = bytes.find("Content-Length: ");
      return end + 4 + (length < end ? std::strtoul(bytes.c_str() + length + 16, nullptr, 10) : 0);
    };
    while (unread_.size() < whole_size(unread_) && more()) {
    }
    const std::size_t size = std::min(whole_size(unread_), unread_.size());
    std::string response = unread_.substr(0, size);
    unread_.erase(0, size);
    return response;
  }
  bool closed_by_server() {
    unread_.clear();
    while (more()) {
    }
    return at_end_;
  }

 private:
  bool more() {
    pollfd ready{socket_, POLLIN, 0};
    if (::poll(&ready, 1, 5000) != 1) return false;
    char bytes[65536];
    const ssize_t count = ::recv(socket_, bytes, sizeof bytes, 0);
    at_end_ = count <= 0;
    if (count > 0) unread_.append(bytes, static_cast<std::size_t>(count));
    return count > 0;
  }

  int socket_ = -1;
  bool connected_ = false;
  bool at_end_ = false;
  std::string unread_;
};

inline int status_of(std::string_view response) {
  return response.size() > 12 ? std::atoi(std::string(response.substr(9, 3)).c_str()) : 0;
}

}  // namespace splash::http
