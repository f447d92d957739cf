#include "api/generation.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>

#include "base/log.h"

namespace splash::api {
namespace {

using std::chrono::steady_clock;

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// Everything but a few tokens; for tool_choice "none", which must not open a call.
class ForbiddenTokens final : public link::TokenConstraint {
 public:
  ForbiddenTokens(std::vector<Token> forbidden, int vocabulary)
      : forbidden_(std::move(forbidden)), words_((vocabulary + 31) / 32) {}
  int mask_words() const override { return words_; }
  int masks_along(std::span<const Token> proposals, std::span<std::uint32_t> masks) override {
    int rows = 1;
    for (Token token : proposals) {
      if (is_forbidden(token)) break;
      ++rows;
    }
    std::fill_n(masks.begin(), static_cast<std::size_t>(rows) * words_, ~0u);
    for (int row = 0; row < rows; ++row)
      for (Token token : forbidden_) masks[row * words_ + token / 32] &= ~(1u << token % 32);
    return rows;
  }
  bool accept(Token token) override { return !is_forbidden(token); }

 private:
  bool is_forbidden(Token token) const {
    return std::find(forbidden_.begin(), forbidden_.end(), token) != forbidden_.end();
  }
  std::vector<Token> forbidden_;
  int words_;
};

Result<std::shared_ptr<link::TokenConstraint>> constraint_for(const Backend& backend, const GenerationRequest& request,
                                                              bool starts_in_reasoning) {
  if (!std::holds_alternative<AnyText>(request.format)) {
    SPLASH_TRY(const auto grammars, backend.grammars());
    const auto start = starts_in_reasoning ? text::GrammarStart::after_reasoning : text::GrammarStart::at_once;
    if (const auto* schema = std::get_if<JsonSchema>(&request.format))
      return grammars->json_schema(schema->schema, start);
    return grammars->json_object(start);
  }
  if (!request.allow_tool_calls && !request.conversation.tools.empty())
    if (const auto opening = backend.tokenizer->id_of("<tool_call>"))
      return std::make_shared<ForbiddenTokens>(std::vector<Token>{*opening}, backend.vocabulary);
  return std::shared_ptr<link::TokenConstraint>();
}

std::atomic<link::RequestId> next_request_id{1};

}  // namespace

Answer<PreparedGeneration> prepare(const Backend& backend, GenerationRequest request) {
  auto prompt = backend.build_prompt(request.conversation);
  if (!prompt) {
    ApiError error(prompt.error());
    if (error.parameter.empty() && error.status == 400) error.parameter = request.prompt_field;
    return tl::unexpected(std::move(error));
  }
  const int prompt_tokens = static_cast<int>(prompt->tokens.size());
  if (prompt_tokens >= backend.context)
    return tl::unexpected(
        ApiError(400, "context_length_exceeded",
                 fmt::format("the prompt has {} tokens; this model's context is {} tokens, prompt and "
                             "reply together",
                             prompt_tokens, backend.context),
                 request.prompt_field));
  if (request.max_tokens && *request.max_tokens > backend.context - prompt_tokens)
    return tl::unexpected(
        ApiError(400, "context_length_exceeded",
                 fmt::format("the prompt has {} tokens and {} asks for {} more; this model's context is "
                             "{} tokens, prompt and reply together",
                             prompt_tokens, request.max_tokens_field, *request.max_tokens, backend.context),
                 request.max_tokens_field));
  auto constraint = constraint_for(backend, request, prompt->starts_in_reasoning);
  if (!constraint) {
    ApiError error(constraint.error());
    if (error.parameter.empty() && error.status == 400) error.parameter = "response_format";
    return tl::unexpected(std::move(error));
  }

  PreparedGeneration out;
  out.submit.prompt = std::move(prompt->tokens);
  out.submit.reply_boundary = prompt->reply_boundary;
  out.submit.sampling = request.sampling;
  out.submit.max_tokens = request.max_tokens.value_or(backend.context - prompt_tokens);
  out.submit.stop_tokens = backend.stop_tokens;
  out.submit.constraint = std::move(*constraint);
  if (request.time_limit) out.submit.deadline = steady_clock::now() + *request.time_limit;
  out.reader.starts_in_reasoning = prompt->starts_in_reasoning;
  // With a reply format the grammar admits no call, and JSON text that looks like one is data.
  if (request.allow_tool_calls && std::holds_alternative<AnyText>(request.format))
    out.reader.tools = std::move(request.conversation.tools);
  out.reader.stop = std::move(request.stop);
  out.one_call_only = !request.parallel_tool_calls;
  return out;
}

namespace {

// Lives on the io thread, held by the engine's sink until the last event.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(const Backend& backend, Metrics& metrics, PreparedGeneration prepared,
             std::shared_ptr<http::Exchange> exchange, std::unique_ptr<ReplyWriter> writer)
      : backend_(backend),
        metrics_(metrics),
        exchange_(std::move(exchange)),
        writer_(std::move(writer)),
        in_reasoning_(prepared.reader.starts_in_reasoning),
        reader_(backend.tokenizer, std::move(prepared.reader)),
        one_call_only_(prepared.one_call_only),
        submit_(std::move(prepared.submit)) {}

