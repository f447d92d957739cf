#include "simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <map>

namespace splash::sim {

int max_ticks = 20'000;  // a schedule that is not quiet by then is going in circles

namespace {

using engine::Engine;

constexpr std::chrono::milliseconds ms{1};

// What the abort handler prints: a breach inside the engine ends the program.
std::uint64_t current_seed = 0;
std::string current_schedule;

void print_schedule(int) {
  std::fprintf(stderr, "\n--- SPLASH_SIM_SEED=%llu ---\n%s", static_cast<unsigned long long>(current_seed),
               current_schedule.c_str());
}

template <class... Args>
void note(fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(current_schedule), format, std::forward<Args>(args)...);
  current_schedule += '\n';
}

struct World {
  model::FakeOptions model;
  engine::Config config;
  int context = 0;
  bool warm = false;
  double cancel_rate = 0.0;
  double deadline_rate = 0.0;
  double hostile_rate = 0.0;
  bool compare_alone = false;
};

World make_world(Dice& dice, std::uint64_t seed) {
  World world;
  model::Facts& facts = world.model.facts;
  world.context = dice.between(40, 400);
  facts.vocab_size = dice.pick({33, 64, 200});
  facts.has_draft = dice.chance(0.85);
  facts.block_rows = facts.has_draft ? dice.pick({2, 4, 8, 9, 16}) : 1;
  facts.max_context = world.context + dice.pick({0, 0, 64});
  facts.max_prefill_rows = dice.pick({1, 7, 32, 64, 200});
  facts.lanes = dice.between(1, 8);
  facts.pages = engine::pages_for(world.context) + (dice.chance(0.6) ? dice.between(0, 6) : dice.between(20, 80));
  facts.snapshots = dice.pick({0, 1, 2, 3, 5, 8, 20});
  world.model.seed = seed;
  world.model.acceptance = dice.pick({0.0, 0.5, 0.8, 1.0});
  world.model.failure = dice.chance(0.2) ? 0.01 : 0.0;
  if (dice.chance(0.2)) world.model.device_pages = dice.between(1, facts.pages + 1);
  world.model.row_seconds = dice.pick({0.0, 0.0005, 0.01});
  engine::Config& config = world.config;
  config.checkpoint_tokens = dice.pick({16, 50, 128, 4096});
  config.junction_tokens = dice.pick({1, 32, 100});
  config.headroom_tokens = dice.pick({0, 16, 256});
  config.max_queued = dice.pick({2, 50, 256});
  config.fixed_width = dice.chance(0.3) ? dice.between(1, facts.block_rows) : 0;
  config.use_draft = dice.chance(0.9);
  config.pacing.minimum_rows = dice.pick({1, 8, 32});
  config.pacing.slice_seconds = dice.pick({0.02, 0.25});
  world.warm = dice.chance(0.5);
  world.cancel_rate = dice.pick({0.0, 0.1, 0.4});
  world.deadline_rate = dice.pick({0.0, 0.1, 0.3});
  world.hostile_rate = dice.pick({0.0, 0.1});
  world.compare_alone = dice.chance(0.15);
  return world;
}

// The request as its client sees it.
struct Client {
  link::RequestId id = 0;
  int conversation = -1;
  std::vector<Token> prompt;
  link::Submit submit;          // without its sink
  std::vector<Token> expected;  // the reply alone
  ErrorKind refusal{};          // of a hostile submit
  bool hostile = false;
  bool cancelled = false;
  bool constrained = false;
  bool started = false;
  bool ended = false;
  std::vector<Token> got;
  link::Usage usage;
  bool finished = false;
};

struct Conversation {
  std::vector<Token> history;
  std::vector<Token> last_prompt;  // of its latest request, generation prompt included
  int last_boundary = 0;
  bool waiting = false;
};

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed)
      : dice_(seed), world_(make_world(dice_, seed)), plan_{.context = world_.context}, model_(with_clock()) {
    const model::Facts& facts = world_.model.facts;
    note("world: {} lanes {} pages {} snapshots, context {}, block {}, prefill rows {}, acceptance {}, failure {}",
         facts.lanes, facts.pages, facts.snapshots, world_.context, facts.block_rows, facts.max_prefill_rows,
         world_.model.acceptance, world_.model.failure);
    engine_ = std::make_unique<Engine>(model_, plan_, world_.config, clock_);
  }

  Tally run();

 private:
  model::FakeOptions with_clock() {
    model::FakeOptions options = world_.model;
    options.clock = &clock_;
    return options;
  }
  std::vector<Token> text(int length);
  void act();
  bool write_prompt(Conversation& conversation, Client& client);
  void submit_twin(const Client& first);
  void ask(Client client);
  void submit_turn();
  void submit_hostile();
  void send(Client client);
  void cancel_someone();
  void tick();
  void poison();
  void on_event(Client& client, link::Event event);
  bool may_follow(const Client& client) const;
  void on_end(Client& client, const link::Usage& usage);
  void on_failed(Client& client, const link::Failed& failed);
  void on_finished(Client& client, const link::Finished& finished);
  void continue_conversation(const Client& client);
  void check_quiet();
  void compare_alone(const Client& client);

  Dice dice_;
  World world_;
  cache::MemoryPlan plan_;
  FakeClock clock_;
  model::FakeModel model_;
  std::unique_ptr<Engine> engine_;
  std::map<link::RequestId, Client> clients_;
  std::vector<Conversation> conversations_;
  link::RequestId next_id_ = 1;
  link::RequestId last_started_ = 0;
  Tally tally_;
};

