#include "api/service.h"

#include <fmt/format.h>

#include <array>
#include <boost/json/serialize.hpp>

#include "api/error.h"
#include "api/openai_chat.h"
#include "base/log.h"

namespace splash::api {
namespace {

constexpr int preparation_threads = 2;

enum class Access { open, key };

// One row of the table of routes. `path` ends in '/' for a family of paths that continue it.
struct Route {
  std::string_view method;
  std::string_view path;
  Access access;
  void (Service::*run)(http::Request request, const Service::Exchange& exchange);
};

constexpr std::array routes = {
    Route{"GET", "/health", Access::open, &Service::get_health},
    Route{"GET", "/ready", Access::open, &Service::get_ready},
    Route{"GET", "/metrics", Access::key, &Service::get_metrics},
    Route{"GET", "/v1/models", Access::key, &Service::get_models},
    Route{"GET", "/v1/models/", Access::key, &Service::get_model},
    Route{"POST", "/v1/chat/completions", Access::key, &Service::post_chat},
};

bool matches(const Route& route, std::string_view path) {
  if (!route.path.ends_with('/')) return path == route.path;
  return path.size() > route.path.size() && path.starts_with(route.path);
}

bool answers(const Route& route, std::string_view method) {
  return route.method == method || (route.method == "GET" && method == "HEAD");
}

// The row for a request; or nothing and the methods that the path has.
const Route* find_route(const http::Head& head, std::string& allowed) {
  for (const Route& route : routes) {
    if (!matches(route, head.path)) continue;
    if (answers(route, head.method)) return &route;
    if (!allowed.empty()) allowed += ", ";
    allowed += route.method == "GET" ? "GET, HEAD" : std::string(route.method);
  }
  return nullptr;
}

bool is_json_type(std::string_view content_type) {
  std::string type;
  for (char c : content_type.substr(0, content_type.find(';')))
    if (c != ' ' && c != '\t') type += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return type == "application/json" || (type.starts_with("application/") && type.ends_with("+json"));
}

std::optional<ApiError> check_media_type(const http::Head& head) {
  const std::string* type = head.find("Content-Type");
  if (!type || !is_json_type(*type))
    return ApiError(415, "invalid_request_error", "the Content-Type must be application/json");
  const std::string* coding = head.find("Content-Encoding");
  if (coding && !http::equals_ignoring_case(*coding, "identity"))
    return ApiError(415, "invalid_request_error", "compressed bodies (Content-Encoding) are not taken");
  return std::nullopt;
}

bool is_known_method(std::string_view method) {
  constexpr std::array<std::string_view, 9> known = {"GET",    "HEAD",    "POST",  "PUT",    "PATCH",
                                                     "DELETE", "OPTIONS", "TRACE", "CONNECT"};
  return std::find(known.begin(), known.end(), method) != known.end();
}

json::object model_object(const Backend& backend, const std::string& name) {
  json::object out{{"id", name},
                   {"object", "model"},
                   {"created", backend.created},
                   {"owned_by", "splash"},
                   {"max_model_len", backend.context},
                   {"context_length", backend.context},
                   {"vision", false},
                   {"input_modalities", {"text"}}};
  if (name != backend.model) out["root"] = backend.model;
  return out;
}

}  // namespace

Service::Service(Backend backend, const http::Guard& guard)
    : backend_(std::move(backend)), guard_(guard), workers_(preparation_threads) {}

std::vector<http::Header> Service::common_headers(const http::Head& head) { return guard_.cors_headers(head); }

http::Response Service::error(const http::Head&, int status, std::string_view message) {
  metrics_.request_ended(status);
  return openai_error_response(ApiError(status, std::string(code_of_status(status)), std::string(message)));
}

std::optional<http::Response> Service::refuse(const http::Head& head) {
  const auto refusal = [&](const ApiError& error) {
    metrics_.request_ended(error.status);
    return openai_error_response(error);
  };
  if (!is_known_method(head.method)) return refusal({501, "not_implemented", "this method is not known"});
  if (head.method == "OPTIONS") return preflight(head);
  std::string allowed;
  const Route* route = find_route(head, allowed);
  if (!route || route->access == Access::key)
    if (const auto bad_key = guard_.check_key(head))
      return refusal({bad_key->status, "authentication_error", bad_key->message});
  if (!route && allowed.empty())
    return refusal(
        {404, "not_found", "there is nothing at this path; see GET /v1/models and POST /v1/chat/completions"});
  if (!route) {
    http::Response response = refusal({405, "method_not_allowed", fmt::format("this path takes {}", allowed)});
    response.headers.push_back({"Allow", allowed});
    return response;
  }
  if (route->method == "POST")
    if (const auto error = check_media_type(head)) return refusal(*error);
  return std::nullopt;
}

http::Response Service::preflight(const http::Head& head) {
  std::string allowed;
  if (const Route* route = find_route(head, allowed)) allowed = route->method;
  allowed += allowed.empty() ? "OPTIONS" : ", OPTIONS";
  http::Response response{.status = 204, .headers = {{"Allow", allowed}}};
  if (guard_.cors_headers(head).empty()) return response;
  response.headers.push_back({"Access-Control-Allow-Methods", allowed});
  if (const std::string* wanted = head.find("Access-Control-Request-Headers"))
    response.headers.push_back({"Access-Control-Allow-Headers", *wanted});
  response.headers.push_back({"Access-Control-Max-Age", "600"});
  return response;
}

void Service::handle(http::Request request, std::shared_ptr<http::Exchange> exchange) {
  std::string allowed;
  const Route* route = find_route(request.head, allowed);  // refuse() let only known ones through
  (this->*route->run)(std::move(request), exchange);
}

void Service::respond(const Exchange& exchange, http::Response response) {
  metrics_.request_ended(response.status);
  exchange->respond(std::move(response));
}

void Service::respond_error(const Exchange& exchange, const ApiError& error) {
  // Names of fields may be logged, except where the client makes them up.
  const std::string field = error.parameter.substr(0, error.parameter.find("chat_template_kwargs"));
  log::warn("Error · {} · {}{}{}", error.status, error.code, field.empty() ? "" : " · ", field);
  respond(exchange, openai_error_response(error));
}

void Service::get_health(http::Request, const Exchange& exchange) { exchange->respond({.body = R"({"status":"ok"})"}); }

void Service::get_ready(http::Request, const Exchange& exchange) {
  const bool ready = ready_;
  exchange->respond(
      {.status = ready ? 200 : 503, .body = ready ? R"({"status":"ready"})" : R"({"status":"unavailable"})"});
}

void Service::get_metrics(http::Request, const Exchange& exchange) {
  exchange->respond({.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics_.text(backend_)});
}

void Service::get_models(http::Request, const Exchange& exchange) {
  json::array models{model_object(backend_, backend_.model)};
  for (const std::string& alias : backend_.aliases) models.push_back(model_object(backend_, alias));
  respond(exchange, {.body = json::serialize(json::object{{"object", "list"}, {"data", std::move(models)}})});
}

void Service::get_model(http::Request request, const Exchange& exchange) {
  const std::string name = request.head.path.substr(std::string_view("/v1/models/").size());
  const bool known = name == backend_.model ||
                     std::find(backend_.aliases.begin(), backend_.aliases.end(), name) != backend_.aliases.end();
  if (!known)
    return respond_error(
        exchange, {404, "model_not_found",
                   fmt::format("this model is not served here; the served one is '{}'", backend_.model), "model"});
  respond(exchange, {.body = json::serialize(model_object(backend_, name))});
}

void Service::post_chat(http::Request request, const Exchange& exchange) {
  workers_.post([this, exchange, body = std::move(request.body)]() mutable {
    // Runs on a worker; what touches the exchange is posted back.
    const auto answer_error = [this, exchange](ApiError error) {
      exchange->post([this, exchange, error = std::move(error)] { respond_error(exchange, error); });
    };
    try {
      auto chat = read_chat_request(std::move(body), backend_);
      if (!chat) return answer_error(chat.error());
      auto prepared = prepare(backend_, std::move(chat->generation));
      if (!prepared) return answer_error(prepared.error());
      exchange->post([this, exchange, chat = std::move(*chat),
                      prepared = std::make_shared<PreparedGeneration>(std::move(*prepared))] {
        if (exchange->gone()) return metrics_.request_ended(499);
        run_generation(backend_, metrics_, std::move(*prepared), exchange, make_chat_writer(backend_, chat, exchange));
      });
    } catch (const std::exception& fault) {
      log::error("a request could not be prepared: {}", typeid(fault).name());  // what() may quote the prompt
      answer_error({500, "internal_server_error", "the request could not be prepared; this is a fault of the server"});
    }
  });
}

}  // namespace splash::api
