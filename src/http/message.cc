#include "http/message.h"

#include <algorithm>

namespace splash::http {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

const std::string* Head::find(std::string_view name) const {
  for (const Header& header : headers)
    if (equals_ignoring_case(header.name, name)) return &header.value;
  return nullptr;
}

int Head::count(std::string_view name) const {
  return static_cast<int>(std::count_if(headers.begin(), headers.end(),
                                        [&](const Header& header) { return equals_ignoring_case(header.name, name); }));
}

}  // namespace splash::http
