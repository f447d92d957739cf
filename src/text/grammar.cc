#include "text/grammar.h"
namespace splash::text {
Result<std::shared_ptr<GrammarFactory>> GrammarFactory::create(std::shared_ptr<const Tokenizer>, std::vector<Token>,
                                                               int) {
  return fail(ErrorKind::unsupported, "coming in minutes");
}
}  // namespace splash::text
