#include "app/runtime.h"

#include <fmt/format.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <future>
#include <thread>

#include "app/version.h"
#include "backend/cpu/isa.h"
#include "backend/cuda/facts.h"
#include "chat/prompt.h"
#include "text/grammar.h"

namespace splash::app {
namespace {

namespace fs = std::filesystem;

api::SamplingDefaults sampling_defaults(const text::SamplingDefaults& stated) {
  api::SamplingDefaults out;
  out.temperature = stated.temperature.value_or(out.temperature);
  out.top_k = stated.top_k.value_or(out.top_k);
  out.top_p = stated.top_p.value_or(out.top_p);
  out.min_p = stated.min_p.value_or(out.min_p);
  return out;
}

std::string indented(std::string_view lines) {
  std::string out;
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    out += fmt::format("{}  {}", out.empty() ? "" : "\n", lines.substr(0, end));
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return out;
}

// The trie over the vocabulary takes up to a second: it is built while the server already runs, and whoever asks for a
// grammar first waits for the rest of it.
std::function<Result<std::shared_ptr<text::GrammarFactory>>()> grammars_in_background(
    std::shared_ptr<const text::Tokenizer> tokenizer, std::vector<Token> stop_tokens, int vocabulary) {
  using Factory = Result<std::shared_ptr<text::GrammarFactory>>;
  std::shared_future<Factory> built = std::async(
      std::launch::async, [tokenizer = std::move(tokenizer), stop_tokens = std::move(stop_tokens), vocabulary] {
        return text::GrammarFactory::create(tokenizer, stop_tokens, vocabulary);
      });
  return [built] { return built.get(); };
}

}  // namespace

void add_model_options(CLI::App& verb, ModelOptions& options) {
  verb.add_option("--draft", options.draft, "DFlash 2 draft folder, for a source folder without one")->type_name("DIR");
  verb.add_option("--weights", options.weights, "precision when a source folder is packed")
      ->check(CLI::IsMember({"q4", "source"}))
      ->capture_default_str()
      ->group("Model");
  verb.add_option("--backend", options.backend, "where the model runs; auto: a GPU if one is there (splash devices)")
      ->check(CLI::IsMember({"auto", "cpu", "cuda", "ref"}))
      ->capture_default_str()
      ->group("Model");
  verb.add_option("--device", options.device, "number of the GPU, as splash devices lists them (default: the first)")
      ->check(CLI::Range(0, 1023))
      ->group("Model");
  verb.add_option("--isa", options.isa, "instruction set: scalar, avx2, avx512vnni (default: the best; or SPLASH_ISA)")
      ->group("Model");
  verb.add_option("--threads", options.threads, "CPU threads (default: all)")
      ->check(CLI::Range(1, 1024))
      ->group("Model");
  verb.add_flag("--plain", options.plain, "one token per step, without the draft")->group("Model");
  verb.add_option("--lanes", options.lanes, "requests that run at the same time (default: as memory allows)")
      ->check(CLI::Range(1, link::max_lanes))
      ->group("Memory and context");
  verb.add_option("--context", options.context,
                  "tokens of prompt and reply together (default: as model and memory allow)")
      ->check(CLI::Range(1, link::max_context))
      ->transform(
          CLI::AsNumberWithUnit(std::map<std::string, int>{{"K", 1024}}, CLI::AsNumberWithUnit::CASE_INSENSITIVE))
      ->group("Memory and context");
  verb.add_option("--max-memory", options.max_memory, "upper bound of weights, KV and state together, e.g. 8G")
      ->type_name("SIZE")
      ->group("Memory and context");
  verb.get_option("--draft")->group("Model");
}

Result<std::string> builtin_model() {
  std::error_code ignored;
  const fs::path here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const fs::path& folder :
       {here / "../models/tiny", here / "../share/splash/models/tiny", fs::path(SPLASH_BUILTIN)})
    if (fs::exists(folder / "manifest.json", ignored) || fs::exists(folder / "config.json", ignored))
      return fs::weakly_canonical(folder, ignored).string();
  return fail(ErrorKind::not_found,
              "the built-in model is not where this binary looks for it ({}); name a model folder", SPLASH_BUILTIN);
}

Result<std::int64_t> parse_size(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string unit(end);
  for (char& c : unit) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (unit.ends_with("IB"))
    unit.resize(unit.size() - 2);
  else if (unit.ends_with('B'))
    unit.pop_back();
  const double scale = unit.empty() ? 1 : unit == "K" ? 0x1p10 : unit == "M" ? 0x1p20 : unit == "G" ? 0x1p30 : 0;
  if (end == text.c_str() || scale == 0 || !(number > 0) || number * scale >= 0x1p62)
    return fail(ErrorKind::invalid, "'{}' is no size; write bytes, or a number with K, M or G", text);
  return static_cast<std::int64_t>(number * scale);
}

