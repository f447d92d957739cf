// splash: one binary, one verb per task.
#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/bench.h"
#include "app/devices.h"
#include "app/generate.h"
#include "app/pack_verbs.h"
#include "app/score_verbs.h"
#include "app/serve.h"
#include "app/version.h"
#include "base/log.h"

namespace {

constexpr int exit_usage = 2;

// Letters to insert, delete, replace: enough to recognise a slip of the fingers.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row[b.size()];
}

bool is_verb(const CLI::App& app, std::string_view word) {
  const auto verbs = app.get_subcommands({});
  return std::any_of(verbs.begin(), verbs.end(), [&](const CLI::App* verb) { return verb->get_name() == word; });
}

// An unknown verb, with the one that was probably meant.
int unknown_verb(const CLI::App& app, std::string_view verb) {
  std::string nearest;
  std::size_t best = 3;
  for (const CLI::App* known : app.get_subcommands({})) {
    if (const std::size_t d = distance(verb, known->get_name()); d < best) best = d, nearest = known->get_name();
  }
  fmt::print(stderr, "splash: '{}' is no verb of splash{}; see splash --help\n", verb,
             nearest.empty() ? "" : fmt::format(", did you mean '{}'?", nearest));
  return exit_usage;
}

}  // namespace

int main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("splash"));
  spdlog::set_pattern("%H:%M:%S %v");
  int exit_code = 0;
  CLI::App app(
      "Splash serves Qwen3.5-family models on this machine; every token is drafted, verified, accepted, committed.",
      "splash");
  app.set_version_flag("--version", std::string("splash ") + splash::app::version);
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default(false);
  splash::app::add_serve_verb(app, exit_code);
  splash::app::add_generate_verb(app, exit_code);
  splash::app::add_pack_verbs(app, exit_code);
  splash::app::add_score_verbs(app, exit_code);
  splash::app::add_bench_verb(app, exit_code);
  splash::app::add_devices_verb(app, exit_code);
  for (const char* name : {"pack", "info", "verify", "synth"}) app.get_subcommand(name)->group("Models");
  for (const char* name : {"score", "draft"}) app.get_subcommand(name)->group("Measure");
  app.add_subcommand("version", "print the version")->group("Other")->callback([] {
    fmt::print("splash {}\n", splash::app::version);
  });
  app.footer(
      "Examples:\n"
      "  splash serve                          the built-in model on http://127.0.0.1:8080\n"
      "  splash generate \"Hello!\"              one reply in the terminal\n"
      "  splash pack ~/models/Qwen3.5-4B q4    a 4-bit pack of a downloaded model\n"
      "  splash bench step q4                  how fast a step is, and how fast it could be\n"
      "'splash VERB --help' explains a verb.");
  if (argc == 1) {
    fmt::print("{}", app.help());
    return exit_usage;
  }
  const std::string_view first = argv[1];
  if (!first.starts_with('-') && !is_verb(app, first)) return unknown_verb(app, first);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : exit_usage;
  }
  return exit_code;
}
