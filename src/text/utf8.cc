#include "text/utf8.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace splash::text {
namespace {

struct Decoded {
  std::size_t bytes = 1;  // of the character, or of the run that begins none
  bool valid = false;
  bool unfinished = false;  // a character that more bytes may complete
};

// Table 3-7 of the Unicode standard: the second byte's range depends on the first.
Decoded decode_one(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return {1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {1, false, false};
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  const std::uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const std::uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t i = 1; i < length; ++i) {
    if (i >= bytes.size()) return {i, false, true};
    const bool fits = i == 1 ? byte(1) >= low && byte(1) <= high : (byte(i) & 0xC0) == 0x80;
    if (!fits) return {i, false, false};
  }
  return {length, true, false};
}

}  // namespace

std::string take_utf8(std::string& bytes, Utf8End end) {
  std::string text;
  text.reserve(bytes.size());
  std::size_t at = 0;
  while (at < bytes.size()) {
    const Decoded next = decode_one(std::string_view(bytes).substr(at));
    if (next.unfinished && end == Utf8End::open) break;
    if (next.valid) {
      text.append(bytes, at, next.bytes);
    } else {
      text += "\xEF\xBF\xBD";
    }
    at += next.bytes;
  }
  bytes.erase(0, at);
  return text;
}

}  // namespace splash::text