std::vector<Token> Simulation::text(int length) {
  std::vector<Token> tokens(length);
  for (Token& token : tokens) token = dice_.between(0, world_.model.facts.vocab_size - 1);
  return tokens;
}

Tally Simulation::run() {
  if (world_.warm && world_.model.failure == 0.0) {
    EXPECT_TRUE(engine_->warm_up());
  }
  // A few system prompts that conversations share, some of them one another's beginnings.
  const auto system = text(dice_.between(0, world_.context / 2));
  for (int i = dice_.between(1, 6); i > 0; --i) {
    const int shared =
        dice_.chance(0.7) ? static_cast<int>(system.size()) : dice_.between(0, static_cast<int>(system.size()));
    conversations_.push_back({{system.begin(), system.begin() + shared}});
  }
  for (int actions = dice_.between(5, 60); actions > 0; --actions) {
    act();
    if (::testing::Test::HasFailure()) return tally_;
  }
  do {
    tick();
  } while (engine_->queued() + engine_->running() > 0 && tally_.ticks < max_ticks);
  check_quiet();
  if (world_.compare_alone) {
    for (const auto& [id, client] : clients_) {
      if (client.finished && client.submit.sampling.temperature > 0.0f) compare_alone(client);
    }
  }
  return tally_;
}

void Simulation::act() {
  const double roll = dice_.roll();
  if (roll < 0.45) {
    submit_turn();
  } else if (roll < 0.45 + world_.hostile_rate) {
    submit_hostile();
  } else if (roll < 0.55 + world_.cancel_rate) {
    cancel_someone();
  }
  for (int ticks = dice_.pick({0, 1, 1, 3, 20}); ticks > 0; --ticks) tick();
  if (dice_.chance(0.3)) clock_.advance(dice_.between(1, 50) * ms);
}

// The history and something new; or the latest prompt once more, as clients that retry or ask for another answer do.
bool Simulation::write_prompt(Conversation& conversation, Client& client) {
  if (!conversation.last_prompt.empty() && dice_.chance(0.15)) {
    client.prompt = conversation.last_prompt;
    client.submit.reply_boundary = conversation.last_boundary;
    return true;
  }
  client.prompt = conversation.history;
  for (const Token token : text(dice_.between(1, 40))) client.prompt.push_back(token);
  const int generation = dice_.between(0, 4);
  if (static_cast<int>(client.prompt.size()) + generation >= world_.context) {
    const std::size_t kept = dice_.between(0, 30);
    conversation.history.resize(std::min(conversation.history.size(), kept));
    return false;
  }
  client.submit.reply_boundary = dice_.chance(0.8) ? static_cast<int>(client.prompt.size()) : 0;
  for (int i = 0; i < generation; ++i) client.prompt.push_back(i);
  conversation.last_prompt = client.prompt;
  conversation.last_boundary = client.submit.reply_boundary;
  return true;
}

