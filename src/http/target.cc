#include "http/target.h"

#include <vector>

#include "http/message.h"

namespace splash::http {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

Result<std::string> percent_decoded(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
      if (high < 0 || low < 0) return fail(ErrorKind::invalid, "the request target has a broken percent escape");
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (c == '\0') return fail(ErrorKind::invalid, "the request target contains a NUL");
    out.push_back(c);
  }
  return out;
}

std::string without_dot_segments(std::string_view path) {
  std::vector<std::string_view> kept;
  bool folder = false;  // the path names a folder: it ends in '/', '/.' or '/..'
  for (std::size_t begin = 0; begin <= path.size();) {
    std::size_t end = path.find('/', begin);
    if (end == std::string_view::npos) end = path.size();
    const std::string_view segment = path.substr(begin, end - begin);
    folder = segment.empty() || segment == "." || segment == "..";
    if (segment == "..") {
      if (!kept.empty()) kept.pop_back();
    } else if (!folder) {
      kept.push_back(segment);
    }
    begin = end + 1;
  }
  std::string out;
  for (std::string_view segment : kept) out.append("/").append(segment);
  if (folder || out.empty()) out.push_back('/');
  return out;
}

}  // namespace

Result<Target> parse_target(std::string_view target) {
  Target out;
  if (target == "*") return Target{"*", {}};
  if (const std::size_t scheme = target.find("://"); scheme != std::string_view::npos && !target.starts_with('/')) {
    const std::string_view name = target.substr(0, scheme);
    if (!equals_ignoring_case(name, "http") && !equals_ignoring_case(name, "https"))
      return fail(ErrorKind::invalid, "the request target has an unknown scheme");
    target.remove_prefix(scheme + 3);
    const std::size_t end = target.find_first_of("/?#");
    out.authority = target.substr(0, end);
    if (out.authority.empty()) return fail(ErrorKind::invalid, "the request target names no host");
    target = end == std::string_view::npos ? std::string_view{} : target.substr(end);
    if (!target.starts_with('/')) target = "/";
  }
  if (!target.starts_with('/')) return fail(ErrorKind::invalid, "the request target must start with '/'");
  target = target.substr(0, target.find_first_of("?#"));
  SPLASH_TRY(const std::string decoded, percent_decoded(target));
  out.path = without_dot_segments(decoded);
  return out;
}

}  // namespace splash::http
