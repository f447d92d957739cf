#include "app/generate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <deque>
#include <iostream>
#include <mutex>
#include <optional>
#include <random>

#include "app/runtime.h"
#include "app/signals.h"
#include "chat/prompt.h"
#include "chat/reader.h"

namespace splash::app {
namespace {

constexpr link::RequestId only_request = 1;

struct GenerateOptions {
  ModelOptions model;
  std::string prompt;
  std::string system;
  int max_tokens = 0;
  std::optional<float> temperature;
  std::optional<std::uint64_t> seed;
  bool no_thinking = false;
};

// The engine's events, brought over to the main thread.
class EventQueue {
 public:
  void push(link::Event event) {
    {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
    }
    bell_.notify_one();
  }
  std::optional<link::Event> pop(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    if (!bell_.wait_for(lock, patience, [this] { return !events_.empty(); })) return std::nullopt;
    link::Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  std::mutex mutex_;
  std::condition_variable bell_;
  std::deque<link::Event> events_;
};

// Reasoning is dim on a terminal; in a pipe only the reply itself is written.
class Terminal {
 public:
  void show(const chat::OutputEvent& event) {
    if (const auto* reasoning = std::get_if<chat::ReasoningDelta>(&event)) {
      if (terminal_) dim(true), put(reasoning->text);
    } else if (const auto* text = std::get_if<chat::TextDelta>(&event)) {
      if (dim_) put("\n\n");
      dim(false);
      put(text->text);
    }
    std::fflush(stdout);
  }
  void end() {
    dim(false);
    put("\n");
    std::fflush(stdout);
  }

 private:
  static void put(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }
  void dim(bool wanted) {
    if (std::exchange(dim_, wanted) != wanted) put(wanted ? "\x1b[2m" : "\x1b[0m");
  }
  const bool terminal_ = isatty(STDOUT_FILENO);
  bool dim_ = false;
};

Result<link::Submit> submission(const GenerateOptions& options, const Runtime& runtime, const api::Backend& backend,
                                chat::ReaderOptions& reader) {
  chat::Conversation conversation;
  if (!options.system.empty()) conversation.messages.push_back({chat::Role::system, options.system});
  conversation.messages.push_back({chat::Role::user, options.prompt});
  if (options.no_thinking) conversation.template_variables["enable_thinking"] = false;
  SPLASH_TRY(chat::Prompt prompt, backend.build_prompt(conversation));
  const int room = backend.context - static_cast<int>(prompt.tokens.size());
  if (room <= 0)
    return fail(ErrorKind::invalid, "the prompt has {} tokens; the context is {}", prompt.tokens.size(),
                backend.context);
  reader.starts_in_reasoning = prompt.starts_in_reasoning;
  link::Submit submit;
  submit.id = only_request;
  submit.prompt = std::move(prompt.tokens);
  submit.reply_boundary = prompt.reply_boundary;
  submit.max_tokens = options.max_tokens > 0 ? std::min(options.max_tokens, room) : room;
  submit.stop_tokens = runtime.text().stop_tokens;
  submit.sampling.temperature = options.temperature.value_or(backend.sampling.temperature);
  submit.sampling.top_k = backend.sampling.top_k;
  submit.sampling.top_p = backend.sampling.top_p;
  submit.sampling.min_p = backend.sampling.min_p;
  submit.sampling.seed = options.seed.value_or(std::random_device{}());
  submit.sampling.reproducible = options.seed.has_value();
  return submit;
}

void report(const link::Usage& usage, Duration to_first, Duration decoding) {
  const double seconds = std::chrono::duration<double>(decoding).count();
  const double steps = usage.decode_steps;
  fmt::print(
      stderr,
      "\n{} prompt tokens, first token after {:.3f} s; {} reply tokens, {:.1f} tok/s; {} steps, {:.2f} tokens/step{}\n",
      usage.prompt_tokens, std::chrono::duration<double>(to_first).count(), usage.reply_tokens,
      seconds > 0 ? (usage.reply_tokens - 1) / seconds : 0.0, usage.decode_steps,
      steps > 0 ? (usage.accepted_tokens + steps) / steps : 0.0,
      usage.drafted_tokens
          ? fmt::format(", {:.0f} % of the drafted tokens kept", 100.0 * usage.accepted_tokens / usage.drafted_tokens)
          : "");
}

int run_generate(const GenerateOptions& options) {
  StopSignals& stop = StopSignals::take();
  const auto complain = [](const Error& error) {
    fmt::print(stderr, "splash: error: {}\n", error.message);
    return 1;
  };
  auto runtime = Runtime::open(options.model, [](const std::string&) {}, stop.flag());
  if (!runtime) return complain(runtime.error());
  const api::Backend backend = (*runtime)->backend(Runtime::Grammars::none);
  chat::ReaderOptions reader_options;
  auto submit = submission(options, **runtime, backend, reader_options);
  if (!submit) return complain(submit.error());
  EventQueue events;
  submit->sink = [&events](link::Event event) { events.push(std::move(event)); };
  const TimePoint begun = std::chrono::steady_clock::now();
  backend.post(std::move(*submit));

  chat::ReplyReader reader((*runtime)->text().tokenizer, reader_options);
  Terminal terminal;
  std::optional<TimePoint> first;
  bool cancelled = false;
  while (true) {
    if (stop.requested() && !std::exchange(cancelled, true)) backend.post(link::Cancel{only_request});
    const auto event = events.pop(std::chrono::milliseconds(50));
    if (!event) continue;
    if (const auto* tokens = std::get_if<link::Tokens>(&*event)) {
      if (!first) first = std::chrono::steady_clock::now();
      for (const auto& piece : reader.push(tokens->tokens)) terminal.show(piece);
    } else if (const auto* finished = std::get_if<link::Finished>(&*event)) {
      const TimePoint end = std::chrono::steady_clock::now();
      for (const auto& piece : reader.finish()) terminal.show(piece);
      terminal.end();
      report(finished->usage, first.value_or(end) - begun, end - first.value_or(end));
      return 0;
    } else if (const auto* failed = std::get_if<link::Failed>(&*event)) {
      terminal.end();
      return cancelled ? exit_interrupted : complain(failed->error);
    }
  }
}

}  // namespace

void add_generate_verb(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* verb = app.add_subcommand("generate", "one reply in the terminal")->group("Use");
  verb->add_option("prompt", options->prompt, "what to say to the model; '-' reads standard input")->required();
  verb->add_option("--model", options->model.model, "pack, Hugging Face or MLX folder (default: the built-in model)");
  add_model_options(*verb, options->model);
  const char* group = "Reply";
  verb->add_option("--system", options->system, "a system message")->group(group);
  verb->add_option("--max-tokens", options->max_tokens, "most tokens of the reply (default: what the context leaves)")
      ->check(CLI::PositiveNumber)
      ->group(group);
  verb->add_option("--temperature", options->temperature, "0 = greedy (default: the model's)")
      ->check(CLI::Range(0.0, 2.0))
      ->group(group);
  verb->add_option("--seed", options->seed, "same seed, same reply")->group(group);
  verb->add_flag("--no-thinking", options->no_thinking, "answer at once")->group(group);
  verb->callback([options, &exit_code] {
    if (options->prompt == "-") options->prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
    exit_code = run_generate(*options);
  });
}

}  // namespace splash::app
