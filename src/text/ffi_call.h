// Small words for calling the C ABI of text/ffi.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/ffi/splash_text_ffi.h"

namespace splash::text {

inline SplashText ffi_text(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

// Bytes that the crate gave out.
class FfiBytes {
 public:
  FfiBytes() = default;
  ~FfiBytes() { splash_bytes_free(bytes_); }
  FfiBytes(const FfiBytes&) = delete;
  FfiBytes& operator=(const FfiBytes&) = delete;

  SplashBytes* out() { return &bytes_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data), bytes_.size}; }
  template <class T>
  std::vector<T> array() const {
    std::vector<T> values(bytes_.size / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), bytes_.data, values.size() * sizeof(T));
    return values;
  }

 private:
  SplashBytes bytes_{};
};

// What a tokenizer made by Tokenizer::load offers the grammar beside it.
class FfiTokenizer {
 public:
  virtual const SplashTokenizer* ffi_handle() const = 0;

 protected:
  ~FfiTokenizer() = default;
};

// Calls a function of the ABI with a place for its error text. `what` begins the error's message.
template <class Call>
Status ffi_call(std::string_view what, Call&& call) {
  FfiBytes error;
  const int status = std::forward<Call>(call)(error.out());
  if (status == SPLASH_OK) return {};
  return fail(status == SPLASH_INVALID_INPUT ? ErrorKind::invalid : ErrorKind::internal, "{}: {}", what, error.text());
}

}  // namespace splash::text
