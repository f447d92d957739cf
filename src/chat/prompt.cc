#include "chat/prompt.h"
namespace splash::chat {
Result<Role> role_from_name(std::string_view) { return fail(ErrorKind::unsupported, "coming in minutes"); }
boost::json::object arguments_from_json(const boost::json::value&) { return {}; }
PromptBuilder::PromptBuilder(std::shared_ptr<const text::Tokenizer>, std::shared_ptr<const text::ChatTemplate>) {}
Result<Prompt> PromptBuilder::build(const Conversation&) const {
  return fail(ErrorKind::unsupported, "coming in minutes");
}
}  // namespace splash::chat
