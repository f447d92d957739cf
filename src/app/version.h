#pragma once

namespace splash::app {

inline constexpr const char* version = SPLASH_VERSION;  // of the CMake project

}  // namespace splash::app
