// A backend for tests: a tokenizer of bytes, a prompt that is the last message, and an engine that recites a script.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "api/backend.h"

namespace splash::api {

// Token = byte; after them the control tokens.
class ByteTokenizer final : public text::Tokenizer {
 public:
  std::vector<Token> encode(std::span<const text::Segment> segments) const override {
    std::vector<Token> out;
    for (const text::Segment& segment : segments) append(segment.text, segment.control, out);
    return out;
  }
  std::vector<Token> encode_reply(std::string_view text) const {
    std::vector<Token> out;
    append(text, true, out);
    return out;
  }
  std::string bytes_of(Token token) const override {
    return token < 256 ? std::string(1, static_cast<char>(token)) : controls()[token - 256];
  }
  std::optional<Token> id_of(std::string_view text) const override {
    for (std::size_t i = 0; i < controls().size(); ++i)
      if (controls()[i] == text) return 256 + static_cast<Token>(i);
    if (text.size() == 1) return static_cast<unsigned char>(text[0]);
    return std::nullopt;
  }
  int size() const override { return 256 + static_cast<int>(controls().size()); }
  bool is_special(Token token) const override { return token >= 256 && token < 259; }
  bool is_added(Token token) const override { return token >= 256; }

 private:
  static const std::vector<std::string>& controls() {
    static const std::vector<std::string> list = {"<|endoftext|>", "<|im_start|>", "<|im_end|>",  "<think>",
                                                  "</think>",      "<tool_call>",  "</tool_call>"};
    return list;
  }
  static void append(std::string_view text, bool control, std::vector<Token>& out) {
    while (!text.empty()) {
      std::size_t taken = 1;
      Token token = static_cast<unsigned char>(text[0]);
      for (std::size_t i = 0; control && i < controls().size(); ++i)
        if (text.starts_with(controls()[i])) taken = controls()[i].size(), token = 256 + static_cast<Token>(i);
      out.push_back(token);
      text.remove_prefix(taken);
    }
  }
};

// What the engine says to one request.
struct Script {
  std::string reply;
  int tokens_per_step = 3;
  Duration step{};
  link::FinishReason reason = link::FinishReason::stop;
  std::optional<Error> fail_at_start, fail_after;
  bool endless = false;  // repeats the reply until cancelled
};

class ScriptedEngine {
 public:
  ~ScriptedEngine() {
    stopping = true;
    for (std::thread& thread : threads_) thread.join();
  }
  void post(link::Command command) {
    const std::lock_guard lock(mutex_);
    if (auto* cancel = std::get_if<link::Cancel>(&command)) {
      cancelled_[cancel->id] = true;
      cancels++;
      return;
    }
    last = std::get<link::Submit>(command);
    last.sink = nullptr;
    threads_.emplace_back(
        [this, submit = std::get<link::Submit>(std::move(command)), said = script] { recite(submit, said); });
  }

  Script script;
  link::Submit last;
  std::atomic<int> cancels{0}, running{0};
  std::atomic<bool> stopping{false};

 private:
  bool is_cancelled(link::RequestId id) {
    const std::lock_guard lock(mutex_);
    return stopping || cancelled_[id];
  }
  void recite(const link::Submit& submit, const Script& said) {
    running++;
    link::Usage usage{.prompt_tokens = static_cast<int>(submit.prompt.size()), .cached_tokens = 2};
    submit.sink(recite_steps(submit, said, usage));
    running--;
  }
  link::Event recite_steps(const link::Submit& submit, const Script& said, link::Usage& usage) {
    if (said.fail_at_start) return link::Failed{*said.fail_at_start, usage};
    submit.sink(link::Started{usage.prompt_tokens, usage.cached_tokens});
    const std::vector<Token> tokens = ByteTokenizer().encode_reply(said.reply);
    do {
      for (std::size_t i = 0; i < tokens.size(); i += said.tokens_per_step) {
        if (said.step.count()) std::this_thread::sleep_for(said.step);
        if (is_cancelled(submit.id)) return link::Failed{{ErrorKind::cancelled, "cancelled"}, usage};
        const std::size_t end = std::min(tokens.size(), i + said.tokens_per_step);
        submit.sink(link::Tokens{{tokens.begin() + i, tokens.begin() + end}});
        usage.reply_tokens += static_cast<int>(end - i);
        usage.decode_steps++;
        usage.drafted_tokens += 7;
        usage.accepted_tokens += said.tokens_per_step - 1;
      }
    } while (said.endless);
    if (said.fail_after) return link::Failed{*said.fail_after, usage};
    return link::Finished{said.reason, usage};
  }

  std::mutex mutex_;
  std::map<link::RequestId, bool> cancelled_;
  std::vector<std::thread> threads_;
};

inline Backend test_backend(const std::shared_ptr<ScriptedEngine>& engine, bool starts_in_reasoning = false) {
  Backend backend;
  backend.model = "test/model";
  backend.aliases = {"alias"};
  backend.fingerprint = "fp-test";
  backend.context = 1000;
  backend.vocabulary = 300;
  backend.lanes = 8;
  const auto tokenizer = std::make_shared<ByteTokenizer>();
  backend.tokenizer = tokenizer;
  backend.stop_tokens = {256, 258};
  backend.build_prompt = [tokenizer,
                          starts_in_reasoning](const chat::Conversation& conversation) -> Result<chat::Prompt> {
    chat::Prompt prompt;
    const text::Segment segment{conversation.messages.back().content, false};
    prompt.tokens = tokenizer->encode({&segment, 1});
    prompt.tokens.push_back(257);
    prompt.reply_boundary = static_cast<int>(prompt.tokens.size()) - 1;
    prompt.starts_in_reasoning = starts_in_reasoning;
    return prompt;
  };
  backend.grammars = []() -> Result<std::shared_ptr<text::GrammarFactory>> {
    return fail(ErrorKind::unsupported, "no grammars in this test");
  };
  backend.post = [engine](link::Command command) { engine->post(std::move(command)); };
  backend.status = [engine] {
    EngineStatus status;
    status.running = engine->running;
    status.step_bounds_ms = {1, 10};
    status.step_counts = status.decode_step_counts = {1, 2, 3};
    return status;
  };
  return backend;
}

}  // namespace splash::api
