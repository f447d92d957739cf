// The markup of a reply and how to recognise it in text of which more may follow.
//
// Control tokens are kept apart from text that merely looks like them: in the reader's buffer each is one byte that no
// UTF-8 text contains. So a call is opened and reasoning is ended by the model's control tokens only, never by text
// that spells them out (which is how a quoted web page would have to do it).
#pragma once

#include <string>
#include <string_view>

namespace splash::chat::markup {

inline constexpr char think_open = '\xF8';
inline constexpr char think_close = '\xF9';
inline constexpr char call_open = '\xFA';
inline constexpr char call_close = '\xFB';

inline constexpr std::string_view think_open_text = "<think>";
inline constexpr std::string_view think_close_text = "</think>";
inline constexpr std::string_view call_open_text = "<tool_call>";
inline constexpr std::string_view call_close_text = "</tool_call>";

inline constexpr std::size_t max_name_bytes = 256;  // of a function or parameter

// Control bytes written out.
inline std::string spelled_out(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case think_open:
        out += think_open_text;
        break;
      case think_close:
        out += think_close_text;
        break;
      case call_open:
        out += call_open_text;
        break;
      case call_close:
        out += call_close_text;
        break;
      default:
        out += c;
    }
  }
  return out;
}

inline bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

enum class Match { no, yes, more };  // more: undecided until more text arrives

// Walks along text; a step that matches moves it on.
struct Cursor {
  std::string_view text;
  bool closed = false;  // no more text follows
  std::size_t at = 0;

  bool at_end() const { return at == text.size(); }

  Match literal(std::string_view wanted) {
    const std::string_view rest = text.substr(at);
    if (rest.starts_with(wanted)) {
      at += wanted.size();
      return Match::yes;
    }
    return !closed && wanted.starts_with(rest) ? Match::more : Match::no;
  }

  Match space() {
    while (!at_end() && is_space(text[at])) ++at;
    return at_end() && !closed ? Match::more : Match::yes;
  }

  Match control_or_literal(char control, std::string_view spelled) {
    if (!at_end() && text[at] == control) {
      ++at;
      return Match::yes;
    }
    return literal(spelled);
  }

  // `tag` (like "<parameter="), a name without line breaks and brackets, ">".
  Match named(std::string_view tag, std::string& name) {
    if (const Match match = literal(tag); match != Match::yes) return match;
    const std::size_t end = text.find_first_of(">\n<", at);
    if (end == std::string_view::npos && text.size() - at <= max_name_bytes) return closed ? Match::no : Match::more;
    if (end == std::string_view::npos || text[end] != '>' || end - at > max_name_bytes) return Match::no;
    std::string_view found = text.substr(at, end - at);
    while (!found.empty() && is_space(found.front())) found.remove_prefix(1);
    while (!found.empty() && is_space(found.back())) found.remove_suffix(1);
    if (found.empty()) return Match::no;
    name = spelled_out(found);
    at = end + 1;
    return Match::yes;
  }
};

}  // namespace splash::chat::markup
