// One generation, whatever dialect asked for it: from a checked request to the engine and back as reply events.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "api/backend.h"
#include "api/error.h"
#include "api/metrics.h"
#include "chat/conversation.h"
#include "chat/reader.h"
#include "http/message.h"
#include "link/command.h"

namespace splash::api {

struct AnyText {};
struct AnyJsonObject {};
struct JsonSchema {
  std::string schema;
};
using ReplyFormat = std::variant<AnyText, AnyJsonObject, JsonSchema>;

// What every dialect's request comes down to.
struct GenerationRequest {
  chat::Conversation conversation;
  link::Sampling sampling;
  std::optional<int> max_tokens;
  std::string max_tokens_field;  // the client's own name of it, for errors
  std::string prompt_field;      // likewise: "messages", "input", ...
  std::vector<std::string> stop;
  ReplyFormat format;
  bool allow_tool_calls = true;     // false: the tools are shown to the model, but a call cannot be opened
  bool parallel_tool_calls = true;  // false: the reply ends with the first call
  std::optional<Duration> time_limit;
};

// Ready for the engine: the slow part (template, tokenizer, grammar), done on a worker thread.
struct PreparedGeneration {
  link::Submit submit;
  chat::ReaderOptions reader;
  bool one_call_only = false;
};
Answer<PreparedGeneration> prepare(const Backend& backend, GenerationRequest request);

enum class ReplyFinish { stop, stop_string, length, tool_calls };

struct ReplyUsage {
  int prompt_tokens = 0, cached_tokens = 0;
  int completion_tokens = 0, reasoning_tokens = 0;
  int decode_steps = 0, drafted_tokens = 0, accepted_tokens = 0;
  double decode_ms = 0;
};

// The dialect's side. Called on the io thread; the last call is finished() or failed().
class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;
  virtual void started() = 0;
  virtual void output(const chat::OutputEvent& event) = 0;
  virtual void finished(ReplyFinish finish, const ReplyUsage& usage) = 0;
  virtual void failed(const ApiError& error) = 0;
  virtual void keep_alive() = 0;  // nothing was said for a while
};

inline constexpr std::chrono::seconds keep_alive_interval{2};

// Submits and sees the generation through: reply reader, stop strings, usage, cancel when the client goes.
void run_generation(const Backend& backend, Metrics& metrics, PreparedGeneration prepared,
                    std::shared_ptr<http::Exchange> exchange, std::unique_ptr<ReplyWriter> writer);

}  // namespace splash::api
