// SHA-256, streaming (OpenSSL).
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace splash::pack {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void add(std::span<const std::byte> bytes);
  std::string hex();  // finishes; the object is spent

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

Result<std::string> sha256_of_file(const std::filesystem::path& path);

}  // namespace splash::pack
