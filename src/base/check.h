// Programmer errors: a CHECK that fails prints where and why, and aborts. Request errors are values (base/result.h).
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace splash {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, std::string_view message);

}  // namespace splash

#define SPLASH_CHECK(condition, ...)                                                            \
  do {                                                                                          \
    if (!(condition)) [[unlikely]]                                                              \
      ::splash::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__));    \
  } while (false)
