#include "text/tokenizer.h"
namespace splash::text {
Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const std::string&) {
  return fail(ErrorKind::unsupported, "coming in minutes");
}
std::string Detokenizer::push(Token) { return {}; }
std::string Detokenizer::flush() { return {}; }
}  // namespace splash::text
