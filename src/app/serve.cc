#include "app/serve.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <optional>

#include "app/signals.h"

namespace splash::app {
namespace {


// After the first SIGINT or SIGTERM. A client that reads a long reply gets the end of it, or an error it can see.
constexpr std::chrono::milliseconds shutdown_grace{3000};
constexpr std::chrono::milliseconds cut_time{500};  // for the last words to the streams that are cut

struct ServeOptions {
  ModelOptions model;
  std::string host = "127.0.0.1";
  int port = 8080;
  std::string api_key;
  bool allow_unauthenticated = false;
  std::vector<std::string> allowed_hosts, allowed_origins, served_names;
  std::string max_request_size;
  std::string reasoning_effort;
};

void say(const std::string& line) {
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fputc('\n', stderr);
}

int complain(const Error& error) {
  say("splash: error: " + error.message);
  return 1;
}

Status check_access(const ServeOptions& options) {
  const bool loopback = http::is_loopback_host(options.host) || options.host.starts_with("127.");
  if (!loopback && options.api_key.empty() && !options.allow_unauthenticated)
    return fail(ErrorKind::invalid,
                "--host {} lets other machines in: set --api-key (or SPLASH_API_KEY), or say --allow-unauthenticated",
                options.host);
  const bool visible =
      std::all_of(options.api_key.begin(), options.api_key.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (!visible) return fail(ErrorKind::invalid, "the API key must be visible ASCII characters");
  for (const std::string& origin : options.allowed_origins)
    if (origin != "*" && (origin.find('*') != std::string::npos || origin.find("://") == std::string::npos))
      return fail(ErrorKind::invalid, "--allowed-origin takes an exact origin such as https://ui.example, or *");
  return {};
}

Result<std::unique_ptr<http::Server>> bind(const ServeOptions& options) {
  http::ServerOptions server;
  server.host = options.host;
  server.port = options.port;
  server.guard = {options.host, options.api_key, options.allowed_hosts, options.allowed_origins};
  if (!options.max_request_size.empty()) {
    SPLASH_TRY(const std::int64_t bytes, parse_size(options.max_request_size));
    server.limits.body_bytes = static_cast<std::size_t>(bytes);
    server.limits.body_bytes_in_flight = std::max(server.limits.body_bytes_in_flight, 2 * server.limits.body_bytes);
  }
  return http::Server::bind(std::move(server));
}

std::string grouped(int context) {
  return context % 1024 == 0 ? fmt::format("{}K", context / 1024) : fmt::format("{}", context);
}

void say_ready(const ServeOptions& options, Serving& serving, const api::Backend& backend) {
  const bool v6 = options.host.find(':') != std::string::npos;
  const std::string url = fmt::format("http://{}:{}", v6 ? "[" + options.host + "]" : options.host, serving.port());
  const std::string header = options.api_key.empty() ? "" : " -H \"Authorization: Bearer $SPLASH_API_KEY\"";
  const std::string key = options.api_key.empty() ? "\"local\"" : "os.environ[\"SPLASH_API_KEY\"]";
  say(fmt::format("Ready · {} · context {} · {} lane{}{} · {}\n", backend.model, grouped(backend.context),
                  backend.lanes, backend.lanes == 1 ? "" : "s",
                  backend.has_draft ? "" : " · no draft, one token per step", url));
  say("Try it:");
  say(
      fmt::format("  curl -N {}/v1/chat/completions{} -H 'Content-Type: application/json' \\\n"
                  "    -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Hello!\"}}], \"stream\": true}}'",
                  url, header));
  say(fmt::format(
      "  python3 -c 'import os; from openai import OpenAI; print(OpenAI(base_url=\"{}/v1\", api_key={})\\\n"
      "    .chat.completions.create(model=\"{}\", messages=[{{\"role\": \"user\", \"content\": \"Hello!\"}}])\\\n"
      "    .choices[0].message.content)'\n"
      "Ctrl-C stops.",
      url, key, backend.model));
}

int run_serve(const ServeOptions& options) {
  if (const Status access = check_access(options); !access) return complain(access.error());
  if (std::find(options.allowed_origins.begin(), options.allowed_origins.end(), "*") != options.allowed_origins.end() &&
      options.api_key.empty())
    say("Warning · --allowed-origin * without an API key lets every web page use this server");
  std::signal(SIGPIPE, SIG_IGN);  // a closed log must not end the server
  StopSignals& stop = StopSignals::take();
  // The port first, so that a taken one is known before anything slow.
  auto server = bind(options);
  if (!server) return complain(server.error());
  std::optional<Error> lost;  // read after stop.wait() alone
  auto runtime = Runtime::open(options.model, say, stop.flag(), [&](const Error& error) {
    lost = error;
    stop.request();
  });
  if (stop.requested()) return exit_interrupted;
  if (!runtime) return complain(runtime.error());
  api::Backend backend = (*runtime)->backend();
  backend.aliases = options.served_names;
  if (!options.reasoning_effort.empty()) backend.reasoning_effort = options.reasoning_effort;
  auto serving = Serving::open(std::move(*server), std::move(*runtime), backend);
  if (!serving) return complain(serving.error());
  say_ready(options, **serving, backend);
  stop.wait();
  if (lost) {
    (*serving)->stop(cut_time);  // the replies that were cut get their error out
    return complain(*lost);
  }
  say("Stopping · running requests may end; a second Ctrl-C stops at once");
  (*serving)->stop(shutdown_grace);
  return 0;
}

}  // namespace

Result<std::unique_ptr<Serving>> Serving::open(std::unique_ptr<http::Server> server, std::unique_ptr<Runtime> runtime,
                                               api::Backend backend) {
  std::unique_ptr<Serving> out(new Serving);
  out->server_ = std::move(server);
  out->runtime_ = std::move(runtime);
  out->service_ = std::make_shared<api::Service>(std::move(backend), out->server_->guard());
  SPLASH_TRY_STATUS(out->server_->start(out->service_));
  return out;
}

void Serving::stop(Duration grace) {
  if (!service_) return;
  service_->set_ready(false);
  server_->drain(grace);
  runtime_->stop(Duration::zero());  // fails what is left: streams get their error as the last event
  server_->drain(cut_time);
  server_->stop();
  service_.reset();
}

void add_serve_verb(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* verb = app.add_subcommand("serve", "serve a model to OpenAI clients on this machine")->group("Use");
  verb->add_option("model", options->model.model, "pack, Hugging Face or MLX folder (default: the built-in model)");
  add_model_options(*verb, options->model);
  const char* network = "Network and access";
  verb->add_option("--host", options->host, "address to listen on")->capture_default_str()->group(network);
  verb->add_option("--port", options->port, "port; 0 takes a free one and prints it")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str()
      ->envname("SPLASH_PORT")
      ->group(network);
  verb->add_option("--api-key", options->api_key, "key that requests must carry")
      ->envname("SPLASH_API_KEY")
      ->group(network);
  verb->add_flag("--allow-unauthenticated", options->allow_unauthenticated, "listen beyond this machine without a key")
      ->group(network);
  verb->add_option("--allowed-host", options->allowed_hosts, "another Host name to answer to (repeatable)")
      ->type_name("NAME")
      ->group(network);
  verb->add_option("--allowed-origin", options->allowed_origins, "a web origin that may call (repeatable)")
      ->type_name("ORIGIN")
      ->group(network);
  verb->add_option("--served-model-name", options->served_names, "another name that requests may use (repeatable)")
      ->type_name("NAME")
      ->group("API");
  verb->add_option("--default-reasoning-effort", options->reasoning_effort, "where a request states none")
      ->check(CLI::IsMember({"none", "minimal", "low", "medium", "high", "xhigh", "max"}))
      ->envname("SPLASH_DEFAULT_REASONING_EFFORT")
      ->group("API");
  verb->add_option("--max-request-size", options->max_request_size, "largest request body (default 64M)")
      ->type_name("SIZE")
      ->group("API");
  verb->footer(
      "Examples:\n  splash serve                              the built-in model on http://127.0.0.1:8080\n"
      "  splash serve ~/models/Qwen3.5-4B --port 8000\n"
      "  SPLASH_API_KEY=... splash serve --host 0.0.0.0");
  verb->callback([options, &exit_code] { exit_code = run_serve(*options); });
}

}  // namespace splash::app
