#include "engine/door.h"

#include <algorithm>
#include <cmath>

#include "link/limits.h"

namespace splash::engine {
namespace {

Status check_prompt(const link::Submit& submit, const Limits& limits) {
  const int count = static_cast<int>(submit.prompt.size());
  if (count == 0) return fail_parameter(ErrorKind::invalid, "prompt", "the prompt is empty: send at least one token");
  if (count > limits.max_prompt_tokens()) {
    // The words that coding agents look for before they compact their history.
    return fail_parameter(ErrorKind::invalid, "prompt", "prompt is too long: {} tokens > {} maximum", count,
                          limits.max_prompt_tokens());
  }
  for (int i = 0; i < count; ++i) {
    if (submit.prompt[i] < 0 || submit.prompt[i] >= limits.vocab_size) {
      return fail_parameter(ErrorKind::invalid, "prompt", "prompt token {} is {}, not an id below {}", i,
                            submit.prompt[i], limits.vocab_size);
    }
  }
  if (submit.reply_boundary < 0 || submit.reply_boundary > count) {
    return fail_parameter(ErrorKind::invalid, "reply_boundary", "reply_boundary must be 0 to {}, not {}", count,
                          submit.reply_boundary);
  }
  return {};
}

Status check_sampling(const link::Sampling& sampling) {
  if (!std::isfinite(sampling.temperature) || sampling.temperature < 0.0f) {
    return fail_parameter(ErrorKind::invalid, "temperature", "temperature must be 0 or more");
  }
  if (sampling.top_k < 0) return fail_parameter(ErrorKind::invalid, "top_k", "top_k must be 0 (off) or more");
  if (!(sampling.top_p > 0.0f && sampling.top_p <= 1.0f)) {
    return fail_parameter(ErrorKind::invalid, "top_p", "top_p must be above 0 and at most 1");
  }
  if (!(sampling.min_p >= 0.0f && sampling.min_p < 1.0f)) {
    return fail_parameter(ErrorKind::invalid, "min_p", "min_p must be at least 0 and below 1");
  }
  return {};
}

}  // namespace

Status check_submit(const link::Submit& submit, const Limits& limits) {
  SPLASH_TRY_STATUS(check_prompt(submit, limits));
  SPLASH_TRY_STATUS(check_sampling(submit.sampling));
  if (submit.max_tokens < 1) {
    return fail_parameter(ErrorKind::invalid, "max_tokens", "max_tokens must be 1 or more, not {}", submit.max_tokens);
  }
  if (submit.stop_tokens.size() > link::max_stop_tokens) {
    return fail_parameter(ErrorKind::invalid, "stop_tokens", "{} stop tokens are more than the {} allowed",
                          submit.stop_tokens.size(), link::max_stop_tokens);
  }
  if (submit.constraint && submit.constraint->mask_words() != (limits.vocab_size + 31) / 32) {
    return fail_parameter(ErrorKind::internal, "constraint", "the constraint masks {} words, the vocabulary has {}",
                          submit.constraint->mask_words(), (limits.vocab_size + 31) / 32);
  }
  return {};
}

}  // namespace splash::engine
