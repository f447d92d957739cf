// Who may speak to this server: the Host and Origin a browser states, and the API key.
//
// A web page anywhere can make a browser send requests to 127.0.0.1. Two doors stand against it: the Host must be a
// name that we know to be ours (a rebound DNS name is not), and a foreign Origin is refused unless it was allowed by
// name.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/message.h"

namespace splash::http {

struct GuardOptions {
  std::string bind_host = "127.0.0.1";
  std::string api_key;                       // empty: none is asked for
  std::vector<std::string> allowed_hosts;    // names beside the loopback ones and the bind address
  std::vector<std::string> allowed_origins;  // exact origins, or the one entry "*"
};

struct Refusal {
  int status = 403;
  std::string message;
};

class Guard {
 public:
  explicit Guard(GuardOptions options) : options_(std::move(options)) {}

  // `authority`: host of an absolute-form target or empty; `local_address`: the address the connection arrived on.
  std::optional<Refusal> check_host(const Head& head, std::string_view authority, std::string_view local_address) const;
  std::optional<Refusal> check_origin(const Head& head) const;
  // Authorization: Bearer KEY and x-api-key: KEY; each given once at most, and every one given must match.
  std::optional<Refusal> check_key(const Head& head) const;

  // CORS fields for an allowed foreign origin; none otherwise.
  std::vector<Header> cors_headers(const Head& head) const;

 private:
  bool host_is_ours(std::string_view host_and_port, std::string_view local_address) const;
  bool origin_is_listed(std::string_view origin) const;

  GuardOptions options_;
};

// The name in `host[:port]` or `[v6][:port]`, lower case, without brackets and a trailing dot; empty if malformed.
std::string host_name(std::string_view host_and_port);

// Compares without telling by its duration where, or how long, the secret is.
bool equals_in_constant_time(std::string_view given, std::string_view secret);

bool is_loopback_host(std::string_view name);

}  // namespace splash::http
