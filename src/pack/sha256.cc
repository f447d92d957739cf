#include "pack/sha256.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace splash::pack {

struct Sha256::Context {
  EVP_MD_CTX* digest = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(digest); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  SPLASH_CHECK(EVP_DigestInit_ex(context_->digest, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::add(std::span<const std::byte> bytes) {
  SPLASH_CHECK(EVP_DigestUpdate(context_->digest, bytes.data(), bytes.size()) == 1);
}

std::string Sha256::hex() {
  std::array<unsigned char, 32> hash{};
  SPLASH_CHECK(EVP_DigestFinal_ex(context_->digest, hash.data(), nullptr) == 1);
  std::string text;
  for (const unsigned char byte : hash) text += fmt::format("{:02x}", byte);
  return text;
}

// Reads instead of mapping: a file that shrinks meanwhile is an error, not a SIGBUS.
Result<std::string> sha256_of_file(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::vector<std::byte> buffer(std::size_t{1} << 20);
  Sha256 hash;
  ssize_t count = file < 0 ? -1 : 1;
  while (count > 0) {
    count = ::read(file, buffer.data(), buffer.size());
    if (count > 0) hash.add(std::span(buffer).first(static_cast<std::size_t>(count)));
  }
  const int error = errno;
  if (file >= 0) ::close(file);
  if (count < 0) {
    const auto kind = error == ENOENT ? ErrorKind::not_found : ErrorKind::io;
    return fail_parameter(kind, path.string(), "{}: cannot read: {}", path.string(), std::strerror(error));
  }
  return hash.hex();
}

}  // namespace splash::pack
