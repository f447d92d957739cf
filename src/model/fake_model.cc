#include "model/fake_model.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/rng.h"

namespace splash::model {
namespace {

constexpr std::uint64_t empty_hash = 0x5eed;
constexpr Token poison = -7;

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0xff51afd7ed558ccdull;
  hash = (hash ^ hash >> 33) * 0xc4ceb9fe1a85ec53ull;
  return hash ^ hash >> 33;
}

// The token that follows: a pure function of the tokens before it, the seed of a sampled lane and the mask.
Token choose(std::uint64_t hash, const link::Sampling& sampling, std::span<const std::uint32_t> mask, int vocab_size) {
  const std::uint64_t law = sampling.temperature > 0.0f ? sampling.seed + 1 : 0;
  Token token = static_cast<Token>(mix(hash, law) % static_cast<std::uint64_t>(vocab_size));
  if (mask.empty()) return token;
  for (int tried = 0; tried < vocab_size; ++tried, token = (token + 1) % vocab_size) {
    if (mask[token / 32] >> (token % 32) & 1u) return token;
  }
  SPLASH_CHECK(false, "the mask allows no token");
}

bool is_stop(const LaneSetup& setup, Token token) {
  return std::ranges::find(setup.stop_tokens, token) != setup.stop_tokens.end();
}

// Mask rows after the accepted tokens and along the proposals; shortens the proposals to what the constraint allows.
std::vector<std::uint32_t> masks(const LaneSetup& setup, std::vector<Token>& proposals) {
  if (!setup.constraint) return {};
  std::vector<std::uint32_t> words((proposals.size() + 1) * setup.constraint->mask_words());
  const int rows = setup.constraint->masks_along(proposals, words);
  SPLASH_CHECK(rows >= 1 && rows <= static_cast<int>(proposals.size()) + 1);
  proposals.resize(rows - 1);
  return words;
}

std::span<const std::uint32_t> mask_row(const LaneSetup& setup, const std::vector<std::uint32_t>& words,
                                        std::size_t row) {
  if (!setup.constraint) return {};
  const std::size_t size = setup.constraint->mask_words();
  return std::span(words).subspan(row * size, size);
}

}  // namespace

FakeModel::FakeModel(const FakeOptions& options)
    : options_(options),
      lanes_(options.facts.lanes),
      pages_(options.facts.pages, std::vector<Row>(link::page_tokens)),
      snapshots_(options.facts.snapshots) {}

Status FakeModel::back_pages(int pages) {
  SPLASH_CHECK(pages <= options_.facts.pages);
  if (pages > options_.device_pages) return fail(ErrorKind::overloaded, "the fake device is full");
  backed_ = std::max(backed_, pages);
  return {};
}

void FakeModel::start_lane(int lane, const LaneSetup& setup) { lanes_[lane] = {setup, {empty_hash, 0}}; }

