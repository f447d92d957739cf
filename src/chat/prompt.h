// From a conversation to the token ids of its prompt.
#pragma once

#include <boost/json/value.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "chat/conversation.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace splash::chat {

struct Prompt {
  std::vector<Token> tokens;
  int reply_boundary = 0;            // tokens before the generation prompt (link::Submit::reply_boundary)
  bool starts_in_reasoning = false;  // for ReaderOptions and GrammarStart
};

// "developer" is a system message; an unknown name is an error that lists the known ones.
Result<Role> role_from_name(std::string_view name);

// Arguments of an earlier tool call as a client sends them back: the text of a JSON object (or the object itself).
// Empty or null: no arguments. Anything else becomes the one argument "arguments", so that nothing is lost.
boost::json::object arguments_from_json(const boost::json::value& arguments);

class PromptBuilder {
 public:
  // Asks the template once which reasoning efforts it accepts.
  PromptBuilder(std::shared_ptr<const text::Tokenizer> tokenizer,
                std::shared_ptr<const text::ChatTemplate> chat_template);

  // Template variables of the conversation are normalised: reasoning_effort none and minimal turn enable_thinking off;
  // high and max become xhigh unless the template knows them; null means absent. Errors are about the request.
  Result<Prompt> build(const Conversation& conversation) const;

 private:
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::shared_ptr<const text::ChatTemplate> template_;
  std::vector<std::string> accepted_efforts_;
};

}  // namespace splash::chat