void Simulation::submit_turn() {
  const int index = dice_.between(0, static_cast<int>(conversations_.size()) - 1);
  Conversation& conversation = conversations_[index];
  if (conversation.waiting && dice_.chance(0.8)) return;  // now and then two of one conversation at once
  Client client{.conversation = index};
  if (!write_prompt(conversation, client)) return;
  const Client first = client;
  ask(std::move(client));
  for (int twins = dice_.chance(0.25) ? dice_.between(1, 3) : 0; twins > 0; --twins) submit_twin(first);
}

// As coding agents send them: a second request with the same beginning before the first is answered, often in the same tick.
void Simulation::submit_twin(const Client& first) {
  Client client{.conversation = first.conversation};
  client.prompt = first.prompt;
  client.submit.reply_boundary = first.submit.reply_boundary;
  const int length = static_cast<int>(client.prompt.size());
  if (dice_.chance(0.7)) {
    client.prompt.resize(dice_.chance(0.7) ? length - std::min(length, dice_.between(0, 20)) : dice_.between(0, length));
    for (const Token token : text(dice_.between(1, 20))) client.prompt.push_back(token);
    client.submit.reply_boundary = dice_.chance(0.7) ? static_cast<int>(client.prompt.size()) : 0;
  }
  if (static_cast<int>(client.prompt.size()) >= world_.context) return;
  for (int ticks = dice_.pick({0, 0, 0, 1, 2}); ticks > 0; --ticks) tick();
  ++tally_.twins;
  ask(std::move(client));
}

void Simulation::ask(Client client) {
  Conversation& conversation = conversations_[client.conversation];
  link::Submit& submit = client.submit;
  submit.prompt = client.prompt;
  submit.max_tokens = dice_.chance(0.4) ? dice_.between(1, 9) : dice_.between(1, 2 * world_.context);
  for (int i = dice_.between(0, 3); i > 0; --i) submit.stop_tokens.push_back(text(1).front());
  submit.sampling.temperature = dice_.chance(0.5) ? 1.0f : 0.0f;
  submit.sampling.reproducible = true;  // a stated seed: compare_alone demands the same tokens
  submit.sampling.seed = static_cast<std::uint64_t>(dice_.between(0, 9));
  if (dice_.chance(world_.deadline_rate)) submit.deadline = clock_.now() + dice_.between(0, 400) * ms;

  const int vocab_size = world_.model.facts.vocab_size;
  const int length = dice_.between(0, 30);
  client.constrained = !submit.stop_tokens.empty() && dice_.chance(0.3);
  const auto constraint = [&]() -> std::shared_ptr<link::TokenConstraint> {
    if (!client.constrained) return nullptr;
    return std::make_shared<ToyConstraint>(vocab_size, length, submit.stop_tokens);
  };
  const int reply_limit = std::min(submit.max_tokens, world_.context - static_cast<int>(client.prompt.size()));
  client.expected = model::FakeModel::reply_alone(client.prompt, {submit.sampling, submit.stop_tokens, constraint()},
                                                  vocab_size, reply_limit);
  submit.constraint = constraint();
  conversation.waiting = true;
  send(std::move(client));
}

