// Errors of a request or of a file are values: Result<T> holds a T or an Error that names what is wrong and how to mend it.
#pragma once

#include <fmt/format.h>

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace splash {

enum class ErrorKind {
  invalid,      // the caller's input is wrong; `parameter` names the part
  not_found,    // a file, model or route that is not there
  unsupported,  // understood, but not something this build or model does
  corrupt,      // a file whose bytes contradict its header, hash or format
  overloaded,   // a named limit of this server is reached; try again later
  timeout,      // the request's deadline passed
  cancelled,    // the client went away
  io,           // the operating system refused
  lost,         // the device has stopped answering: nothing of this process will run on it again
  internal,     // a fault of ours
};

struct Error {
  ErrorKind kind = ErrorKind::internal;
  std::string message;    // one sentence that names the fix, without prompt text
  std::string parameter;  // the request field or file it is about; may be empty
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

template <class... Args>
tl::unexpected<Error> fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{kind, fmt::format(format, std::forward<Args>(args)...), {}});
}

// The same with the name of the request field (or file) at fault.
template <class... Args>
tl::unexpected<Error> fail_parameter(ErrorKind kind, std::string parameter, fmt::format_string<Args...> format,
                                     Args&&... args) {
  return tl::unexpected<Error>(Error{kind, fmt::format(format, std::forward<Args>(args)...), std::move(parameter)});
}

}  // namespace splash

// TRY(auto x, f()): x = *f(), or return f()'s error from the enclosing function.
#define SPLASH_CONCAT_(a, b) a##b
#define SPLASH_CONCAT(a, b) SPLASH_CONCAT_(a, b)
#define SPLASH_TRY(declaration, expression) SPLASH_TRY_(SPLASH_CONCAT(try_result_, __LINE__), declaration, expression)
#define SPLASH_TRY_(name, declaration, expression) \
  auto name = (expression);                        \
  if (!name) return ::tl::unexpected(std::move(name).error()); \
  declaration = std::move(*name)
#define SPLASH_TRY_STATUS(expression)                                                      \
  do {                                                                                     \
    if (auto try_status = (expression); !try_status) return ::tl::unexpected(std::move(try_status).error()); \
  } while (false)
