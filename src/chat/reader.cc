#include "chat/reader.h"
namespace splash::chat {
struct ReplyReader::State { std::string stop; };
ReplyReader::ReplyReader(std::shared_ptr<const text::Tokenizer>, ReaderOptions) {}
ReplyReader::~ReplyReader() = default;
std::vector<OutputEvent> ReplyReader::push(std::span<const Token>) { return {}; }
std::vector<OutputEvent> ReplyReader::finish(ReplyEnd) { return {}; }
bool ReplyReader::stopped() const { return false; }
const std::string& ReplyReader::stop_string() const { return state_->stop; }
bool ReplyReader::has_tool_calls() const { return false; }
}  // namespace splash::chat