void Simulation::submit_hostile() {
  Client client{.hostile = true};
  link::Submit& submit = client.submit;
  submit.prompt = text(5);
  submit.max_tokens = 3;
  const int vocab_size = world_.model.facts.vocab_size;
  switch (dice_.between(0, 6)) {
    case 0:
      submit.prompt.clear();
      break;
    case 1:
      submit.prompt[3] = vocab_size;
      break;
    case 2:
      submit.prompt[0] = -1;
      break;
    case 3:
      submit.prompt = text(world_.context);
      break;
    case 4:
      submit.max_tokens = 0;
      break;
    case 5:
      submit.stop_tokens.assign(link::max_stop_tokens + 1, 1);
      break;
    case 6:
      submit.reply_boundary = 6;
      break;
  }
  client.refusal = ErrorKind::invalid;
  client.prompt = submit.prompt;
  send(std::move(client));
}

void Simulation::send(Client client) {
  const link::RequestId id = next_id_++;
  client.id = client.submit.id = id;
  note("t={} submit {} conversation {} prompt {} boundary {} max {} stops {} temperature {} {}{}", tally_.ticks, id,
       client.conversation, client.prompt.size(), client.submit.reply_boundary, client.submit.max_tokens,
       client.submit.stop_tokens.size(), client.submit.sampling.temperature, client.hostile ? "hostile" : "",
       client.constrained ? "constrained" : "");
  Client& kept = clients_[id] = std::move(client);
  link::Submit submit = kept.submit;
  kept.submit.constraint.reset();
  submit.sink = [this, &kept](link::Event event) { on_event(kept, std::move(event)); };
  engine_->post(std::move(submit));
  ++tally_.requests;
}

void Simulation::cancel_someone() {
  if (clients_.empty()) return;
  Client& client =
      clients_.at(dice_.between(std::max(1, static_cast<int>(next_id_) - 8), static_cast<int>(next_id_) - 1));
  note("t={} cancel {}", tally_.ticks, client.id);
  client.cancelled = true;
  engine_->post(link::Cancel{client.id});
}

void Simulation::tick() {
  ++tally_.ticks;
  engine_->tick(clock_.now());
  engine_->audit();
  poison();
}

// What the engine has let go must never be read again.
void Simulation::poison() {
  for (model::PageId page = 0; page < engine_->pages().total(); ++page) {
    if (engine_->pages().is_free(page)) model_.poison_page(page);
  }
  for (model::SnapshotId snapshot = 0; snapshot < world_.model.facts.snapshots; ++snapshot) {
    if (engine_->prefixes().is_free(snapshot)) model_.poison_snapshot(snapshot);
  }
}

void Simulation::on_event(Client& client, link::Event event) {
  ASSERT_FALSE(client.ended) << "an event after the last one of " << client.id;
  if (const auto* started = std::get_if<link::Started>(&event)) {
    ASSERT_FALSE(client.started);
    ASSERT_TRUE(client.id > last_started_ || may_follow(client)) << "first come, first served";
    if (client.id < last_started_) ++tally_.overtaken;
    last_started_ = std::max(last_started_, client.id);
    client.started = true;
    EXPECT_EQ(started->prompt_tokens, static_cast<int>(client.prompt.size()));
    EXPECT_LT(started->cached_tokens, started->prompt_tokens);
  } else if (const auto* tokens = std::get_if<link::Tokens>(&event)) {
    ASSERT_TRUE(client.started);
    ASSERT_FALSE(tokens->tokens.empty());
    for (const Token token : tokens->tokens) client.got.push_back(token);
    ASSERT_LE(client.got.size(), client.expected.size()) << client.id;
    ASSERT_TRUE(std::equal(client.got.begin(), client.got.end(), client.expected.begin()))
        << "another reply than alone: " << client.id;
  } else if (const auto* failed = std::get_if<link::Failed>(&event)) {
    on_end(client, failed->usage);
    on_failed(client, *failed);
  } else {
    on_end(client, std::get<link::Finished>(event).usage);
    on_finished(client, std::get<link::Finished>(event));
  }
}

// Whether it may have waited for an older one with the same beginning.
bool Simulation::may_follow(const Client& client) const {
  for (const auto& [id, other] : clients_) {
    if (id >= client.id) break;
    std::vector<Token> theirs = other.prompt;
    theirs.insert(theirs.end(), other.got.begin(), other.got.end());
    const auto shared = std::ranges::mismatch(theirs, client.prompt).in1 - theirs.begin();
    if (shared >= world_.config.junction_tokens) return true;
  }
  return false;
}