  void start() {
    id_ = next_request_id++;
    arrived_ = said_ = steady_clock::now();
    usage_.prompt_tokens = static_cast<int>(submit_.prompt.size());
    think_open_ = backend_.tokenizer->id_of("<think>");
    think_close_ = backend_.tokenizer->id_of("</think>");
    exchange_->on_gone([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->client_gone();
    });
    submit_.id = id_;
    submit_.sink = [self = shared_from_this(), exchange = exchange_](link::Event event) {
      exchange->post([self, event = std::move(event)] { self->on_event(event); });
    };
    backend_.post(std::move(submit_));
    watch_silence();
  }

 private:
  void on_event(const link::Event& event) {
    if (const auto* started = std::get_if<link::Started>(&event)) return on_started(*started);
    if (const auto* tokens = std::get_if<link::Tokens>(&event)) return on_tokens(tokens->tokens);
    if (const auto* finished = std::get_if<link::Finished>(&event)) return on_finished(*finished);
    on_failed(std::get<link::Failed>(event));
  }

  void on_started(const link::Started& started) {
    usage_.cached_tokens = started.cached_tokens;
    if (writer_) writer_->started();
    said_ = steady_clock::now();
  }

  void on_tokens(const std::vector<Token>& tokens) {
    if (!first_token_) {
      first_token_ = steady_clock::now();
      metrics_.first_token_after(*first_token_ - arrived_);
    }
    // One at a time, so that the count is exact where a stop string ends the reply in the middle of a step.
    for (Token token : tokens) {
      if (early_finish_ || !writer_) return;
      usage_.completion_tokens++;
      count_reasoning(token);
      say(reader_.push({&token, 1}));
      if (reader_.stopped()) end_early(ReplyFinish::stop_string);
    }
  }

  void say(const std::vector<chat::OutputEvent>& events) {
    for (const chat::OutputEvent& event : events) {
      if (early_finish_ || !writer_) return;
      said_ = steady_clock::now();
      writer_->output(event);
      if (one_call_only_ && std::holds_alternative<chat::ToolCallEnd>(event)) end_early(ReplyFinish::tool_calls);
    }
  }

  // The text half decides that the reply is over; the engine confirms at its next tick.
  void end_early(ReplyFinish finish) {
    early_finish_ = finish;
    backend_.post(link::Cancel{id_});
  }

  void count_reasoning(Token token) {
    if (token == think_close_)
      in_reasoning_ = false;
    else if (in_reasoning_)
      usage_.reasoning_tokens++;
    else if (token == think_open_)
      in_reasoning_ = true;
  }

