// Whole UTF-8 characters out of a growing run of bytes.
#pragma once

#include <string>

namespace splash::text {

// Whether more bytes may follow those at hand.
enum class Utf8End { open, closed };

// Takes the text at the front of `bytes`: everything if closed, else all but a character that may still be completed.
// Each longest run of bytes that begins no character becomes one U+FFFD, as decoders of the WHATWG do it.
std::string take_utf8(std::string& bytes, Utf8End end);

}  // namespace splash::text
