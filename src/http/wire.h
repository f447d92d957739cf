// The bytes of a response: head, chunks of a stream, server-sent events. Written by hand because they are so few.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "http/message.h"

namespace splash::http {

std::string_view reason_phrase(int status);

enum class Framing {
  length,      // Content-Length
  chunked,     // a stream on HTTP/1.1
  until_close  // a stream on HTTP/1.0
};

// Status line and header fields, with the blank line. `response.body` decides Content-Length only.
std::string response_head(const Response& response, const std::vector<Header>& common, Framing framing,
                          bool keep_alive);

// One chunk of a chunked body; empty bytes give nothing (an empty chunk would end the body).
std::string chunk(std::string_view bytes);
inline constexpr std::string_view last_chunk = "0\r\n\r\n";

// `data: ...` of one event. `data` must not contain a line break (compact JSON never does).
std::string sse_data(std::string_view data);
std::string sse_event(std::string_view name, std::string_view data);
std::string sse_comment(std::string_view text);

}  // namespace splash::http