  void on_finished(const link::Finished& finished) {
    take_usage(finished.usage);
    if (!early_finish_) {
      usage_.completion_tokens = finished.usage.reply_tokens;
      const bool cut = finished.reason == link::FinishReason::length;
      say(reader_.finish(cut ? chat::ReplyEnd::cut : chat::ReplyEnd::natural));
      if (reader_.stopped())
        early_finish_ = ReplyFinish::stop_string;
      else if (!early_finish_)
        early_finish_ = cut                        ? ReplyFinish::length
                        : reader_.has_tool_calls() ? ReplyFinish::tool_calls
                                                   : ReplyFinish::stop;
    }
    complete();
  }

  void on_failed(const link::Failed& failed) {
    take_usage(failed.usage);
    if (early_finish_) return complete();
    const ApiError error(failed.error);
    end(writer_ ? error.status : 499);
    if (const auto writer = std::move(writer_)) writer->failed(error);
    exchange_.reset();
  }

  void complete() {
    end(writer_ ? 200 : 499);
    if (const auto writer = std::move(writer_)) writer->finished(*early_finish_, usage_);
    exchange_.reset();
  }

  void take_usage(const link::Usage& usage) {
    usage_.cached_tokens = usage.cached_tokens;
    usage_.decode_steps = usage.decode_steps;
    usage_.drafted_tokens = usage.drafted_tokens;
    usage_.accepted_tokens = usage.accepted_tokens;
    usage_.decode_ms = usage.decode_ms;
  }

  void client_gone() {
    writer_.reset();
    backend_.post(link::Cancel{id_});
  }

  // Clients and proxies give up on a silent connection; a long prompt or queue is silent for longer than they like.
  void watch_silence() {
    if (!exchange_) return;
    exchange_->after(keep_alive_interval / 2, [self = shared_from_this()] {
      if (!self->writer_) return;
      const TimePoint now = steady_clock::now();
      if (now - self->said_ >= keep_alive_interval) {
        self->writer_->keep_alive();
        self->said_ = now;
      }
      self->watch_silence();
    });
  }

  // The one line that every request leaves in the log. It never holds text of prompt or reply.
  void end(int status) {
    const TimePoint now = steady_clock::now();
    metrics_.request_ended(status);
    const std::string numbers = fmt::format("input {} · cached {} · output {}", usage_.prompt_tokens,
                                            usage_.cached_tokens, usage_.completion_tokens);
    if (status == 499) return log::info("Cancelled · {}", numbers);
    if (status != 200) return log::warn("Error · {} · {}", status, numbers);
    metrics_.generation_took(now - arrived_);
    const TimePoint first = first_token_.value_or(now);
    const double decoding = seconds(now - first);
    log::info("Done · {} · TTFT {:.3f} s · {:.1f} tok/s · {:.2f} tokens/step", numbers, seconds(first - arrived_),
              decoding > 0 ? (usage_.completion_tokens - 1) / decoding : 0.0,
              usage_.decode_steps ? 1.0 + static_cast<double>(usage_.accepted_tokens) / usage_.decode_steps : 0.0);
  }

  const Backend& backend_;
  Metrics& metrics_;
  std::shared_ptr<http::Exchange> exchange_;
  std::unique_ptr<ReplyWriter> writer_;  // null once the client has gone or the reply is complete
  ReplyUsage usage_;
  bool in_reasoning_;
  chat::ReplyReader reader_;
  const bool one_call_only_;
  link::Submit submit_;
  link::RequestId id_ = 0;
  TimePoint arrived_, said_;
  std::optional<TimePoint> first_token_;
  std::optional<Token> think_open_, think_close_;
  std::optional<ReplyFinish> early_finish_;
};

}  // namespace

void run_generation(const Backend& backend, Metrics& metrics, PreparedGeneration prepared,
                    std::shared_ptr<http::Exchange> exchange, std::unique_ptr<ReplyWriter> writer) {
  std::make_shared<Generation>(backend, metrics, std::move(prepared), std::move(exchange), std::move(writer))->start();
}

}  // namespace splash::api
