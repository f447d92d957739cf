#include "api/error.h"

#include <boost/json/serialize.hpp>

namespace splash::api {
namespace {

int status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid:
    case ErrorKind::unsupported:
      return 400;
    case ErrorKind::not_found:
      return 404;
    case ErrorKind::overloaded:
    case ErrorKind::lost:
    case ErrorKind::cancelled:
      return 503;  // the engine cancels by itself only when the server ends
    case ErrorKind::timeout:
      return 504;
    case ErrorKind::corrupt:
    case ErrorKind::io:
    case ErrorKind::internal:
      return 500;
  }
  return 500;
}

std::string_view code_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::unsupported:
      return "unsupported_parameter";
    case ErrorKind::cancelled:
      return "server_shutdown";
    case ErrorKind::lost:
      return "device_lost";
    default:
      return code_of_status(status_of(kind));
  }
}

}  // namespace

std::string_view code_of_status(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "forbidden";
    case 404:
      return "not_found";
    case 405:
      return "method_not_allowed";
    case 408:
    case 504:
      return "request_timeout";
    case 413:
      return "request_too_large";
    case 500:
      return "internal_server_error";
    case 501:
      return "not_implemented";
    case 503:
      return "server_overloaded";
    case 505:
      return "http_version_not_supported";
    default:
      return "invalid_request_error";
  }
}

ApiError::ApiError(int status_, std::string code_, std::string message_, std::string parameter_)
    : status(status_), code(std::move(code_)), message(std::move(message_)), parameter(std::move(parameter_)) {}

ApiError::ApiError(const Error& error)
    : status(status_of(error.kind)), code(code_of(error.kind)), message(error.message), parameter(error.parameter) {}

json::object openai_error(const ApiError& error) {
  json::object fields;
  fields["message"] = error.message;
  fields["type"] = error.status >= 500 ? "server_error" : "invalid_request_error";
  fields["param"] = error.parameter.empty() ? json::value(nullptr) : json::value(error.parameter);
  fields["code"] = error.code;
  return {{"error", std::move(fields)}};
}

http::Response openai_error_response(const ApiError& error) {
  http::Response response{.status = error.status, .body = json::serialize(openai_error(error))};
  if (error.status == 503) response.headers.push_back({"Retry-After", "1"});
  if (error.status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  return response;
}

}  // namespace splash::api
