// The server on a real loopback socket, with a handler that answers by path.
#include "http/server.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "http/test_client.h"

namespace splash::http {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

// /echo gives the body back; /stream writes a piece every millisecond until the client goes; /flood writes without end;
// /hold answers when released.
class TestHandler final : public Handler {
 public:
  std::optional<Response> refuse(const Head& head) override {
    heads++;
    if (head.path == "/refused") return Response{.status = 404, .body = "no"};
    return std::nullopt;
  }
  void handle(Request request, std::shared_ptr<Exchange> exchange) override {
    if (request.head.path == "/echo") return exchange->respond({.body = std::move(request.body)});
    if (request.head.path == "/hold") {
      exchange->on_gone([this] { gone++; });
      held.push_back(exchange);
      holding = static_cast<int>(held.size());
      return;
    }
    exchange->start_stream({.content_type = "text/event-stream"});
    exchange->on_gone([this] { gone++; });
    request.head.path == "/flood" ? flood(exchange) : tick(exchange, 0);
  }
  Response error(const Head&, int status, std::string_view message) override {
    return {.status = status, .body = std::string(message)};
  }
  std::vector<Header> common_headers(const Head&) override { return {}; }

  std::atomic<int> heads{0}, gone{0}, holding{0}, ticks{0};
  std::vector<std::shared_ptr<Exchange>> held;

 private:
  void tick(std::shared_ptr<Exchange> exchange, int count) {
    if (exchange->gone()) return;
    exchange->write(fmt::format("data: {}\n\n", count));
    ticks++;
    if (count == 300) return exchange->finish();
    exchange->after(1ms, [this, exchange, count] { tick(exchange, count + 1); });
  }
  void flood(std::shared_ptr<Exchange> exchange) {
    if (exchange->gone()) return;
    exchange->write(std::string(64 * 1024, 'x'));
    exchange->post([this, exchange] { flood(exchange); });
  }
};

class ServerTest : public testing::Test {
 protected:
  void start(Limits limits = {}) {
    auto bound = Server::bind({.port = 0, .limits = limits});
    ASSERT_TRUE(bound) << bound.error().message;
    server_ = std::move(*bound);
    ASSERT_TRUE(server_->start(handler_));
  }
  void TearDown() override {
    handler_->held.clear();
    server_.reset();
  }
  static std::string post(std::string_view path, std::string_view body, std::string_view more = "") {
    return fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n{}\r\n{}", path, body.size(), more,
                       body);
  }
  template <class Condition>
  static bool eventually(Condition condition) {
    for (int i = 0; i < 500 && !condition(); ++i) std::this_thread::sleep_for(10ms);
    return condition();
  }

  std::shared_ptr<TestHandler> handler_ = std::make_shared<TestHandler>();
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, KeepsTheConnectionAndTakesPipelinedRequests) {
  start();
  TestClient client(server_->port());
  for (int i = 0; i < 3; ++i) {
    client.send(post("/echo", fmt::format("body {}", i)));
    EXPECT_THAT(client.read_response(), HasSubstr(fmt::format("body {}", i)));
  }
  client.send(post("/echo", "first") + post("/echo", "second") + post("/echo", "third"));
  EXPECT_THAT(client.read_response(), HasSubstr("first"));
  EXPECT_THAT(client.read_response(), HasSubstr("second"));
  EXPECT_THAT(client.read_response(), HasSubstr("third"));
}

