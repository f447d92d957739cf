#include "app/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <numeric>

#include "backend/cpu/isa.h"
#include "backend/cpu/roof.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "pack/step_bytes.h"

namespace splash::app {
namespace {

namespace json = boost::json;
using std::chrono::steady_clock;

// Tokens per step of published DFlash 2 runs: nothing kept, prose, code (../shared/spec/perf-anchors.md).
constexpr double acceptances[] = {1.0, 2.8, 4.80};
constexpr int warm_up_steps = 3;

struct BenchOptions {
  ModelOptions model;
  int lanes = 1;
  int context = 512;  // tokens before the timed steps
  int rows = 8;       // of each lane's verify pass
  int steps = 20;
  std::vector<int> lengths{128, 512, 2048};
  bool as_json = false;
};

double milliseconds_since(steady_clock::time_point begun) {
  return std::chrono::duration<double, std::milli>(steady_clock::now() - begun).count();
}

// A model without an engine, each lane with pages of its own in a row.
class Bare {
 public:
  static Result<Bare> open(const BenchOptions& options, std::shared_ptr<const pack::Package> package, int positions) {
    SPLASH_TRY(const models::BackendChoice chosen, chosen_backend(options.model, *package));
    Bare out;
    out.use_draft_ = !options.model.plain;
    out.pages_per_lane_ = (positions + link::page_tokens - 1) / link::page_tokens;
    models::OpenOptions open;
    open.backend = chosen.backend;
    open.index = options.model.device;
    open.threads = chosen_threads(options.model);
    open.isa = chosen_isa(options.model);
    open.lanes = options.lanes;
    open.pages = options.lanes * out.pages_per_lane_;
    open.snapshots = 1;
    open.max_prefill_rows = prefill_rows(open.backend);
    SPLASH_TRY(out.model_, models::open(std::move(package), open));
    SPLASH_TRY_STATUS(out.model_->back_pages(open.pages));
    for (int lane = 0; lane < options.lanes; ++lane) {
      auto& pages = out.lanes_.emplace_back().pages;
      pages.resize(out.pages_per_lane_);
      std::iota(pages.begin(), pages.end(), lane * out.pages_per_lane_);
    }
    return out;
  }

  model::Model& model() { return *model_; }

  // Empties a lane and reads `length` random tokens into it.
  Status prefill(int lane, int length) {
    model_->start_lane(lane, {.sampling = {.temperature = 0.0f}, .use_draft = use_draft_});
    std::vector<Token> tokens(length);
    for (int i = 0; i < length; ++i)
      tokens[i] = static_cast<Token>(uniform(7 + lane, i, Purpose::test) * model_->facts().vocab_size);
    const int most = model_->facts().max_prefill_rows;
    for (int position = 0; position < length; position += most) {
      const int rows = std::min(most, length - position);
      model::StepPlan plan;
      plan.prefill.push_back({lane,
                              position,
                              {tokens.data() + position, static_cast<std::size_t>(rows)},
                              lanes_[lane].pages,
                              position + rows == length});
      SPLASH_TRY(const model::StepResult result, model_->step(plan));
      if (position + rows == length) lanes_[lane].anchor = result.prefill[0].chosen.back();
    }
    lanes_[lane].position = length;
    return {};
  }

  // One step of all lanes; the number of proposals kept.
  Result<int> decode(int width) {
    model::StepPlan plan;
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane)
      plan.decode.push_back(
          {static_cast<int>(lane), lanes_[lane].position, lanes_[lane].anchor, lanes_[lane].pages, width, width});
    SPLASH_TRY(const model::StepResult result, model_->step(plan));
    int kept = 0;
    for (const model::SliceResult& slice : result.decode) {
      lanes_[slice.lane].position += slice.committed;
      lanes_[slice.lane].anchor = slice.chosen.back();
      kept += slice.accepted;
    }
    return kept;
  }

