#include "app/pack_verbs.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <boost/json/value_from.hpp>
#include <map>
#include <memory>
#include <string>

#include "app/signals.h"
#include "pack/package.h"
#include "pack/sections.h"
#include "pack/step_bytes.h"
#include "pack/synth.h"

namespace splash::app {
namespace {

namespace json = boost::json;
using pack::Component;
using pack::Mixer;
using pack::Package;

constexpr int exit_failed = 1;

int report(const Status& status) {
  if (status) return 0;
  fmt::print(stderr, "splash: {}\n", status.error().message);
  return status.error().kind == ErrorKind::cancelled ? exit_interrupted : exit_failed;
}

struct PackArguments {
  std::string source;
  std::string destination;
  std::string draft;
  std::string weights = "q4";
  std::string geometry, tokenizer;
  int layers = 0;
  bool as_json = false;

  pack::PackOptions pack_options() const {
    pack::PackOptions options;
    options.weights = weights == "q4" ? pack::WeightChoice::q4 : pack::WeightChoice::source;
    if (!draft.empty()) options.draft = draft;
    options.show_progress = true;
    options.stop = StopSignals::take().flag();
    return options;
  }
};

// ---- info

std::string gigabytes(std::int64_t bytes) {
  if (bytes >= 100'000'000) return fmt::format("{:9.3f} GB", static_cast<double>(bytes) / 1e9);
  if (bytes >= 100'000) return fmt::format("{:9.3f} MB", static_cast<double>(bytes) / 1e6);
  return fmt::format("{:9} B ", bytes);
}

struct KindTotal {
  int count = 0;
  std::int64_t bytes = 0;
};

std::map<std::pair<std::string, std::string>, KindTotal> totals_by_kind(const Package& package) {
  std::map<std::pair<std::string, std::string>, KindTotal> totals;
  for (const pack::SectionInfo& section : package.sections()) {
    KindTotal& total = totals[{std::string(pack::component_name(section.component)), section.kind}];
    ++total.count;
    total.bytes += section.bytes;
  }
  return totals;
}

void print_geometry(const Package& package) {
  const pack::TargetGeometry& g = package.target();
  const auto attention = std::count(g.layers.begin(), g.layers.end(), Mixer::attention);
  fmt::print("{}\n", package.name());
  fmt::print("target  {} layers ({} gdn, {} attention), hidden {}, mlp {}, vocabulary {}{}\n", g.layers.size(),
             std::ssize(g.layers) - attention, attention, g.hidden_size, g.intermediate_size, g.vocab_size,
             g.tied_head ? ", tied head" : "");
  fmt::print(
      "        attention {} query and {} kv heads of {} ({} rotary, theta {:g}); gdn {} key and {} value heads "
      "of {} and {}, conv {}\n",
      g.query_heads, g.kv_heads, g.head_dim, g.rotary_dim, g.rope_theta, g.key_heads, g.value_heads, g.key_dim,
      g.value_dim, g.conv_kernel);
  const pack::DraftGeometry* draft = package.draft();
  if (draft == nullptr) {
    fmt::print("draft   none: the model decodes one token per step\n");
    return;
  }
  fmt::print(
      "draft   {} layers, mlp {}, {} query and {} kv heads of {}, window {}, block {}, {} taps, rank {}, top {}\n",
      draft->layers, draft->intermediate_size, draft->query_heads, draft->kv_heads, draft->head_dim, draft->windows[0],
      draft->block_size, draft->taps.size(), draft->selector_rank, draft->selector_top_k);
}

void print_info(const Package& package) {
  print_geometry(package);
  fmt::print("tokenizer {}\n\nsections\n", package.tokenizer_folder() ? "included" : "none");
  std::int64_t sum = 0;
  for (const auto& [key, total] : totals_by_kind(package)) {
    fmt::print("  {:7} {:10} {:5}  {}\n", key.first, key.second, total.count, gigabytes(total.bytes));
    sum += total.bytes;
  }
  fmt::print("  {:25} {}\n\n", "total", gigabytes(sum));
  const pack::StepBytes step = pack::step_bytes(package);
  const std::pair<const char*, std::int64_t> lines[] = {{"target layers", step.target},
                                                        {"head, verify", step.head},
                                                        {"draft layers", step.draft},
                                                        {"draft context keys, values", step.draft_context},
                                                        {"head, draft", step.draft_head},
                                                        {"gdn state, read and write", step.gdn_state},
                                                        {"one step, empty context", step.total(0)},
                                                        {"per token of context", step.kv_per_token}};
  fmt::print("bytes of one step\n");
  for (const auto& [name, bytes] : lines) fmt::print("  {:28} {}\n", name, gigabytes(bytes));
}

json::object section_json(const pack::SectionInfo& section) {
  return {{"component", json::string_view(pack::component_name(section.component))},
          {"name", section.name},
          {"kind", section.kind},
          {"rows", section.rows},
          {"cols", section.cols},
          {"bytes", section.bytes}};
}

json::object target_json(const pack::TargetGeometry& g) {
  const auto attention = std::count(g.layers.begin(), g.layers.end(), Mixer::attention);
  return {{"layers", g.layers.size()},
          {"attention_layers", attention},
          {"hidden_size", g.hidden_size},
          {"intermediate_size", g.intermediate_size},
          {"vocab_size", g.vocab_size},
          {"query_heads", g.query_heads},
          {"kv_heads", g.kv_heads},
          {"head_dim", g.head_dim},
          {"rotary_dim", g.rotary_dim},
          {"rope_theta", g.rope_theta},
          {"key_heads", g.key_heads},
          {"value_heads", g.value_heads},
          {"key_dim", g.key_dim},
          {"value_dim", g.value_dim},
          {"conv_kernel", g.conv_kernel},
          {"tied_head", g.tied_head},
          {"max_positions", g.max_positions}};
}

json::value draft_json(const pack::DraftGeometry* g) {
  if (g == nullptr) return nullptr;
  return json::object{{"layers", g->layers},
                      {"intermediate_size", g->intermediate_size},
                      {"query_heads", g->query_heads},
                      {"kv_heads", g->kv_heads},
                      {"head_dim", g->head_dim},
                      {"windows", json::value_from(g->windows)},
                      {"block_size", g->block_size},
                      {"mask_token", g->mask_token},
                      {"taps", json::value_from(g->taps)},
                      {"conv_group", g->conv_group},
                      {"selector_rank", g->selector_rank},
                      {"selector_top_k", g->selector_top_k}};
}

void print_json(const Package& package) {
  const pack::StepBytes step = pack::step_bytes(package);
  json::array sections;
  for (const pack::SectionInfo& section : package.sections()) sections.emplace_back(section_json(section));
  const json::object info{{"name", package.name()},
                          {"tokenizer", package.tokenizer_folder().has_value()},
                          {"target", target_json(package.target())},
                          {"draft", draft_json(package.draft())},
                          {"step_bytes", json::object{{"target", step.target},
                                                      {"head", step.head},
                                                      {"draft", step.draft},
                                                      {"draft_context", step.draft_context},
                                                      {"draft_head", step.draft_head},
                                                      {"gdn_state", step.gdn_state},
                                                      {"kv_per_token", step.kv_per_token},
                                                      {"total_empty_context", step.total(0)}}},
                          {"sections", std::move(sections)}};
  fmt::print("{}\n", json::serialize(info));
}

// ---- verbs

Status run_pack(const PackArguments& arguments) {
  SPLASH_TRY_STATUS(pack::pack_folder(arguments.source, arguments.destination, arguments.pack_options()));
  SPLASH_TRY(const auto package, Package::open(arguments.destination));
  fmt::print("{} is ready: splash serve {}\n", arguments.destination, arguments.destination);
  if (package->draft() == nullptr) fmt::print("it has no draft: it will decode one token per step\n");
  return {};
}

Status run_info(const PackArguments& arguments) {
  SPLASH_TRY(const auto package, pack::open_model(arguments.source, arguments.pack_options()));
  arguments.as_json ? print_json(*package) : print_info(*package);
  return {};
}

Status run_verify(const PackArguments& arguments) {
  SPLASH_TRY(const auto package, pack::open_model(arguments.source, arguments.pack_options()));
  SPLASH_TRY_STATUS(pack::verify(package->folder()));
  fmt::print("{}: every file has the size and SHA-256 of its manifest\n", package->folder().string());
  return {};
}

Status run_synth(const PackArguments& arguments) {
  SPLASH_TRY_STATUS(pack::synth_pack(arguments.destination, {.geometry = arguments.geometry,
                                                             .layers = arguments.layers,
                                                             .tokenizer = arguments.tokenizer,
                                                             .show_progress = true,
                                                             .stop = StopSignals::take().flag()}));
  fmt::print("{} is ready: splash info {}\n", arguments.destination, arguments.destination);
  return {};
}

// A subcommand whose callback runs `verb` on its own arguments.
CLI::App* add_verb(CLI::App& app, int& exit_code, const char* name, const char* about,
                   const std::shared_ptr<PackArguments>& arguments, Status (*verb)(const PackArguments&)) {
  CLI::App* command = app.add_subcommand(name, about);
  command->callback([arguments, verb, &exit_code] { exit_code = report(verb(*arguments)); });
  return command;
}

void add_source_options(CLI::App& command, PackArguments& arguments) {
  command.add_option("--draft", arguments.draft, "folder of a DFlash 2 draft");
  command.add_option("--weights", arguments.weights, "q4: matrices in 4 bits; source: as the source has them")
      ->check(CLI::IsMember({"q4", "source"}))
      ->capture_default_str();
}

}  // namespace

void add_pack_verbs(CLI::App& app, int& exit_code) {
  const auto packing = std::make_shared<PackArguments>();
  CLI::App* command =
      add_verb(app, exit_code, "pack", "turn a Hugging Face or MLX folder into a pack", packing, run_pack);
  command->add_option("SRC", packing->source, "folder with config.json and safetensors")->required();
  command->add_option("DST", packing->destination, "folder of the pack")->required();
  add_source_options(*command, *packing);

  const auto info = std::make_shared<PackArguments>();
  command = add_verb(app, exit_code, "info", "geometry, sections and bytes of one step", info, run_info);
  command->add_option("MODEL", info->source, "a pack, a Hugging Face folder or an MLX folder")->required();
  command->add_flag("--json", info->as_json, "machine-readable, with every section");
  add_source_options(*command, *info);

  const auto verifying = std::make_shared<PackArguments>();
  command = add_verb(app, exit_code, "verify", "compare every file with its SHA-256", verifying, run_verify);
  command->add_option("MODEL", verifying->source, "a pack, a Hugging Face folder or an MLX folder")->required();
  add_source_options(*command, *verifying);

  const auto synth = std::make_shared<PackArguments>();
  command =
      add_verb(app, exit_code, "synth", "write a random pack of true shapes, for measuring speed", synth, run_synth);
  command->add_option("--geometry", synth->geometry, "27b, 9b, 4b, 2b or 0.8b")->required();
  command->add_option("--tokenizer", synth->tokenizer, "folder with a tokenizer.json, to serve the pack with")
      ->type_name("DIR");
  command->add_option("--layers", synth->layers, "only the first so many layers")->check(CLI::PositiveNumber);
  command->add_option("DST", synth->destination, "folder of the pack")->required();
}

}  // namespace splash::app
