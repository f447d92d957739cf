// Looks inside a forward pass: all logits and hidden states of a text, and one draft block with everything it computed.
// For the score and draft verbs and the golden tests; serving never comes here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "link/token.h"

namespace splash::models {

struct Scores {
  int rows = 0, vocab_size = 0, hidden_size = 0;
  std::vector<float> logits;               // [rows, vocab_size]
  std::vector<std::vector<float>> hidden;  // if asked for: [layers + 1][rows, hidden_size]. 0: embeddings; i: the
                                           // residual after layer i - 1; the last one after the final norm
};

struct DraftReport {
  int block = 0, vocab_size = 0, hidden_size = 0, candidates_per_slot = 0;
  std::vector<float> hidden;             // [block, hidden_size], final-normed
  std::vector<float> logits;             // [block, vocab_size]
  std::vector<std::int32_t> candidates;  // [block - 1, candidates_per_slot]
  std::vector<float> scores;             // the same shape: selector scores along the greedy path
  std::vector<std::int32_t> path;        // [block - 1]
};

}  // namespace splash::models
