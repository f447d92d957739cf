// Broken bytes on a real socket: whatever arrives, the server answers the next client.
#include <gtest/gtest.h>

#include "http/server.h"
#include "http/test_client.h"

#include "mutator.h"

namespace splash::http {
namespace {

class Echo final : public Handler {
 public:
  std::optional<Response> refuse(const Head&) override { return std::nullopt; }
  void handle(Request request, std::shared_ptr<Exchange> exchange) override { exchange->respond({.body = std::move(request.body)}); }
  Response error(const Head&, int status, std::string_view message) override { return {.status = status, .body = std::string(message)}; }
  std::vector<Header> common_headers(const Head&) override { return {}; }
};

TEST(HttpFuzz, AnyBytesLeaveTheServerServing) {
  auto bound = Server::bind({.port = 0});
  ASSERT_TRUE(bound) << bound.error().message;
  Server& server = **bound;
  ASSERT_TRUE(server.start(std::make_shared<Echo>()));

  const std::string good = "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
  fuzz::Mutator inputs({good, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                        "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
                        "OPTIONS * HTTP/1.0\r\nHost: [::1]:80\r\nOrigin: http://a\r\nExpect: 100-continue\r\n\r\n"},
                       {"\r\n", "\r\n\r\n", "\n", "Content-Length: -1\r\n", "Content-Length: 99999999999999999999\r\n", "Content-Length: 5\r\n",
                        "Transfer-Encoding: chunked\r\n", "Host: evil\r\n", "ffffffffffffffff\r\n", "HTTP/9.9", " ", "\t", "%00", "GET ", "\0"}, 9);
  int answered = 0, refused = 0;
  for (int i = 0; i < 1'500; ++i) {
    const std::string input = inputs.next();
    {
      TestClient client(server.port());
      ASSERT_TRUE(client.connected()) << i;
      client.send(input);
      client.finish_sending();
      const std::string answer = client.read_to_end();
      if (!answer.empty()) {
        EXPECT_TRUE(answer.starts_with("HTTP/1.")) << i << ": " << answer.substr(0, 40);
        const int status = status_of(answer);
        EXPECT_TRUE(status >= 100 && status <= 505 && status != 500) << i << ": " << status;
        ++(status < 300 ? answered : refused);
      }
    }
    if (i % 50 != 0) continue;
    TestClient healthy(server.port());
    ASSERT_TRUE(healthy.send(good)) << i;
    ASSERT_EQ(status_of(healthy.read_response()), 200) << "after input " << i;
  }
  std::printf("http: %d answered, %d refused\n", answered, refused);
  EXPECT_GT(answered, 0);
  EXPECT_GT(refused, 0);
  server.stop();
  EXPECT_EQ(server.connections(), 0);
}

}  // namespace
}  // namespace splash::http