void Simulation::on_end(Client& client, const link::Usage& usage) {
  client.ended = true;
  client.usage = usage;
  if (client.conversation >= 0) conversations_[client.conversation].waiting = false;
  EXPECT_EQ(usage.prompt_tokens, static_cast<int>(client.prompt.size()));
  EXPECT_LE(usage.accepted_tokens, usage.drafted_tokens);
  EXPECT_LE(static_cast<int>(client.got.size()), usage.reply_tokens);
}

void Simulation::on_failed(Client& client, const link::Failed& failed) {
  const ErrorKind kind = failed.error.kind;
  note("t={} failed {}: {}", tally_.ticks, client.id, failed.error.message);
  EXPECT_FALSE(failed.error.message.empty());
  if (client.hostile) {
    EXPECT_EQ(kind, client.refusal);
    EXPECT_FALSE(failed.error.parameter.empty());
    ++tally_.refused;
  } else if (kind == ErrorKind::cancelled) {
    EXPECT_TRUE(client.cancelled);
    ++tally_.cancelled;
  } else if (kind == ErrorKind::timeout) {
    EXPECT_LE(client.submit.deadline, clock_.now());
    ++tally_.timed_out;
  } else if (failed.error.message.find("memory is full") != std::string::npos) {
    EXPECT_EQ(kind, ErrorKind::overloaded);
    EXPECT_LT(world_.model.device_pages, engine::pages_for(world_.context)) << "alone it fits";
    ++tally_.full;
  } else if (kind == ErrorKind::overloaded) {
    EXPECT_FALSE(client.started);
    ++tally_.refused;
  } else {
    EXPECT_EQ(kind, ErrorKind::internal);
    EXPECT_GT(world_.model.failure, 0.0) << failed.error.message;
    ++tally_.failed;
  }
  if (client.conversation >= 0 && dice_.chance(0.5)) continue_conversation(client);
}

void Simulation::on_finished(Client& client, const link::Finished& finished) {
  note("t={} finished {}: {} tokens, {} cached", tally_.ticks, client.id, finished.usage.reply_tokens,
       finished.usage.cached_tokens);
  const bool stopped = finished.reason == link::FinishReason::stop;
  ASSERT_FALSE(client.expected.empty());
  const auto& stops = client.submit.stop_tokens;
  EXPECT_EQ(stopped, std::ranges::count(stops, client.expected.back()) > 0);
  EXPECT_EQ(client.got.size() + (stopped ? 1 : 0), client.expected.size()) << "a reply cut short: " << client.id;
  EXPECT_EQ(finished.usage.reply_tokens, static_cast<int>(client.expected.size()));
  client.finished = true;
  ++tally_.finished;
  tally_.tokens += finished.usage.reply_tokens;
  tally_.cached_tokens += finished.usage.cached_tokens;
  if (stopped) client.got.push_back(client.expected.back());
  if (dice_.chance(0.9)) continue_conversation(client);
}

void Simulation::continue_conversation(const Client& client) {
  std::vector<Token>& history = conversations_[client.conversation].history;
  // As a template that drops the generation prompt would, or as one that keeps it.
  history = client.prompt;
  if (dice_.chance(0.2) && client.submit.reply_boundary > 0) history.resize(client.submit.reply_boundary);
  history.insert(history.end(), client.got.begin(), client.got.end());
}