void FakeModel::pass(double seconds) {
  if (options_.clock == nullptr) return;
  options_.clock->advance(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
}

void FakeModel::save(int lane, SnapshotId into) {
  SPLASH_CHECK(lanes_[lane].state.length > 0, "lane {} has no state to save", lane);
  snapshots_[into] = lanes_[lane].state;
  mark_ = {};
  pass(options_.save_seconds);
}

void FakeModel::restore(int lane, SnapshotId from) {
  SPLASH_CHECK(lanes_[lane].state.length == 0, "lane {} was not started afresh", lane);
  SPLASH_CHECK(snapshots_[from].length > 0, "snapshot {} holds nothing", from);
  lanes_[lane].state = snapshots_[from];
  pass(options_.restore_seconds);
}

void FakeModel::save_mark(SnapshotId into) {
  SPLASH_CHECK(mark_.length > 0, "the last step marked nothing, or its mark is saved already");
  snapshots_[into] = std::exchange(mark_, {});
  pass(options_.save_seconds);
}

void FakeModel::copy_page(PageId from, PageId to) {
  SPLASH_CHECK(from != to && from < backed_ && to < backed_);
  pages_[to] = pages_[from];
}

void FakeModel::poison_page(PageId page) { std::ranges::fill(pages_[page], Row{poison, -1}); }
void FakeModel::poison_snapshot(SnapshotId snapshot) { snapshots_[snapshot] = {}; }

Result<StepResult> FakeModel::step(const StepPlan& plan) {
  SPLASH_CHECK(!plan.prefill.empty() || !plan.decode.empty(), "an empty step");
  check_writers(plan);
  ++steps_;
  mark_ = {};
  int rows = 0;
  for (const PrefillSlice& slice : plan.prefill) rows += static_cast<int>(slice.tokens.size());
  SPLASH_CHECK(rows <= options_.facts.max_prefill_rows, "{} prefill rows", rows);
  for (const DecodeSlice& slice : plan.decode) rows += slice.width;
  pass(options_.step_seconds + options_.row_seconds * rows);
  for (const PrefillSlice& slice : plan.prefill) {
    check_slice(slice.lane, slice.position, slice.pages, static_cast<int>(slice.tokens.size()));
  }
  for (const DecodeSlice& slice : plan.decode) check_slice(slice.lane, slice.position, slice.pages, slice.width);
  if (uniform(options_.seed, steps_, Purpose::test) < options_.failure) return fail_step(plan);

  StepResult result;
  for (const PrefillSlice& slice : plan.prefill) result.prefill.push_back(prefill(slice));
  for (const DecodeSlice& slice : plan.decode) result.decode.push_back(decode(slice));
  return result;
}

// The pages must hold exactly the tokens whose hash the lane carries.
void FakeModel::check_slice(int lane, int position, std::span<const PageId> pages, int rows) {
  const State& state = lanes_[lane].state;
  SPLASH_CHECK(rows > 0 && state.length == position, "lane {} holds {} tokens, not {}", lane, state.length, position);
  SPLASH_CHECK(position + rows <= options_.facts.max_context, "lane {} leaves the context", lane);
  SPLASH_CHECK(static_cast<int>(pages.size()) * link::page_tokens >= position + rows, "lane {} lacks pages", lane);
  for (const PageId page : pages) SPLASH_CHECK(page < backed_, "page {} has no memory", page);
  std::uint64_t hash = empty_hash;
  for (int i = 0; i < position; ++i) {
    const Row& row = pages_[pages[i / link::page_tokens]][i % link::page_tokens];
    SPLASH_CHECK(row.position == i, "lane {}: row {} of its pages is row {} of something else", lane, i, row.position);
    hash = mix(hash, row.token);
  }
  SPLASH_CHECK(hash == state.hash, "lane {}: its pages and its state are of different texts", lane);
}

// A page that one lane writes in this step is in no other lane's table, and no lane has two slices.
void FakeModel::check_writers(const StepPlan& plan) const {
  std::map<PageId, int> writer;
  std::vector<int> slices(lanes_.size());
  const auto writes = [&](int lane, int position, std::span<const PageId> pages) {
    SPLASH_CHECK(++slices[lane] == 1, "lane {} has two slices", lane);
    for (std::size_t i = position / link::page_tokens; i < pages.size(); ++i) {
      SPLASH_CHECK(writer.emplace(pages[i], lane).second, "two writers of page {}", pages[i]);
    }
  };
  const auto reads = [&](int lane, std::span<const PageId> pages) {
    for (const PageId page : pages) {
      const auto found = writer.find(page);
      SPLASH_CHECK(found == writer.end() || found->second == lane, "lane {} reads page {} under a writer", lane, page);
    }
  };
  for (const PrefillSlice& slice : plan.prefill) writes(slice.lane, slice.position, slice.pages);
  for (const DecodeSlice& slice : plan.decode) writes(slice.lane, slice.position, slice.pages);
  for (const PrefillSlice& slice : plan.prefill) reads(slice.lane, slice.pages);
  for (const DecodeSlice& slice : plan.decode) reads(slice.lane, slice.pages);
}

void FakeModel::write(std::span<const PageId> pages, int position, Token token) {
  pages_[pages[position / link::page_tokens]][position % link::page_tokens] = {token, position};
}

SliceResult FakeModel::prefill(const PrefillSlice& slice) {
  Lane& lane = lanes_[slice.lane];
  SliceResult result{.lane = slice.lane, .committed = static_cast<int>(slice.tokens.size())};
  SPLASH_CHECK(slice.mark >= 0 && slice.mark < result.committed, "a mark at row {} of {}", slice.mark, result.committed);
  SPLASH_CHECK(slice.mark == 0 || mark_.length < 0, "a second mark in a step");
  for (const Token token : slice.tokens) {
    write(slice.pages, lane.state.length++, token);
    lane.state.hash = mix(lane.state.hash, token);
    if (lane.state.length == slice.position + slice.mark) mark_ = lane.state;
  }
  prefill_rows_ += result.committed;
  if (slice.choose) {
    std::vector<Token> proposals;
    const auto words = masks(lane.setup, proposals);
    result.chosen = {
        choose(lane.state.hash, lane.setup.sampling, mask_row(lane.setup, words, 0), options_.facts.vocab_size)};
  }
  return result;
}

std::vector<Token> FakeModel::draft(const Lane& lane, const DecodeSlice& slice) const {
  std::vector<Token> proposals;
  std::uint64_t hash = mix(lane.state.hash, slice.anchor);
  for (int i = 0; i + 1 < slice.width; ++i) {
    Token token = choose(hash, lane.setup.sampling, {}, options_.facts.vocab_size);
    // Of the lane's own text alone, as a real draft: what else runs does not change what is proposed.
    const bool right = uniform(options_.seed ^ hash, slice.position + i, Purpose::draft) < options_.acceptance;
    if (!right) token = (token + 1) % options_.facts.vocab_size;
    proposals.push_back(token);
    hash = mix(hash, token);
  }
  return proposals;
}

SliceResult FakeModel::decode(const DecodeSlice& slice) {
  Lane& lane = lanes_[slice.lane];
  SPLASH_CHECK(slice.budget >= 1 && slice.width <= options_.facts.block_rows);
  std::vector<Token> proposals = draft(lane, slice);
  const auto words = masks(lane.setup, proposals);
  write(slice.pages, slice.position, slice.anchor);
  for (std::size_t i = 0; i < proposals.size(); ++i)
    write(slice.pages, slice.position + 1 + static_cast<int>(i), proposals[i]);

  SliceResult result{.lane = slice.lane, .drafted = static_cast<int>(proposals.size())};
  Token last = slice.anchor;
  for (std::size_t row = 0;; ++row) {
    lane.state.hash = mix(lane.state.hash, last);
    last = choose(lane.state.hash, lane.setup.sampling, mask_row(lane.setup, words, row), options_.facts.vocab_size);
    result.chosen.push_back(last);
    if (is_stop(lane.setup, last) || static_cast<int>(result.chosen.size()) == slice.budget) break;
    if (row == proposals.size() || proposals[row] != last) break;
  }
  result.committed = static_cast<int>(result.chosen.size());
  result.accepted = result.committed - 1;
  lane.state.length += result.committed;
  return result;
}

// What a device leaves behind when a step dies: lanes without a state, rows half written.
tl::unexpected<Error> FakeModel::fail_step(const StepPlan& plan) {
  const auto ruin = [&](int lane, int position, std::span<const PageId> pages) {
    lanes_[lane].state = {};
    const int end = static_cast<int>(pages.size()) * link::page_tokens;
    for (int i = position; i < end; ++i) write(pages, i, poison);
  };
  for (const PrefillSlice& slice : plan.prefill) ruin(slice.lane, slice.position, slice.pages);
  for (const DecodeSlice& slice : plan.decode) ruin(slice.lane, slice.position, slice.pages);
  return fail(options_.failure_kind, "the fake device was told to fail this step");
}

std::vector<Token> FakeModel::reply_alone(std::span<const Token> prompt, const LaneSetup& setup, int vocab_size,
                                          int reply_limit) {
  std::uint64_t hash = empty_hash;
  for (const Token token : prompt) hash = mix(hash, token);
  std::vector<Token> reply;
  while (static_cast<int>(reply.size()) < reply_limit) {
    std::vector<Token> proposals;
    const auto words = masks(setup, proposals);
    const Token token = choose(hash, setup.sampling, mask_row(setup, words, 0), vocab_size);
    reply.push_back(token);
    if (is_stop(setup, token)) break;
    if (setup.constraint) SPLASH_CHECK(setup.constraint->accept(token));
    hash = mix(hash, token);
  }
  return reply;
}

}  // namespace splash::model