 private:
  struct Lane {
    std::vector<model::PageId> pages;
    int position = 0;
    Token anchor = 0;
  };
  std::unique_ptr<model::Model> model_;
  std::vector<Lane> lanes_;
  int pages_per_lane_ = 0;
  bool use_draft_ = true;
};

struct Machine {
  std::string device;
  std::optional<cpu::Roof> roof;  // of a CPU
};

Result<Machine> measure_machine(const ModelOptions& options, const pack::Package& package) {
  SPLASH_TRY(const models::BackendChoice chosen, chosen_backend(options, package));
  const int threads = chosen_threads(options);
  Machine machine;
  SPLASH_TRY(machine.device, describe_device(chosen.backend, options.device, chosen_isa(options), threads));
  if (chosen.backend != models::Backend::cpu) return machine;
  SPLASH_TRY(const cpu::Isa isa, cpu::choose_isa(chosen_isa(options)));
  ThreadPool pool(threads);
  machine.roof = cpu::measure_roof(pool, isa);
  return machine;
}

struct StepReport {
  json::object numbers;
  std::string text;
};

StepReport report_step(const BenchOptions& options, const pack::Package& package, const Machine& machine, int rows,
                       double step_ms, double kept_per_lane) {
  const pack::StepBytes bytes = pack::step_bytes(package);
  const std::int64_t weights = rows > 1 ? bytes.weights() : bytes.target + bytes.head;
  const std::int64_t total = weights + options.lanes * (bytes.gdn_state + bytes.kv_per_token * options.context);
  const double achieved = static_cast<double>(total) / step_ms / 1e6;
  StepReport out;
  out.numbers = {{"model", model_name(options.model, package)},
                 {"device", machine.device},
                 {"lanes", options.lanes},
                 {"rows", rows},
                 {"context", options.context},
                 {"step_ms", step_ms},
                 {"step_bytes", total},
                 {"weights_bytes", weights},
                 {"gb_per_s", achieved},
                 {"kept_per_step", kept_per_lane}};
  out.text = fmt::format(
      "{} · {} · {} lane{} x {} rows · context {}\n  step     {:.3f} ms (median of {})\n"
      "  bytes    {:.3f} GB ({:.3f} weights), {:.2f} GB/s\n",
      model_name(options.model, package), machine.device, options.lanes, options.lanes == 1 ? "" : "s", rows,
      options.context, step_ms, options.steps, static_cast<double>(total) / 1e9, static_cast<double>(weights) / 1e9,
      achieved);
  if (machine.roof) {
    const double share = achieved / machine.roof->read_gb_s;
    out.numbers["roof_gb_per_s"] = machine.roof->read_gb_s;
    out.numbers["roof_int8_gmac_per_s"] = machine.roof->int8_gmac_s;
    out.numbers["share_of_roof"] = share;
    out.text +=
        fmt::format("  roof     {:.2f} GB/s read, {:.0f} int8 GMAC/s, measured now: {:.0f} % of the read roof\n",
                    machine.roof->read_gb_s, machine.roof->int8_gmac_s, 100 * share);
  }
  json::object speeds;
  out.text += "  tokens/s";
  for (double acceptance : acceptances) {
    if (acceptance > rows) continue;
    const double speed = 1000.0 / step_ms * acceptance * options.lanes;
    speeds[fmt::format("{:.2f}", acceptance)] = speed;
    out.text += fmt::format(" {} {:.1f} at {:.2f} tokens/step", speeds.size() == 1 ? "" : " ·", speed, acceptance);
  }
  out.numbers["tokens_per_s_at"] = std::move(speeds);
  out.text += "\n";
  return out;
}

Status run_step(const BenchOptions& options) {
  SPLASH_TRY(const auto package, open_package(options.model));
  SPLASH_TRY(const Machine machine, measure_machine(options.model, *package));
  const bool drafts = package->draft() && !options.model.plain;
  const int rows = drafts ? std::min(options.rows, package->draft()->block_size) : 1;
  const int positions = options.context + (options.steps + warm_up_steps + 1) * rows;
  SPLASH_TRY(Bare bare, Bare::open(options, package, positions));
  for (int lane = 0; lane < options.lanes; ++lane) SPLASH_TRY_STATUS(bare.prefill(lane, options.context));
  std::vector<double> times;
  int kept = 0;
  for (int step = -warm_up_steps; step < options.steps; ++step) {
    const auto begun = steady_clock::now();
    SPLASH_TRY(const int kept_now, bare.decode(rows));
    if (step < 0) continue;
    times.push_back(milliseconds_since(begun));
    kept += kept_now;
  }
  const StepReport report = report_step(options, *package, machine, rows, median(times),
                                        static_cast<double>(kept) / options.steps / options.lanes);
  if (options.as_json)
    fmt::print("{}\n", json::serialize(report.numbers));
  else
    fmt::print("{}", report.text);
  return {};
}

Status run_prefill(const BenchOptions& options) {
  SPLASH_TRY(const auto package, open_package(options.model));
  SPLASH_TRY(const Machine machine, measure_machine(options.model, *package));
  const int longest = *std::max_element(options.lengths.begin(), options.lengths.end());
  BenchOptions one_lane = options;
  one_lane.lanes = 1;
  SPLASH_TRY(Bare bare, Bare::open(one_lane, package, longest + 1));
  SPLASH_TRY_STATUS(bare.prefill(0, std::min(longest, 64)));  // first touch of weights and scratch
  if (!options.as_json) fmt::print("{} · {}\n", model_name(options.model, *package), machine.device);
  json::array rows;
  for (int length : options.lengths) {
    const auto begun = steady_clock::now();
    SPLASH_TRY_STATUS(bare.prefill(0, length));
    const double ms = milliseconds_since(begun);
    rows.push_back({{"tokens", length}, {"ms", ms}, {"tokens_per_s", length / ms * 1000}});
    if (!options.as_json) fmt::print("  {:6} tokens  {:10.1f} ms  {:8.1f} tokens/s\n", length, ms, length / ms * 1000);
  }
  if (options.as_json)
    fmt::print("{}\n", json::serialize(json::object{{"model", model_name(options.model, *package)},
                                                    {"device", machine.device},
                                                    {"prefill", std::move(rows)}}));
  return {};
}

int exit_of(const Status& status) {
  if (status) return 0;
  fmt::print(stderr, "splash: error: {}\n", status.error().message);
  return 1;
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void add_bench_verb(CLI::App& app, int& exit_code) {
  CLI::App* bench = app.add_subcommand("bench", "how fast this machine is, and how near to its roof")->group("Measure");
  bench->require_subcommand(1);

  auto options = std::make_shared<BenchOptions>();
  CLI::App* step = bench->add_subcommand("step", "one draft, verify, accept, commit: time, bytes, share of the roof");
  CLI::App* prefill = bench->add_subcommand("prefill", "tokens of a prompt per second, by its length");
  for (CLI::App* verb : {step, prefill}) {
    verb->add_option("model", options->model.model,
                     "pack or model folder, with or without a tokenizer (default: the built-in model)");
    verb->add_option("--draft", options->model.draft, "DFlash 2 draft folder")->type_name("DIR");
    verb->add_option("--backend", options->model.backend, "auto, cpu, cuda or ref")
        ->check(CLI::IsMember({"auto", "cpu", "cuda", "ref"}));
    verb->add_option("--device", options->model.device, "number of the GPU")->check(CLI::Range(0, 1023));
    verb->add_option("--isa", options->model.isa, "scalar, avx2, avx512vnni");
    verb->add_option("--threads", options->model.threads, "CPU threads (default: all)")->check(CLI::Range(1, 1024));
    verb->add_option("--weights", options->model.weights, "precision when a source folder is packed")
        ->check(CLI::IsMember({"q4", "source"}));
    verb->add_flag("--json", options->as_json, "one JSON object on standard output");
  }
  step->add_flag("--plain", options->model.plain, "one row, without the draft");
  step->add_option("--lanes", options->lanes, "requests in the step")
      ->check(CLI::Range(1, link::max_lanes))
      ->capture_default_str();
  step->add_option("--rows", options->rows, "rows of each lane, the anchor included")
      ->check(CLI::Range(1, link::max_block))
      ->capture_default_str();
  step->add_option("--context", options->context, "tokens before the timed steps")
      ->check(CLI::Range(1, link::max_context))
      ->capture_default_str();
  step->add_option("--steps", options->steps, "timed steps")->check(CLI::Range(1, 100000))->capture_default_str();
  prefill->add_option("--lengths", options->lengths, "prompt lengths")
      ->delimiter(',')
      ->check(CLI::Range(1, link::max_context))
      ->capture_default_str();
  step->callback([options, &exit_code] { exit_code = exit_of(run_step(*options)); });
  prefill->callback([options, &exit_code] { exit_code = exit_of(run_prefill(*options)); });

  auto serving = std::make_shared<ServeBenchOptions>();
  CLI::App* serve =
      bench->add_subcommand("serve", "clients in conversation over loopback HTTP: time to first token, tokens/s");
  serve->add_option("model", serving->model.model, "pack or model folder (default: the built-in model)");
  add_model_options(*serve, serving->model);
  serve->add_option("--clients", serving->clients, "at the same time")
      ->check(CLI::Range(1, 200))
      ->capture_default_str();
  serve->add_option("--turns", serving->turns, "of each conversation; the first is cold")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  serve->add_option("--prompt-words", serving->prompt_words, "of the first turn")
      ->check(CLI::Range(1, 200000))
      ->capture_default_str();
  serve->add_option("--tokens", serving->tokens, "of each reply")->check(CLI::Range(1, 100000))->capture_default_str();
  serve->add_flag("--json", serving->as_json, "one JSON object on standard output");
  serve->callback([serving, &exit_code] { exit_code = run_serve_bench(*serving); });
}

}  // namespace splash::app
