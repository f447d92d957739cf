#include "text/chat_template.h"
namespace splash::text {
Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::compile(const std::string&, const boost::json::object&) {
  return fail(ErrorKind::unsupported, "coming in minutes");
}
}  // namespace splash::text
