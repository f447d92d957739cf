#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace splash {

void check_failed(const char* file, int line, const char* condition, std::string_view message) {
  fmt::print(stderr, "{}:{}: CHECK failed: {} {}\n", file, line, condition, message);
  std::fflush(stderr);
  std::abort();
}

}  // namespace splash
