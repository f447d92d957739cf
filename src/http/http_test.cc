#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "http/guard.h"
#include "http/target.h"
#include "http/wire.h"

namespace splash::http {
namespace {

Head head_with(std::vector<Header> headers) {
  Head head;
  head.method = "GET";
  head.path = "/";
  head.headers = std::move(headers);
  return head;
}

TEST(Target, EverySpellingOfAPathIsOnePath) {
  const struct {
    const char* target;
    const char* path;
  } cases[] = {{"/v1/models", "/v1/models"},
               {"/v1/models?beta=true", "/v1/models"},
               {"/v1//models/", "/v1/models/"},
               {"/v1/./chat/../models", "/v1/models"},
               {"/../../v1/models", "/v1/models"},
               {"/v1/%6dodels", "/v1/models"},
               {"/v1/models/owner%2Fname", "/v1/models/owner/name"},
               {"/", "/"},
               {"//", "/"},
               {"/a/..", "/"},
               {"http://localhost:8080/v1/models?x", "/v1/models"},
               {"http://localhost", "/"},
               {"*", "*"}};
  for (const auto& item : cases) {
    const auto target = parse_target(item.target);
    ASSERT_TRUE(target) << item.target;
    EXPECT_EQ(target->path, item.path) << item.target;
  }
  EXPECT_EQ(parse_target("http://evil.example/x")->authority, "evil.example");
  for (const char* bad : {"", "v1/models", "/%", "/%4", "/%zz", "/%00", "ftp://x/", "http:///x"})
    EXPECT_FALSE(parse_target(bad)) << bad;
}

// FC-SE-01: a page of a rebound DNS name reaches us with its own name as Host.
TEST(Guard, HostNames) {
  const Guard guard({.bind_host = "127.0.0.1", .allowed_hosts = {"Box.lan"}});
  const struct {
    const char* host;
    bool ours;
  } cases[] = {{"127.0.0.1:8080", true},
               {"127.0.0.1", true},
               {"localhost:8080", true},
               {"LOCALHOST", true},
               {"localhost.", true},
               {"[::1]:8000", true},
               {"box.lan:9", true},
               {"10.0.0.7:8080", true},  // the address the connection arrived on
               {"evil.example:8000", false},
               {"EVIL.localhost.example", false},
               {"127.0.0.1.evil.example", false},
               {"[::ffff:127.0.0.1]", false},
               {"", false},
               {"localhost:port", false},
               {"[::1", false},
               {"localhost:80:80", false}};
  for (const auto& item : cases)
    EXPECT_EQ(!guard.check_host(head_with({{"Host", item.host}}), "", "10.0.0.7"), item.ours) << item.host;

  EXPECT_EQ(guard.check_host(head_with({}), "", "127.0.0.1")->status, 403);
  EXPECT_EQ(guard.check_host(head_with({{"Host", "localhost"}, {"host", "localhost"}}), "", "")->status, 400);
  EXPECT_EQ(guard.check_host(head_with({{"Host", "localhost"}}), "evil.example", "")->status, 403);
}

TEST(Guard, WildcardBindAddressIsNoName) {
  const Guard guard({.bind_host = "0.0.0.0"});
  EXPECT_TRUE(guard.check_host(head_with({{"Host", "0.0.0.0"}}), "", "192.168.1.2"));
  EXPECT_FALSE(guard.check_host(head_with({{"Host", "192.168.1.2:8080"}}), "", "192.168.1.2"));
}

// FC-SE-02
TEST(Guard, ForeignOriginsAreRefusedUnlessListed) {
  const Guard closed({});
  EXPECT_FALSE(closed.check_origin(head_with({{"Host", "localhost:8080"}})));
  EXPECT_FALSE(closed.check_origin(head_with({{"Host", "localhost:8080"}, {"Origin", "http://localhost:8080"}})));
  EXPECT_TRUE(closed.check_origin(head_with({{"Host", "localhost:8080"}, {"Origin", "http://localhost:3000"}})));
  EXPECT_TRUE(closed.check_origin(head_with({{"Host", "localhost:8080"}, {"Origin", "https://evil.example"}})));
  EXPECT_TRUE(closed.check_origin(head_with({{"Host", "localhost:8080"}, {"Origin", "null"}})));
  EXPECT_TRUE(closed.cors_headers(head_with({{"Origin", "https://evil.example"}})).empty());

  const Guard open({.allowed_origins = {"https://ui.example"}});
  const Head head = head_with({{"Host", "localhost"}, {"Origin", "https://ui.example"}});
  EXPECT_FALSE(open.check_origin(head));
  ASSERT_FALSE(open.cors_headers(head).empty());
  EXPECT_EQ(open.cors_headers(head)[0].value, "https://ui.example");
}

TEST(Guard, ApiKey) {
  const Guard guard({.api_key = "secret"});
  const struct {
    std::vector<Header> headers;
    bool right;
  } cases[] = {{{}, false},
               {{{"Authorization", "Bearer secret"}}, true},
               {{{"authorization", "bearer secret"}}, true},
               {{{"X-Api-Key", "secret"}}, true},
               {{{"Authorization", "Bearer secret"}, {"x-api-key", "secret"}}, true},
               {{{"Authorization", "Bearer secret"}, {"x-api-key", "other"}}, false},
               {{{"Authorization", "Bearer secre"}}, false},
               {{{"Authorization", "Bearer secretx"}}, false},
               {{{"Authorization", "secret"}}, false},
               {{{"Authorization", "Basic secret"}}, false},
               {{{"Authorization", "Bearer secret"}, {"Authorization", "Bearer secret"}}, false},
               {{{"Authorization", ""}}, false}};
  for (const auto& item : cases) {
    const auto refusal = guard.check_key(head_with(item.headers));
    EXPECT_EQ(!refusal, item.right);
    if (refusal) {
      EXPECT_EQ(refusal->status, 401);
    }
  }
  EXPECT_FALSE(Guard({}).check_key(head_with({{"Authorization", "Bearer anything"}})));
}

TEST(Wire, HeadsAndChunks) {
  const std::string head = response_head({.status = 404, .body = "{}", .headers = {{"Allow", "GET"}}},
                                         {{"Vary", "Origin"}}, Framing::length, false);
  EXPECT_THAT(head, testing::StartsWith("HTTP/1.1 404 Not Found\r\n"));
  for (const char* line : {"Content-Length: 2\r\n", "Connection: close\r\n", "Allow: GET\r\n", "Vary: Origin\r\n"})
    EXPECT_THAT(head, testing::HasSubstr(line));
  EXPECT_THAT(response_head({.status = 204}, {}, Framing::length, true), testing::Not(testing::HasSubstr("Content-")));
  EXPECT_EQ(chunk("0123456789abcdef"), "10\r\n0123456789abcdef\r\n");
  EXPECT_EQ(chunk(""), "");
  EXPECT_EQ(sse_data("{}"), "data: {}\n\n");
  EXPECT_EQ(sse_comment("alive"), ": alive\n\n");
}

}  // namespace
}  // namespace splash::http
