// Reads a reply as it is generated: reasoning, text and tool calls, never half a character, never a piece of a tag or
// of a stop string that may still complete.
#pragma once

#include <boost/json/object.hpp>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "chat/conversation.h"
#include "text/tokenizer.h"

namespace splash::chat {

struct ReasoningDelta {
  std::string text;
};
struct TextDelta {
  std::string text;
};
// A tool call is opened with its name, its arguments follow as pieces of one JSON object's text.
struct ToolCallStart {
  int index = 0;
  std::string id;  // "call_" + random
  std::string name;
};
struct ToolCallArguments {
  int index = 0;
  std::string json;
};
struct ToolCallEnd {
  int index = 0;
};
using OutputEvent = std::variant<ReasoningDelta, TextDelta, ToolCallStart, ToolCallArguments, ToolCallEnd>;

struct ReaderOptions {
  bool starts_in_reasoning = false;
  bool parse_reasoning = true;    // false: `<think>` is plain text
  std::vector<Tool> tools;        // empty: tool-call markup is plain text
  std::vector<std::string> stop;  // stop strings; matched in text, not in reasoning
};

// How the reply ended: by itself (a stop token, a stop string), or cut by a limit. A call that was cut gets no
// ToolCallEnd.
enum class ReplyEnd { natural, cut };

class ReplyReader {
 public:
  ReplyReader(std::shared_ptr<const text::Tokenizer> tokenizer, ReaderOptions options);
  ~ReplyReader();
  std::vector<OutputEvent> push(std::span<const Token> tokens);
  // The reply ended: gives out what was held back.
  std::vector<OutputEvent> finish(ReplyEnd end = ReplyEnd::natural);
  bool stopped() const;  // a stop string was met: the caller cancels the request and finishes with reason "stop"
  const std::string& stop_string() const;  // the one that was met; empty if none
  bool has_tool_calls() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace splash::chat
