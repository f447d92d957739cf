// What one client may ask of the server, by name. `ServerOptions` carries these as defaults; tests lower them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace splash::http {

struct Limits {
  std::uint32_t header_bytes = 64 * 1024;                     // request line and fields together; more: 431
  std::size_t body_bytes = std::size_t{64} << 20;             // one body; more: 413 before it is read
  std::size_t body_bytes_in_flight = std::size_t{256} << 20;  // bodies of all live requests together; more: 503
  int connections = 256;                                      // more: the longest idle one goes, else 503
  std::size_t unsent_bytes = std::size_t{4} << 20;            // a stream whose reader lags further is cut
  std::size_t pipelined_bytes = 64 * 1024;                    // of following requests, kept while one is answered

  std::chrono::milliseconds header_time{30'000};    // from the first byte wanted to the end of the head; then closed
  std::chrono::milliseconds idle_time{120'000};     // between requests of a kept connection
  std::chrono::milliseconds body_silence{30'000};   // between two pieces of a body; more: 408
  std::int64_t body_bytes_per_second = 512 * 1024;  // slowest upload: body_silence + bytes / this, in all
  std::chrono::milliseconds write_stall{30'000};    // a write that makes no progress; then the client counts as gone
  std::chrono::milliseconds linger{2'000};  // reading on after the last reply, so that it is not lost in a reset
};

// JSON bodies (used by the dialects in api/).
inline constexpr int max_json_depth = 128;

}  // namespace splash::http
