// How an error looks to a client: HTTP status, machine-readable code, and the OpenAI shape of both.
#pragma once

#include <string>
#include <string_view>

#include "api/json.h"
#include "base/result.h"
#include "http/message.h"

namespace splash::api {

struct ApiError {
  int status = 500;
  std::string code = "internal_server_error";
  std::string message;
  std::string parameter;  // may be empty

  ApiError() = default;
  ApiError(int status, std::string code, std::string message, std::string parameter = {});
  ApiError(const Error& error);  // NOLINT: errors of the inner folders become answers as they are
};

template <class T>
using Answer = tl::expected<T, ApiError>;

std::string_view code_of_status(int status);

// {"error": {"message", "type", "param", "code"}}
json::object openai_error(const ApiError& error);
http::Response openai_error_response(const ApiError& error);

}  // namespace splash::api
