// Logging: spdlog to standard error. No line ever contains prompt or reply text.
#pragma once

#include <spdlog/spdlog.h>

namespace splash::log {

using spdlog::debug;
using spdlog::error;
using spdlog::info;
using spdlog::warn;

}  // namespace splash::log
