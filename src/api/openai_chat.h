// POST /v1/chat/completions.
#pragma once

#include <memory>
#include <string>

#include "api/backend.h"
#include "api/error.h"
#include "api/generation.h"
#include "http/message.h"

namespace splash::api {

struct ChatRequest {
  GenerationRequest generation;
  bool stream = false;
  bool include_usage = false;
};

// Checks every field before anything slow is done. Fields that would change the answer in a way we cannot give are
// refused by name; those that would not are ignored.
Answer<ChatRequest> read_chat_request(std::string body, const Backend& backend);

// The answer: one object, or a stream of chunks.
std::unique_ptr<ReplyWriter> make_chat_writer(const Backend& backend, const ChatRequest& request,
                                              std::shared_ptr<http::Exchange> exchange);

}  // namespace splash::api
