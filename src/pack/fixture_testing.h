// The golden fixtures: small models with their expected outputs, in a folder beside the tree.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace splash {

// A fixture's folder. SPLASH_SHARED names the folder that holds `fixtures`; unstated: ../shared. Where there are none, the
// test that asks is skipped and ends here, from whatever depth; on the test's own thread.
inline std::filesystem::path fixture(std::string_view name) {
  const char* shared = std::getenv("SPLASH_SHARED");
  const std::filesystem::path fixtures = std::filesystem::path(shared != nullptr ? shared : "../shared") / "fixtures";
  if (!std::filesystem::exists(fixtures)) {
    constexpr const char* reason = "no golden fixtures beside the tree";
    [reason] { GTEST_SKIP() << reason; }();  // returns from this function alone; the exception is what GoogleTest takes for "reported"
    throw testing::AssertionException(testing::TestPartResult(testing::TestPartResult::kSkip, __FILE__, __LINE__, reason));
  }
  return fixtures / name;
}

}  // namespace splash
