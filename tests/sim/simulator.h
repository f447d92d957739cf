// One random schedule against the engine with a fake model and a fake clock, all from one seed: clients with shared
// system prompts and several turns, cancels, deadlines, hostile submits, tiny pools, failing steps.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "model/fake_model.h"

namespace splash::sim {

// Random numbers of a schedule: a pure function of the seed and how many were drawn.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}
  double roll() { return uniform(seed_, drawn_++, Purpose::test); }
  bool chance(double probability) { return roll() < probability; }
  int between(int low, int high) { return low + static_cast<int>(roll() * (high - low + 1)); }  // inclusive
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[between(0, static_cast<int>(values.size()) - 1)];
  }

 private:
  std::uint64_t seed_;
  std::uint64_t drawn_ = 0;
};

// Allows about two thirds of the tokens, by how many were accepted, and only stop tokens once `length` are.
class ToyConstraint final : public link::TokenConstraint {
 public:
  ToyConstraint(int vocab_size, int length, std::vector<Token> stops)
      : vocab_size_(vocab_size), length_(length), stops_(std::move(stops)) {}
  int mask_words() const override { return (vocab_size_ + 31) / 32; }
  int masks_along(std::span<const Token> proposals, std::span<std::uint32_t> masks) override;
  bool accept(Token token) override { return allowed(accepted_++, token); }

 private:
  bool allowed(int accepted, Token token) const;

  int vocab_size_;
  int length_;
  std::vector<Token> stops_;
  int accepted_ = 0;
};

// What a schedule did, to see that the schedules meet the hard cases.
struct Tally {
  std::int64_t ticks = 0;
  std::int64_t requests = 0;
  std::int64_t twins = 0;      // that begin like one before them
  std::int64_t overtaken = 0;  // that waited for another's prefix while a later one started
  std::int64_t finished = 0;
  std::int64_t tokens = 0;
  std::int64_t cancelled = 0;
  std::int64_t timed_out = 0;
  std::int64_t failed = 0;
  std::int64_t full = 0;  // told that the device's memory is full
  std::int64_t refused = 0;
  std::int64_t suspended = 0;
  std::int64_t evicted = 0;
  std::int64_t restored = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t compared_alone = 0;

  Tally& operator+=(const Tally& other);
};

// Runs the schedule of a seed. Breaches are GoogleTest failures or aborts; either prints the seed and what was done.
Tally simulate(std::uint64_t seed);

}  // namespace splash::sim
