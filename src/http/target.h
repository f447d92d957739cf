// The request target: which path is meant, whatever its spelling.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace splash::http {

struct Target {
  std::string path;       // decoded and normalised
  std::string authority;  // host[:port] of an absolute-form target, else empty
};

// origin-form (`/a/b?x`), absolute-form (`http://host/a`) and `*`. Query and fragment are dropped. Routing, checks and
// error shapes all use this one reading, so that no spelling slips past one of them.
Result<Target> parse_target(std::string_view target);

}  // namespace splash::http
