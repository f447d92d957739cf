#include "http/wire.h"

#include <fmt/format.h>

#include <ctime>

#include "base/check.h"

namespace splash::http {
namespace {

std::string date_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[64];
  std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return text;
}

}  // namespace

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Status";
  }
}

std::string response_head(const Response& response, const std::vector<Header>& common, Framing framing,
                          bool keep_alive) {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\nServer: Splash\r\nDate: {}\r\n", response.status,
                                reason_phrase(response.status), date_now());
  const bool bodiless = response.status == 204;
  if (!bodiless && !response.content_type.empty()) out += fmt::format("Content-Type: {}\r\n", response.content_type);
  switch (framing) {
    case Framing::length:
      if (!bodiless) out += fmt::format("Content-Length: {}\r\n", response.body.size());
      break;
    case Framing::chunked:
      out += "Transfer-Encoding: chunked\r\n";
      break;
    case Framing::until_close:
      break;
  }
  out += keep_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  for (const std::vector<Header>* list : {&response.headers, &common})
    for (const Header& header : *list) out += fmt::format("{}: {}\r\n", header.name, header.value);
  return out += "\r\n";
}

std::string chunk(std::string_view bytes) {
  if (bytes.empty()) return {};
  return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}

std::string sse_data(std::string_view data) {
  SPLASH_CHECK(data.find_first_of("\r\n") == std::string_view::npos);
  return fmt::format("data: {}\n\n", data);
}

std::string sse_event(std::string_view name, std::string_view data) {
  SPLASH_CHECK(data.find_first_of("\r\n") == std::string_view::npos);
  return fmt::format("event: {}\ndata: {}\n\n", name, data);
}

std::string sse_comment(std::string_view text) { return fmt::format(": {}\n\n", text); }

}  // namespace splash::http