Result<models::BackendChoice> chosen_backend(const ModelOptions& options, const pack::Package& package) {
  return models::choose_backend(options.backend, package, options.device, options.context);
}

std::string chosen_isa(const ModelOptions& options) {
  if (!options.isa.empty()) return options.isa;
  const char* forced = std::getenv("SPLASH_ISA");
  return forced ? forced : "";
}

int chosen_threads(const ModelOptions& options) {
  return options.threads > 0 ? options.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

Result<std::string> describe_device(models::Backend backend, int index, const std::string& isa_name, int threads) {
  if (backend == models::Backend::ref) return "ref (scalar float32)";
  if (backend == models::Backend::cuda) {
    SPLASH_TRY(const cuda::DeviceFacts gpu, cuda::choose_device(index));
    return fmt::format("cuda {}", gpu.name);
  }
  SPLASH_TRY(const cpu::Isa isa, cpu::choose_isa(isa_name));
  return fmt::format("cpu {}, {} thread{}", cpu::name_of(isa), threads, threads == 1 ? "" : "s");
}

Result<std::shared_ptr<const pack::Package>> open_package(const ModelOptions& options, const std::atomic<bool>* stop) {
  std::string folder = options.model;
  if (folder.empty()) {
    SPLASH_TRY(folder, builtin_model());
  }
  pack::PackOptions pack_options;
  pack_options.weights = options.weights == "source" ? pack::WeightChoice::source : pack::WeightChoice::q4;
  if (!options.draft.empty()) pack_options.draft = options.draft;
  pack_options.show_progress = true;
  pack_options.stop = stop;
  return pack::open_model(folder, pack_options);
}

std::string model_name(const ModelOptions& options, const pack::Package& package) {
  return options.model.empty() ? "splash-tiny" : package.name();
}

Result<std::unique_ptr<Runtime>> Runtime::open(const ModelOptions& options,
                                               const std::function<void(const std::string&)>& say,
                                               const std::atomic<bool>* stop,
                                               std::function<void(const Error&)> on_lost) {
  std::unique_ptr<Runtime> runtime(new Runtime);
  SPLASH_TRY(runtime->package_, open_package(options, stop));
  const pack::Package& package = *runtime->package_;
  runtime->name_ = model_name(options, package);
  say(fmt::format("Loading · {}", runtime->name_));
  const auto tokenizer_folder = package.tokenizer_folder();
  if (!tokenizer_folder)
    return fail(ErrorKind::invalid, "{} has no tokenizer.json: it can be measured (splash bench step) but not served",
                package.folder().string());
  SPLASH_TRY(runtime->text_, text::load_text_assets(tokenizer_folder->string()));
  if (!runtime->text_.chat_template)
    return fail(ErrorKind::invalid, "{} has no chat template (chat_template.jinja)", tokenizer_folder->string());
  SPLASH_TRY_STATUS(runtime->open_model(options, say, std::move(on_lost)));
  return runtime;
}

Status Runtime::make_plan(const ModelOptions& options, const models::OpenOptions& open) {
  cache::Wish wish;
  wish.lanes = options.lanes;
  wish.context = options.context;
  if (!options.max_memory.empty()) {
    SPLASH_TRY(wish.max_bytes, parse_size(options.max_memory));
  }
  const int positions = package_->target().max_positions;
  SPLASH_TRY(const model::Footprint footprint,
             models::footprint(*package_, open.backend, prefill_rows(open.backend), options.context));
  if (open.backend != models::Backend::cuda) {
    SPLASH_TRY(plan_, cache::plan(cache::machine_memory(), footprint, positions, wish));
    return {};
  }
  SPLASH_TRY(cuda::DeviceFacts gpu, cuda::choose_device(open.index));
  SPLASH_TRY_STATUS(cuda::read_memory(gpu));
  SPLASH_TRY(plan_, cache::plan_on_device({gpu.memory_bytes, gpu.free_bytes}, cache::machine_memory(), footprint,
                                          positions, wish));
  return {};
}

Status Runtime::open_model(const ModelOptions& options, const std::function<void(const std::string&)>& say,
                           std::function<void(const Error&)> on_lost) {
  SPLASH_TRY(const models::BackendChoice chosen, chosen_backend(options, *package_));
  models::OpenOptions open;
  open.backend = chosen.backend;
  open.index = options.device;
  open.threads = chosen_threads(options);
  open.isa = chosen_isa(options);
  open.max_prefill_rows = prefill_rows(open.backend);
  open.sampling_limit = text_.tokenizer->size();
  SPLASH_TRY(device_, describe_device(open.backend, open.index, open.isa, open.threads));
  if (!chosen.remark.empty()) say("On the CPU · " + chosen.remark);
  SPLASH_TRY_STATUS(make_plan(options, open));
  open.lanes = plan_.lanes;
  open.pages = plan_.pages;
  open.snapshots = plan_.snapshots;
  open.host_snapshots = plan_.host_snapshots;
  open.max_context = plan_.context;
  SPLASH_TRY(model_, models::open(package_, open));
  say(fmt::format("Plan · {} on {}\n{}", name_, device_, indented(cache::describe(plan_))));

  engine::Config config;
  config.use_draft = !options.plain && model_->facts().has_draft;
  config.on_lost = std::move(on_lost);
  engine_ = std::make_unique<engine::Engine>(*model_, plan_, config, clock_);
  say("Warming up · measuring steps");
  SPLASH_TRY_STATUS(engine_->warm_up());
  thread_ = std::make_unique<engine::EngineThread>(*engine_, clock_);
  return {};
}

void Runtime::stop(Duration grace) {
  if (thread_) thread_->stop(grace);
}

api::Backend Runtime::backend(Grammars grammars) {
  api::Backend out;
  out.model = name_;
  out.fingerprint = fmt::format("splash-{}-{:08x}", version,
                                static_cast<std::uint32_t>(std::hash<std::string>{}(out.model + device_)));
  out.created = std::time(nullptr);
  out.context = engine_->limits().context;
  out.vocabulary = model_->facts().vocab_size;
  out.lanes = plan_.lanes;
  out.has_draft = model_->facts().has_draft;
  out.sampling = sampling_defaults(text_.sampling);
  out.stop_tokens = text_.stop_tokens;
  out.tokenizer = text_.tokenizer;
  const auto builder = std::make_shared<const chat::PromptBuilder>(text_.tokenizer, text_.chat_template);
  out.build_prompt = [builder](const chat::Conversation& conversation) { return builder->build(conversation); };
  if (grammars == Grammars::in_background)
    out.grammars = grammars_in_background(text_.tokenizer, text_.stop_tokens, out.vocabulary);
  out.post = [engine = engine_.get()](link::Command command) { engine->post(std::move(command)); };
  out.status = [engine = engine_.get()] { return status_of(engine->counters()); };
  return out;
}

api::EngineStatus status_of(const engine::Counters& counters) {
  api::EngineStatus out;
  out.steps = counters.steps, out.failed_steps = counters.failed_steps;
  out.decode_steps = counters.decode_steps, out.decode_rows = counters.decode_rows;
  out.prefill_rows = counters.prefill_rows;
  out.prompt_tokens = counters.prompt_tokens, out.cached_tokens = counters.cached_tokens;
  out.reply_tokens = counters.reply_tokens;
  out.drafted_tokens = counters.drafted_tokens, out.accepted_tokens = counters.accepted_tokens;
  out.drafted_by_position.assign(counters.drafted_by_position.begin(), counters.drafted_by_position.end());
  out.accepted_by_position.assign(counters.accepted_by_position.begin(), counters.accepted_by_position.end());
  out.submitted = counters.submitted;
  out.stopped = counters.finished_stop, out.cut = counters.finished_length;
  out.failed = counters.failed, out.refused = counters.refused;
  out.cancelled = counters.cancelled, out.timed_out = counters.timed_out;
  out.suspended = counters.suspended;
  out.snapshots_saved = counters.snapshots_saved, out.snapshots_restored = counters.snapshots_restored;
  out.snapshots_evicted = counters.snapshots_evicted;
  out.queued = counters.queued, out.running = counters.running;
  out.pages_total = counters.pages_total, out.pages_lanes = counters.pages_lanes;
  out.pages_cached = counters.pages_cached;
  out.snapshots_total = counters.snapshots_total, out.snapshots_used = counters.snapshots_used;
  out.step_bounds_ms.assign(engine::step_bounds_ms.begin(), engine::step_bounds_ms.end());
  out.step_counts.assign(counters.step_ms.buckets.begin(), counters.step_ms.buckets.end());
  out.decode_step_counts.assign(counters.decode_step_ms.buckets.begin(), counters.decode_step_ms.buckets.end());
  const auto spent = [](const engine::Spent& on) { return api::EngineStatus::Spent{on.count, on.us()}; };
  out.between_steps = spent(counters.between_steps), out.turnovers = spent(counters.turnovers);
  out.admission = spent(counters.admission), out.filing = spent(counters.filing);
  out.step_sum_ms = static_cast<double>(counters.step_ms.sum_us.value()) / 1000.0;
  out.decode_step_sum_ms = static_cast<double>(counters.decode_step_ms.sum_us.value()) / 1000.0;
  return out;
}

}  // namespace splash::app
