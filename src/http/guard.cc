#include "http/guard.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cctype>

namespace splash::http {
namespace {

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

bool is_port(std::string_view text) {
  return !text.empty() && text.size() <= 5 &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

}  // namespace

std::string host_name(std::string_view host_and_port) {
  std::string_view name = host_and_port;
  std::string_view rest;
  if (name.starts_with('[')) {
    const std::size_t close = name.find(']');
    if (close == std::string_view::npos) return {};
    rest = name.substr(close + 1);
    name = name.substr(1, close - 1);
    if (!rest.empty() && !rest.starts_with(':')) return {};
  } else if (const std::size_t colon = name.find(':'); colon != std::string_view::npos) {
    rest = name.substr(colon);
    name = name.substr(0, colon);
  }
  if (!rest.empty() && !is_port(rest.substr(1))) return {};
  if (name.ends_with('.')) name.remove_suffix(1);
  return lower_case(name);
}

bool equals_in_constant_time(std::string_view given, std::string_view secret) {
  // Digests have one length, so neither the length nor the first difference shows in the time taken.
  unsigned char a[SHA256_DIGEST_LENGTH], b[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(given.data()), given.size(), a);
  SHA256(reinterpret_cast<const unsigned char*>(secret.data()), secret.size(), b);
  return CRYPTO_memcmp(a, b, sizeof a) == 0;
}

bool is_loopback_host(std::string_view name) { return name == "localhost" || name == "::1" || name == "127.0.0.1"; }

bool Guard::host_is_ours(std::string_view host_and_port, std::string_view local_address) const {
  const std::string name = host_name(host_and_port);
  if (name.empty()) return false;
  if (is_loopback_host(name) || name == local_address) return true;
  const bool wildcard = options_.bind_host == "0.0.0.0" || options_.bind_host == "::";
  if (!wildcard && name == lower_case(options_.bind_host)) return true;
  return std::any_of(options_.allowed_hosts.begin(), options_.allowed_hosts.end(),
                     [&](const std::string& allowed) { return host_name(allowed) == name; });
}

std::optional<Refusal> Guard::check_host(const Head& head, std::string_view authority,
                                         std::string_view local_address) const {
  const int hosts = head.count("Host");
  if (hosts > 1) return Refusal{400, "exactly one Host header is allowed"};
  const std::string* host = head.find("Host");
  if (!host || !host_is_ours(*host, local_address) || (!authority.empty() && !host_is_ours(authority, local_address)))
    return Refusal{403, "this host name is not served here; start the server with --allowed-host NAME to allow it"};
  return std::nullopt;
}

bool Guard::origin_is_listed(std::string_view origin) const {
  return std::any_of(options_.allowed_origins.begin(), options_.allowed_origins.end(), [&](const std::string& allowed) {
    return allowed == "*" || equals_ignoring_case(allowed, origin);
  });
}

std::optional<Refusal> Guard::check_origin(const Head& head) const {
  const int origins = head.count("Origin");
  if (origins == 0) return std::nullopt;
  if (origins > 1) return Refusal{400, "at most one Origin header is allowed"};
  const std::string& origin = *head.find("Origin");
  const std::string* host = head.find("Host");
  if (host && equals_ignoring_case(origin, "http://" + *host)) return std::nullopt;
  if (origin_is_listed(origin)) return std::nullopt;
  return Refusal{
      403, "requests from this web origin are refused; start the server with --allowed-origin ORIGIN to allow it"};
}

std::optional<Refusal> Guard::check_key(const Head& head) const {
  if (options_.api_key.empty()) return std::nullopt;
  const Refusal refusal{401, "a valid API key is required: send Authorization: Bearer KEY or x-api-key: KEY"};
  if (head.count("Authorization") > 1 || head.count("x-api-key") > 1) return refusal;
  const std::string* authorization = head.find("Authorization");
  const std::string* key = head.find("x-api-key");
  if (!authorization && !key) return refusal;
  bool right = true;
  if (authorization) {
    std::string_view value = *authorization;
    constexpr std::string_view scheme = "Bearer ";
    const bool bearer = value.size() > scheme.size() && equals_ignoring_case(value.substr(0, scheme.size()), scheme);
    if (bearer) value.remove_prefix(scheme.size());
    right = equals_in_constant_time(value, options_.api_key) && bearer;
  }
  if (key) right = equals_in_constant_time(*key, options_.api_key) && right;
  if (!right) return refusal;
  return std::nullopt;
}

std::vector<Header> Guard::cors_headers(const Head& head) const {
  const std::string* origin = head.find("Origin");
  if (!origin || !origin_is_listed(*origin)) return {};
  const bool any = std::find(options_.allowed_origins.begin(), options_.allowed_origins.end(), "*") !=
                   options_.allowed_origins.end();
  std::vector<Header> headers{{"Access-Control-Allow-Origin", any ? "*" : *origin},
                              {"Access-Control-Expose-Headers", "Retry-After, WWW-Authenticate"}};
  if (!any) headers.push_back({"Vary", "Origin"});
  return headers;
}

}  // namespace splash::http