// Everyone was answered, nobody holds anything, and the counters agree with what was seen.
void Simulation::check_quiet() {
  ASSERT_LT(tally_.ticks, max_ticks) << "going in circles";
  for (const auto& [id, client] : clients_) EXPECT_TRUE(client.ended) << id;
  const engine::Counters& counters = engine_->counters();
  EXPECT_EQ(engine_->pages().held_by_lanes(), 0);
  EXPECT_EQ(counters.finished_stop + counters.finished_length, static_cast<std::uint64_t>(tally_.finished));
  EXPECT_EQ(counters.submitted, counters.finished_stop + counters.finished_length + counters.failed + counters.refused +
                                    counters.cancelled + counters.timed_out);
  tally_.suspended += static_cast<std::int64_t>(counters.suspended);
  tally_.evicted += static_cast<std::int64_t>(counters.snapshots_evicted);
  tally_.restored += static_cast<std::int64_t>(counters.snapshots_restored);
  if (counters.suspended + counters.failed + counters.cancelled + counters.timed_out == 0) {
    EXPECT_EQ(counters.prefill_rows, counters.prompt_tokens - counters.cached_tokens) << "a prompt row run twice";
  }
  engine_->clear_cache();
  engine_->audit();
  EXPECT_EQ(engine_->pages().free(), engine_->pages().total());
  EXPECT_EQ(engine_->prefixes().snapshots_used(), 0);
}

// A sampled request goes through the same blocks alone as in company, cold as cached, suspended or not: its random
// numbers are tied to them.
void Simulation::compare_alone(const Client& client) {
  if (client.constrained || world_.config.fixed_width > 0) return;
  FakeClock clock;
  model::FakeOptions options = world_.model;
  options.clock = &clock;
  model::FakeModel model(options);
  Engine alone(model, plan_, world_.config, clock);
  if (world_.warm && options.failure == 0.0) {
    EXPECT_TRUE(alone.warm_up());
  }
  link::Submit submit = client.submit;
  submit.deadline = TimePoint::max();
  link::Usage usage;
  bool ended = false;
  submit.sink = [&](link::Event event) {
    if (const auto* finished = std::get_if<link::Finished>(&event)) usage = finished->usage;
    ended = ended || event.index() >= 2;
  };
  alone.post(std::move(submit));
  while (!ended) alone.tick(clock.now());
  if (usage.prompt_tokens == 0) return;  // the fake device failed it
  EXPECT_EQ(usage.decode_steps, client.usage.decode_steps) << client.id;
  EXPECT_EQ(usage.drafted_tokens, client.usage.drafted_tokens) << client.id;
  EXPECT_EQ(usage.accepted_tokens, client.usage.accepted_tokens) << client.id;
  ++tally_.compared_alone;
}

}  // namespace

bool ToyConstraint::allowed(int accepted, Token token) const {
  if (std::ranges::count(stops_, token) > 0) return true;
  return accepted < length_ && (token + accepted) % 3 != 0;
}

int ToyConstraint::masks_along(std::span<const Token> proposals, std::span<std::uint32_t> masks) {
  std::ranges::fill(masks, 0u);
  for (std::size_t row = 0; row <= proposals.size(); ++row) {
    const auto words = masks.subspan(row * mask_words(), mask_words());
    const int accepted = accepted_ + static_cast<int>(row);
    for (Token token = 0; token < vocab_size_; ++token) {
      if (allowed(accepted, token)) words[token / 32] |= 1u << (token % 32);
    }
    if (row < proposals.size() && !allowed(accepted, proposals[row])) return static_cast<int>(row) + 1;
  }
  return static_cast<int>(proposals.size()) + 1;
}

Tally& Tally::operator+=(const Tally& other) {
  ticks += other.ticks;
  requests += other.requests;
  twins += other.twins;
  overtaken += other.overtaken;
  finished += other.finished;
  tokens += other.tokens;
  cancelled += other.cancelled;
  timed_out += other.timed_out;
  failed += other.failed;
  full += other.full;
  refused += other.refused;
  suspended += other.suspended;
  evicted += other.evicted;
  restored += other.restored;
  cached_tokens += other.cached_tokens;
  compared_alone += other.compared_alone;
  return *this;
}

Tally simulate(std::uint64_t seed) {
  current_seed = seed;
  current_schedule.clear();
  std::signal(SIGABRT, print_schedule);
  const Tally tally = Simulation(seed).run();
  std::signal(SIGABRT, SIG_DFL);
  if (::testing::Test::HasFailure()) print_schedule(0);
  return tally;
}

}  // namespace splash::sim
