// Engine: how requests come in and how they end.
#include <algorithm>

#include "base/check.h"
#include "engine/engine.h"

namespace splash::engine {

void Engine::post(link::Command command) {
  if (inbox_.post(command)) return;
  if (auto* submit = std::get_if<link::Submit>(&command)) {
    submit->sink(link::Failed{{ErrorKind::overloaded, "the server has shut down: start it again", ""}, {}});
  }
}

void Engine::receive() {
  for (link::Command& command : inbox_.take()) {
    if (auto* submitted = std::get_if<link::Submit>(&command)) {
      submit(std::move(*submitted));
    } else {
      cancel(std::get<link::Cancel>(command).id);
    }
  }
  sweep();
}

void Engine::submit(link::Submit submit) {
  SPLASH_CHECK(submit.sink != nullptr);
  counters_.submitted.add();
  turnover_ = true;
  if (const Status status = check_submit(submit, limits_); !status) return refuse(submit, status.error());
  if (live_.contains(submit.id)) {
    return refuse(
        submit, {ErrorKind::invalid, fmt::format("a request with id {} is running: choose another", submit.id), "id"});
  }
  if (lost_) return refuse(submit, *lost_);
  if (closed_) return refuse(submit, {ErrorKind::overloaded, "the server is shutting down", ""});
  if (queued() >= limits_.max_queued) {
    return refuse(submit,
                  {ErrorKind::overloaded, fmt::format("{} requests wait already: try again later", queued()), ""});
  }
  auto request = std::make_unique<Request>();
  request->arrival = arrivals_++;
  request->tokens = std::move(submit.prompt);
  request->prompt_tokens = static_cast<int>(request->tokens.size());
  request->reply_limit = std::min(submit.max_tokens, limits_.context - request->prompt_tokens);
  request->usage.prompt_tokens = request->prompt_tokens;
  request->submit = std::move(submit);
  live_.insert(request->submit.id);
  queue_.push_back(std::move(request));
}

void Engine::refuse(link::Submit& submit, Error error) {
  counters_.refused.add();
  const link::Usage usage{.prompt_tokens = static_cast<int>(submit.prompt.size())};
  submit.sink(link::Failed{std::move(error), usage});
}

template <class Visit>
void Engine::each_live(Visit&& visit) {
  for (const auto& request : lanes_) {
    if (request && request->phase != Phase::done) visit(*request);
  }
  for (const auto& request : queue_) {
    if (request->phase != Phase::done) visit(*request);
  }
}

// An id that is not live is no fault: the request may have ended while the cancel was under way.
void Engine::cancel(link::RequestId id) {
  if (!live_.contains(id)) return;
  each_live([&](Request& request) {
    if (request.submit.id != id) return;
    keep_what_is_done(request);
    fail(request, {ErrorKind::cancelled, "the request was cancelled", ""});
  });
}

void Engine::expire(TimePoint now) {
  each_live([&](Request& request) {
    if (request.submit.deadline > now) return;
    keep_what_is_done(request);
    fail(request,
         {ErrorKind::timeout, "the request's deadline has passed: allow more time or ask for fewer tokens", ""});
  });
  sweep();
}

// Says so; leave_finished() files its state and frees the lane.
void Engine::finish(Request& request, link::FinishReason reason) {
  (reason == link::FinishReason::stop ? counters_.finished_stop : counters_.finished_length).add();
  request.phase = Phase::done;
  live_.erase(request.submit.id);
  request.submit.sink(link::Finished{reason, request.usage});
}

void Engine::leave_finished() {
  for (const auto& request : lanes_) {
    if (!request || request->phase != Phase::done || request->lane < 0) continue;
    save(*request, cache::Kind::conversation);
    leave_lane(*request);
  }
}

void Engine::fail(Request& request, const Error& error) {
  switch (error.kind) {
    case ErrorKind::cancelled:
      counters_.cancelled.add();
      break;
    case ErrorKind::timeout:
      counters_.timed_out.add();
      break;
    default:
      counters_.failed.add();
      break;
  }
  leave_lane(request);
  turnover_ = true;
  request.phase = Phase::done;
  live_.erase(request.submit.id);
  request.submit.sink(link::Failed{error, request.usage});
}

// Forgets the requests that have ended; their pages and ids have gone already.
void Engine::sweep() {
  for (auto& request : lanes_) {
    if (request && request->phase == Phase::done) request.reset();
  }
  std::erase_if(queue_, [](const auto& request) { return request->phase == Phase::done; });
}

// Whoever posted before the door closed is let in.
void Engine::close_door() {
  if (!closed_) receive();
  closed_ = true;
}

void Engine::fail_all(const Error& error) {
  each_live([&](Request& request) { fail(request, error); });
  sweep();
  update_gauges();
}

bool Engine::retire() { return live_.empty() && inbox_.close_if_empty(); }

}  // namespace splash::engine