TEST_F(ServerTest, BrokenRequestsGetTheirStatus) {
  start({.header_bytes = 4096, .body_bytes = 1000});
  std::string many_fields;
  for (int i = 0; i < 1000; ++i) many_fields += fmt::format("X-{}: 1\r\n", i);
  const struct {
    const char* name;
    std::string bytes;
    int status;
  } cases[] = {
      {"no http", "hello\r\n\r\n", 400},
      {"http/2", "GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", 505},
      {"bad version", "GET / HTTX/1.1\r\nHost: localhost\r\n\r\n", 505},
      {"no host", "GET / HTTP/1.1\r\n\r\n", 403},
      {"two hosts", "GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400},
      {"rebound host", "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403},
      {"absolute evil", "GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 403},
      {"foreign origin",
       "POST /echo HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\nContent-Length: 0\r\n\r\n", 403},
      {"thousand fields", "GET /echo HTTP/1.1\r\nHost: localhost\r\n" + many_fields + "\r\n", 431},
      {"long target", "GET /" + std::string(5000, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 431},
      {"body over limit", post("/echo", std::string(1001, 'x')), 413},
      {"chunked over limit",
       "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n600\r\n" + std::string(0x600, 'x') +
           "\r\n0\r\n\r\n",
       413},
      {"huge length", "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999\r\n\r\n", 413},
      {"overflowing length",
       "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400},
      {"signed length", "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: +5\r\n\r\nhello", 400},
      {"negative length", "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\nhello", 400},
      {"two lengths", "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
       400},
      {"length and chunked",
       "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
       400},
      {"unknown coding", "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 400},
      {"coded chunks", "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
       400},
      {"bad chunk", "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", 400},
      {"unknown expectation", post("/echo", "x", "Expect: miracles\r\n"), 417},
      {"refused before the body", post("/refused", std::string(900, 'x')), 404},
      {"bad target", "GET nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"fine", post("/echo", "x"), 200},
      {"fine, 1.0", "POST /echo HTTP/1.0\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx", 200},
      {"fine, chunked",
       "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", 200},
  };
  for (const auto& item : cases) {
    TestClient client(server_->port());
    client.send(item.bytes);
    const std::string response = client.read_response();
    EXPECT_EQ(status_of(response), item.status) << item.name << "\n" << response;
    if (item.status >= 400) {
      EXPECT_TRUE(client.closed_by_server()) << item.name;
    }
  }
}

TEST_F(ServerTest, ARefusedUploadStillSeesItsAnswer) {
  start({.body_bytes = 1 << 20});
  TestClient client(server_->port());
  client.send(post("/echo", std::string(4 << 20, 'x')));
  EXPECT_EQ(status_of(client.read_response()), 413);
}

TEST_F(ServerTest, ExpectContinue) {
  start();
  TestClient client(server_->port());
  client.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
  EXPECT_THAT(client.read_response(), HasSubstr("100 Continue"));
  client.send("hello");
  EXPECT_THAT(client.read_response(), HasSubstr("hello"));
  client.send("POST /refused HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
  EXPECT_EQ(status_of(client.read_response()), 404);
}

TEST_F(ServerTest, HeadHasNoBody) {
  start();
  TestClient client(server_->port());
  client.send("HEAD /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello");
  const std::string response = client.read_until([](const std::string& bytes) { return bytes.ends_with("\r\n\r\n"); });
  EXPECT_THAT(response, HasSubstr("Content-Length: 5"));
  client.send(post("/echo", "next"));
  EXPECT_THAT(client.read_response(), testing::EndsWith("\r\n\r\nnext"));
}

TEST_F(ServerTest, StreamsChunksAndThenTheNextRequest) {
  start();
  TestClient client(server_->port());
  client.send(post("/stream", ""));
  const std::string response = client.read_until([](const std::string& bytes) { return bytes.ends_with("0\r\n\r\n"); });
  EXPECT_THAT(response, HasSubstr("Transfer-Encoding: chunked"));
  EXPECT_THAT(response, HasSubstr("data: 300\n\n"));
  client.send(post("/echo", "after"));
  EXPECT_THAT(client.read_response(), HasSubstr("after"));
  EXPECT_EQ(handler_->gone, 0);
}

TEST_F(ServerTest, StreamOnHttp10EndsWithTheConnection) {
  start();
  TestClient client(server_->port());
  client.send("GET /stream HTTP/1.0\r\nHost: localhost\r\n\r\n");
  const std::string response = client.read_to_end();
  EXPECT_THAT(response, testing::Not(HasSubstr("chunked")));
  EXPECT_THAT(response, testing::EndsWith("data: 300\n\n"));
}

TEST_F(ServerTest, NoticesThatTheClientHasGone) {
  start();
  {
    TestClient client(server_->port());
    client.send(post("/stream", ""));
    client.read_until([](const std::string& bytes) { return bytes.size() > 300; });
    TestClient waiting(server_->port());
    waiting.send(post("/hold", ""));
    ASSERT_TRUE(eventually([&] { return handler_->holding == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return handler_->gone == 2; }));
  EXPECT_LT(handler_->ticks, 300);
  EXPECT_TRUE(eventually([&] { return server_->connections() == 0; }));
}

// FC-CX-05
TEST_F(ServerTest, AReaderTooFarBehindIsCutOff) {
  start({.unsent_bytes = 1 << 20});
  TestClient slow(server_->port());
  slow.send(post("/flood", ""));
  EXPECT_TRUE(eventually([&] { return handler_->gone == 1; }));
  TestClient other(server_->port());
  other.send(post("/echo", "still here"));
  EXPECT_THAT(other.read_response(), HasSubstr("still here"));
}

TEST_F(ServerTest, SlowClientsAreTimedOut) {
  start({.header_time = 100ms, .idle_time = 100ms, .body_silence = 100ms});
  TestClient silent(server_->port());
  EXPECT_TRUE(silent.closed_by_server());
  TestClient half(server_->port());
  half.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhe");
  EXPECT_EQ(status_of(half.read_response()), 408);
  TestClient idle(server_->port());
  idle.send(post("/echo", "x"));
  EXPECT_EQ(status_of(idle.read_response()), 200);
  EXPECT_TRUE(idle.closed_by_server());
}

TEST_F(ServerTest, IdleConnectionsMakeRoomBusyOnesDoNot) {
  start({.connections = 2});
  TestClient busy(server_->port());
  busy.send(post("/hold", ""));
  ASSERT_TRUE(eventually([&] { return handler_->holding == 1; }));
  TestClient idle(server_->port());
  idle.send(post("/echo", "x"));
  EXPECT_EQ(status_of(idle.read_response()), 200);
  TestClient second(server_->port());  // takes the place of the idle one
  second.send(post("/hold", ""));
  ASSERT_TRUE(eventually([&] { return handler_->holding == 2; }));
  EXPECT_TRUE(idle.closed_by_server());
  TestClient third(server_->port());
  third.send(post("/echo", "x"));
  EXPECT_EQ(status_of(third.read_response()), 503);
}

TEST_F(ServerTest, BodiesInFlightAreLimitedTogether) {
  start({.body_bytes = 1000, .body_bytes_in_flight = 1500});
  TestClient holder(server_->port());
  holder.send(post("/hold", std::string(1000, 'x')));
  ASSERT_TRUE(eventually([&] { return handler_->holding == 1; }));
  TestClient second(server_->port());
  second.send(post("/echo", std::string(1000, 'x')));
  EXPECT_EQ(status_of(second.read_response()), 503);
  holder.close();
  ASSERT_TRUE(eventually([&] { return handler_->gone == 1; }));
  TestClient third(server_->port());
  third.send(post("/echo", std::string(1000, 'x')));
  EXPECT_EQ(status_of(third.read_response()), 200);
}

TEST_F(ServerTest, DrainLetsRunningAnswersEndAndCutsTheRest) {
  start();
  TestClient idle(server_->port());
  TestClient streaming(server_->port());
  streaming.send(post("/stream", ""));
  streaming.read_until([](const std::string& bytes) { return bytes.size() > 200; });
  EXPECT_TRUE(server_->drain(5s));
  EXPECT_TRUE(idle.closed_by_server());
  EXPECT_THAT(streaming.read_to_end(), testing::EndsWith("0\r\n\r\n"));
  EXPECT_FALSE(TestClient(server_->port()).connected());
}

TEST_F(ServerTest, DrainGivesUpAfterTheGraceAndStopTellsTheHandler) {
  start();
  TestClient held(server_->port());
  held.send(post("/hold", ""));
  ASSERT_TRUE(eventually([&] { return handler_->holding == 1; }));
  EXPECT_FALSE(server_->drain(50ms));
  server_->stop();
  EXPECT_EQ(handler_->gone, 1);
  EXPECT_TRUE(held.closed_by_server());
}

TEST_F(ServerTest, ATakenPortIsAClearError) {
  start();
  auto second = Server::bind({.port = server_->port()});
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, HasSubstr("in use"));
  EXPECT_FALSE(Server::bind({.host = "not an address"}));
}

TEST_F(ServerTest, ABurstOfConnectionsIsServed) {
  start();
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 100; ++i) clients.push_back(std::make_unique<TestClient>(server_->port()));
  for (auto& client : clients) client->send(post("/echo", "x"));
  for (auto& client : clients) EXPECT_EQ(status_of(client->read_response()), 200);
}

}  // namespace
}  // namespace splash::http
