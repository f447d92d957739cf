#include "engine/engine.h"

#include <gtest/gtest.h>

#include <map>

#include "model/fake_model.h"

namespace splash::engine {
namespace {

constexpr int vocab_size = 500;

struct Seen {
  std::vector<link::Started> started;
  std::vector<Token> tokens;
  std::vector<link::Finished> finished;
  std::vector<link::Failed> failed;
  bool ended() const { return finished.size() + failed.size() > 0; }
};

// An engine over a fake model, driven by hand.
struct Rig {
  explicit Rig(model::FakeOptions options_ = roomy(), Config config = {}) : options(options_) {
    options.clock = &clock;
    model = std::make_unique<model::FakeModel>(options);
    plan.context = options.facts.max_context;
    engine = std::make_unique<Engine>(*model, plan, config, clock);
  }

  // A device with room for 16 of the pages that were planned.
  static model::FakeOptions crowded(int planned) {
    model::FakeOptions options = roomy();
    options.facts.max_context = 640;
    options.facts.pages = planned;
    options.device_pages = 16;
    return options;
  }

  static model::FakeOptions roomy() {
    model::FakeOptions options;
    options.facts = {.vocab_size = vocab_size,
                     .block_rows = 8,
                     .max_context = 20'000,
                     .max_prefill_rows = 512,
                     .lanes = 4,
                     .pages = 4000,
                     .snapshots = 16,
                     .has_draft = true};
    return options;
  }

  link::Submit request(std::vector<Token> prompt, int max_tokens) {
    link::Submit submit;
    submit.id = next_id++;
    submit.reply_boundary = static_cast<int>(prompt.size());
    submit.prompt = std::move(prompt);
    submit.max_tokens = max_tokens;
    submit.sampling.temperature = 0.0f;
    return submit;
  }
  Seen& post(link::Submit submit) {
    Answer& into = seen[submit.id];
    submit.sink = [&into](link::Event event) {
      EXPECT_FALSE(into.ended());
      std::visit([&](auto& it) { into.add(it); }, event);
    };
    engine->post(std::move(submit));
    return into;
  }
  void tick() {
    engine->tick(clock.now());
    engine->audit();
  }
  void run() {
    while (engine->tick(clock.now())) engine->audit();
  }
  Seen& ask(std::vector<Token> prompt, int max_tokens) {
    Seen& answer = post(request(std::move(prompt), max_tokens));
    run();
    return answer;
  }
  std::vector<Token> alone(std::span<const Token> prompt, int limit, std::vector<Token> stops = {}) const {
    return model::FakeModel::reply_alone(prompt, {.sampling = {.temperature = 0.0f}, .stop_tokens = std::move(stops)},
                                         vocab_size, limit);
  }

  struct Answer : Seen {
    void add(link::Started& it) { started.push_back(it); }
    void add(link::Tokens& it) { tokens.insert(tokens.end(), it.tokens.begin(), it.tokens.end()); }
    void add(link::Finished& it) { finished.push_back(it); }
    void add(link::Failed& it) { failed.push_back(it); }
  };

  FakeClock clock;
  model::FakeOptions options;
  cache::MemoryPlan plan;
  std::unique_ptr<model::FakeModel> model;
  std::unique_ptr<Engine> engine;
  std::map<link::RequestId, Answer> seen;
  link::RequestId next_id = 1;
};

std::vector<Token> counting(int count, Token first = 0) {
  std::vector<Token> tokens(count);
  for (int i = 0; i < count; ++i) tokens[i] = (first + i) % vocab_size;
  return tokens;
}

void append(std::vector<Token>& tokens, const std::vector<Token>& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
}

// FC-PC-05: the second turn runs what is new and nothing else, whatever the length.
TEST(Engine, SecondTurnPrefillsOnlyWhatIsNew) {
  for (const int length : {1, 10, 31, 32, 33, 63, 64, 65, 500, 8191, 8193}) {
    Rig rig;
    std::vector<Token> history = counting(length);
    const Seen& first = rig.ask(history, 40);
    ASSERT_EQ(first.tokens, rig.alone(history, 40)) << length;
    append(history, first.tokens);
    const int known = static_cast<int>(history.size()) - 1;  // the last chosen token was never run
    append(history, counting(17, 300));
    const auto rows = rig.model->prefill_rows();
    const Seen& second = rig.ask(history, 40);
    EXPECT_EQ(second.tokens, rig.alone(history, 40)) << length;
    EXPECT_EQ(second.started.front().cached_tokens, known);
    EXPECT_EQ(rig.model->prefill_rows() - rows, static_cast<int>(history.size()) - known) << length;
  }
}

// A template that renders the reply anew (reasoning left out) resumes before the generation prompt.
TEST(Engine, ReplyRenderedAnewResumesAtTheBoundary) {
  Rig rig;
  std::vector<Token> prompt = counting(100);
  append(prompt, {7, 8, 9});
  link::Submit submit = rig.request(prompt, 30);
  submit.reply_boundary = 100;
  rig.post(std::move(submit));
  rig.run();
  std::vector<Token> next = counting(100);
  append(next, counting(50, 200));
  const auto rows = rig.model->prefill_rows();
  EXPECT_EQ(rig.ask(next, 5).started.front().cached_tokens, 100);
  EXPECT_EQ(rig.model->prefill_rows() - rows, 50);
  // The same prompt again: the boundary serves it too.
  EXPECT_EQ(rig.ask(prompt, 5).started.front().cached_tokens, 100);
}

// FC-PC-03: every length in steps of one token over pages, blocks and window edges, hit against cold.
TEST(Engine, EveryLengthResumesToTheSameReply) {
  for (int length = 2; length <= 300; ++length) {
    Rig rig;
    const std::vector<Token> prompt = counting(length);
    const int warm = std::max(1, length - 1 - length % 41);
    rig.ask({prompt.begin(), prompt.begin() + warm}, 1);
    const Seen& answer = rig.ask(prompt, 48);
    ASSERT_EQ(answer.started.front().cached_tokens, warm) << length;
    ASSERT_EQ(answer.tokens, rig.alone(prompt, 48)) << length;
  }
}

// FC-SD-02: budgets and stops inside an accepted block, then a turn that goes on from there.
TEST(Engine, BudgetsAndStopsInsideABlock) {
  for (int budget = 1; budget <= 9; ++budget) {
    for (const bool stop : {false, true}) {
      model::FakeOptions options = Rig::roomy();
      options.acceptance = 1.0;
      Rig rig(options);
      std::vector<Token> history = counting(50);
      const std::vector<Token> whole = rig.alone(history, budget);
      link::Submit submit = rig.request(history, stop ? 100 : budget);
      if (stop) submit.stop_tokens = {whole.back()};
      const std::vector<Token> expected = rig.alone(history, 100, submit.stop_tokens);
      const Seen& first = rig.post(std::move(submit));
      rig.run();
      ASSERT_EQ(first.finished.size(), 1u);
      std::vector<Token> reply = first.tokens;
      if (stop) reply.push_back(whole.back());
      EXPECT_EQ(reply, stop ? expected : whole);
      EXPECT_EQ(first.finished.front().reason, stop ? link::FinishReason::stop : link::FinishReason::length);
      EXPECT_EQ(first.finished.front().usage.reply_tokens, static_cast<int>(reply.size()));
      append(history, reply);
      const int known = static_cast<int>(history.size()) - 1;
      append(history, counting(5, 90));
      const Seen& second = rig.ask(history, 20);
      EXPECT_EQ(second.started.front().cached_tokens, known);
      EXPECT_EQ(second.tokens, rig.alone(history, 20));
    }
  }
}

// FC-CX-03: cut after k tokens, then the same text with another continuation; nothing leaks over a storm.
TEST(Engine, AbortStorm) {
  Rig rig;
  for (int turn = 0; turn < 1000; ++turn) {
    const std::vector<Token> prompt = counting(40 + turn % 70, turn % 7);
    link::Submit submit = rig.request(prompt, 200);
    const link::RequestId id = submit.id;
    const Seen& cut = rig.post(std::move(submit));
    for (int ticks = turn % 20; ticks > 0; --ticks) rig.tick();
    rig.engine->post(link::Cancel{id});
    rig.tick();
    ASSERT_EQ(cut.failed.size(), 1u);
    EXPECT_EQ(cut.failed.front().error.kind, ErrorKind::cancelled);
    EXPECT_EQ(rig.engine->pages().held_by_lanes(), 0) << "freed at the next tick";
    if (turn % 10 != 0) continue;
    std::vector<Token> next = prompt;
    append(next, cut.tokens);
    append(next, {1, 2, 3});
    const Seen& answer = rig.ask(next, 10);
    ASSERT_EQ(answer.tokens, rig.alone(next, 10)) << turn;
    if (cut.tokens.size() > 1) {
      EXPECT_EQ(answer.started.front().cached_tokens, static_cast<int>(next.size()) - 4);
    }
  }
  rig.engine->clear_cache();
  EXPECT_EQ(rig.engine->pages().free(), rig.options.facts.pages);
  EXPECT_EQ(rig.engine->prefixes().snapshots_used(), 0);
}

// FC-CO-05: a long prompt beside a reply: the reply's largest gap stays near one slice.
TEST(Engine, ALongPromptDoesNotStallAReply) {
  Config config;
  config.pacing.slice_seconds = 0.2;
  Rig rig(Rig::roomy(), config);
  ASSERT_TRUE(rig.engine->warm_up());
  const Seen& reply = rig.post(rig.request(counting(20), 2000));
  for (int i = 0; i < 5; ++i) rig.tick();
  const Seen& prompt = rig.post(rig.request(counting(16'000, 77), 5));
  double largest = 0.0;
  std::size_t steps = 0;
  while (prompt.tokens.empty()) {
    const std::size_t before = reply.tokens.size();
    const TimePoint start = rig.clock.now();
    rig.tick();
    ++steps;
    largest = std::max(largest, std::chrono::duration<double>(rig.clock.now() - start).count());
    ASSERT_GT(reply.tokens.size(), before) << "decode is in every step";
  }
  EXPECT_LT(largest, 0.25);
  EXPECT_LT(steps, 16'000u / 100) << "and the prompt gets what a step can carry";
}

TEST(Engine, AThirdConversationResumesWhereTwoParted) {
  Rig rig;
  const auto conversation = [](Token own) {
    std::vector<Token> prompt = counting(1000);  // the agent's system prompt and tools
    append(prompt, counting(60, own));
    return prompt;
  };
  EXPECT_EQ(rig.ask(conversation(100), 5).started.front().cached_tokens, 0);
  EXPECT_EQ(rig.ask(conversation(200), 5).started.front().cached_tokens, 0);
  EXPECT_EQ(rig.ask(conversation(300), 5).started.front().cached_tokens, 992) << "the last whole block they share";
}

// Two agents with one system prompt arrive together: it is read once, and both replies are what they are alone.
TEST(Engine, PromptsThatComeTogetherReadTheirPrefixOnce) {
  for (const int together : {2, 4}) {
    Rig rig;
    std::vector<std::vector<Token>> prompts;
    std::vector<const Seen*> answers;
    for (int i = 0; i < together; ++i) {
      prompts.push_back(counting(3000));
      append(prompts.back(), counting(60, 100 * i + 7));
      answers.push_back(&rig.post(rig.request(prompts.back(), 20)));
    }
    const Seen& stranger = rig.post(rig.request(counting(40, 333), 3));
    rig.tick();
    if (together == 2) {
      EXPECT_EQ(stranger.started.size(), 1u) << "others go past";
    }
    rig.run();
    for (int i = 0; i < together; ++i) {
      EXPECT_EQ(answers[i]->tokens, rig.alone(prompts[i], 20));
      EXPECT_EQ(answers[i]->started.front().cached_tokens, i == 0 ? 0 : 2976) << "the last whole block they share";
      EXPECT_EQ(answers[i]->finished.front().usage.cached_tokens, answers[i]->started.front().cached_tokens);
    }
    EXPECT_EQ(rig.model->prefill_rows(), 3060 + (together - 1) * (3060 - 2976) + 40);
  }
}

// The same prompt several times (a client that asks for several answers), with a generation prompt behind its boundary.
TEST(Engine, OnePromptAskedTwiceAtOnceIsReadOnce) {
  Rig rig;
  const std::vector<Token> prompt = counting(1000);
  std::vector<const Seen*> answers;
  for (int i = 0; i < 3; ++i) {
    link::Submit submit = rig.request(prompt, 30);
    submit.reply_boundary = 997;
    answers.push_back(&rig.post(std::move(submit)));
  }
  rig.run();
  for (const Seen* answer : answers) EXPECT_EQ(answer->tokens, rig.alone(prompt, 30));
  EXPECT_EQ(rig.model->prefill_rows(), 1000 + 2 * 3) << "the snapshot before the generation prompt serves all";
}

// Three with more and more in common, in both orders.
TEST(Engine, FollowersOfFollowers) {
  for (const bool rising : {false, true}) {
    Rig rig;
    std::vector<std::vector<Token>> prompts;
    for (const int shared : {0, 1000, 2000}) {
      prompts.push_back(counting(rising ? shared : 2000 - shared));
      append(prompts.back(), counting(500, 77));
    }
    prompts.push_back(prompts.back());
    append(prompts.back(), counting(10, 9));
    std::vector<const Seen*> answers;
    for (const auto& prompt : prompts) answers.push_back(&rig.post(rig.request(prompt, 20)));
    rig.run();
    for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(answers[i]->tokens, rig.alone(prompts[i], 20)) << i;
    EXPECT_LT(rig.model->prefill_rows(), rising ? 4200 : 3600);
  }
}

// Whatever becomes of the older one, and whenever, the younger goes on, with what the older had done where that was kept.
TEST(Engine, ALeaderThatGoesLeavesNobodyWaiting) {
  std::vector<Token> first = counting(3000), second = counting(2500);
  append(second, counting(30, 321));
  for (int ticks = 0; ticks < 12; ++ticks) {
    for (const bool follower_goes : {false, true}) {
      Rig rig;
      link::Submit leading = rig.request(first, 20), following = rig.request(second, 20);
      const link::RequestId gone = follower_goes ? following.id : leading.id;
      const Seen& leader = rig.post(std::move(leading));
      const Seen& follower = rig.post(std::move(following));
      for (int i = 0; i < ticks; ++i) rig.tick();
      rig.engine->post(link::Cancel{gone});
      rig.run();
      const Seen& left = follower_goes ? leader : follower;
      ASSERT_EQ(left.finished.size(), 1u) << ticks;
      EXPECT_EQ(left.tokens, rig.alone(follower_goes ? first : second, 20)) << ticks;
      if (!follower_goes && ticks > 0) {
        const int kept = left.started.front().cached_tokens;
        EXPECT_EQ(kept, std::min(512 * ticks, 2496)) << ticks;
        EXPECT_EQ(rig.model->prefill_rows(), std::min(512 * ticks, 3000) + 2530 - kept) << ticks;
      }
      EXPECT_EQ(rig.engine->pages().held_by_lanes(), 0);
    }
  }
}

TEST(Engine, NobodyWaitsForWhatTheOlderHasPassed) {
  Rig rig;
  const std::vector<Token> first = counting(8000);
  rig.post(rig.request(first, 5));
  for (int i = 0; i < 3; ++i) rig.tick();  // 1536 rows
  std::vector<Token> past = counting(1000), ahead = counting(5000);
  append(past, counting(20, 99));
  append(ahead, counting(20, 99));
  const Seen& alone = rig.post(rig.request(past, 5));
  const Seen& follower = rig.post(rig.request(ahead, 5));
  rig.tick();
  EXPECT_EQ(alone.started.size(), 1u);
  EXPECT_TRUE(follower.started.empty());
  rig.run();
  EXPECT_EQ(alone.started.front().cached_tokens, 0);
  EXPECT_EQ(follower.started.front().cached_tokens, 4992);
  EXPECT_EQ(alone.tokens, rig.alone(past, 5));
  EXPECT_EQ(follower.tokens, rig.alone(ahead, 5));
}

// A short prompt that follows a long one is as soon as alone, although others wait too.
TEST(Engine, AFollowerIsAsUrgentAsAlone) {
  const auto first_token = [](bool with_leader) {
    Rig rig;
    rig.post(rig.request(counting(15'000, 400), 5));
    if (with_leader) rig.post(rig.request(counting(12'000), 5));
    rig.post(rig.request(counting(1'500, 250), 5));
    std::vector<Token> prompt = counting(600);
    append(prompt, counting(20, 99));
    const Seen& answer = rig.post(rig.request(prompt, 5));
    while (answer.tokens.empty()) rig.tick();
    return rig.model->steps();
  };
  EXPECT_LE(first_token(true), first_token(false) + 1);
}

// The oldest fails alone for want of memory, everyone else has been suspended for it: they are next.
TEST(Engine, AfterTheLastOneFailedTheSuspendedGoOn) {
  Rig rig(Rig::crowded(40));
  const Seen& large = rig.post(rig.request(counting(400), 200));
  const Seen& small = rig.post(rig.request(counting(20, 90), 60));
  rig.run();
  ASSERT_EQ(large.failed.size(), 1u);
  EXPECT_GT(rig.engine->counters().suspended, 0u);
  ASSERT_EQ(small.finished.size(), 1u);
  EXPECT_EQ(small.tokens, rig.alone(counting(20, 90), 60));
}

TEST(Engine, LongPromptsLeaveCheckpoints) {
  Rig rig;
  link::Submit submit = rig.request(counting(10'000), 5);
  const link::RequestId id = submit.id;
  rig.post(std::move(submit));
  for (int i = 0; i < 18; ++i) rig.tick();
  rig.engine->post(link::Cancel{id});
  rig.run();
  std::vector<Token> other = counting(6'000);
  append(other, counting(10, 333));
  EXPECT_EQ(rig.ask(other, 5).started.front().cached_tokens, 4096);
}

// The device fills up while pages are taken: who fits goes on at the cache's expense, who does not is told.
TEST(Engine, ADeviceWithLessMemoryThanPlanned) {
  Rig rig(Rig::crowded(80));
  for (Token first = 0; first < 400; first += 100) {
    const std::vector<Token> prompt = counting(200, first);
    EXPECT_EQ(rig.ask(prompt, 40).tokens, rig.alone(prompt, 40)) << "cached prompts make room";
  }
  EXPECT_EQ(rig.engine->pages().total(), 16);
  EXPECT_GT(rig.engine->counters().snapshots_evicted, 0u);

  const Seen& prompt = rig.ask(counting(600), 5);
  ASSERT_EQ(prompt.failed.size(), 1u) << "19 pages";
  EXPECT_EQ(prompt.failed.front().error.kind, ErrorKind::overloaded);
  EXPECT_NE(prompt.failed.front().error.message.find("512 of the planned 2560 tokens"), std::string::npos)
      << prompt.failed.front().error.message;
  EXPECT_TRUE(prompt.started.empty());
  const Seen& reply = rig.ask(counting(400), 200);
  ASSERT_EQ(reply.failed.size(), 1u) << "the reply grows out of the pool";
  EXPECT_EQ(reply.failed.front().error.kind, ErrorKind::overloaded);
  EXPECT_GT(reply.tokens.size(), 90u);
  EXPECT_TRUE(std::ranges::equal(reply.tokens, rig.alone(counting(400), static_cast<int>(reply.tokens.size()))));

  // Two at once that fit only one after the other.
  const std::vector<Token> one = counting(250, 7), two = counting(250, 9);
  const Seen& first = rig.post(rig.request(one, 150));
  const Seen& second = rig.post(rig.request(two, 150));
  rig.run();
  EXPECT_EQ(first.tokens, rig.alone(one, 150));
  EXPECT_EQ(second.tokens, rig.alone(two, 150));
}

// A snapshot inside a prompt (before the generation prompt, at a checkpoint) takes no step of its own.
TEST(Engine, ASnapshotOnTheWayTakesNoStep) {
  Rig rig;
  std::vector<Token> history = counting(100);
  const auto steps_to_first_token = [&](std::vector<Token> prompt, int boundary) {
    const auto before = rig.model->steps();
    link::Submit submit = rig.request(std::move(prompt), 3);
    submit.reply_boundary = boundary;
    const Seen& answer = rig.post(std::move(submit));
    while (answer.tokens.empty()) rig.tick();
    const auto steps = rig.model->steps() - before;
    rig.run();
    return steps;
  };
  EXPECT_EQ(steps_to_first_token(history, 97), 1);
  append(history, counting(60, 200));
  EXPECT_EQ(steps_to_first_token(history, 157), 1) << "resumed";
  EXPECT_EQ(rig.seen.rbegin()->second.started.front().cached_tokens, 97);
  const std::vector<Token> document = counting(10'000, 77);
  EXPECT_EQ(steps_to_first_token(document, 9'990), 20) << "512 rows a step, checkpoints and all";
  std::vector<Token> other(document.begin(), document.begin() + 9'990);
  append(other, counting(5, 400));
  EXPECT_EQ(rig.ask(other, 5).started.front().cached_tokens, 9'990);
  EXPECT_EQ(rig.seen.rbegin()->second.tokens, rig.alone(other, 5));
}

// Several prompts in one step with snapshots due in each: all are taken, and each serves a later request.
TEST(Engine, SnapshotsOfSeveralPromptsInOneStep) {
  Rig rig;
  std::vector<std::vector<Token>> prompts;
  for (int i = 0; i < 4; ++i) {
    prompts.push_back(counting(60 + 7 * i, 100 * i));
    link::Submit submit = rig.request(prompts.back(), 4);
    submit.reply_boundary = static_cast<int>(prompts.back().size()) - 5;
    rig.post(std::move(submit));
  }
  rig.run();
  for (std::vector<Token>& prompt : prompts) {
    const int boundary = static_cast<int>(prompt.size()) - 5;
    prompt.resize(boundary);
    append(prompt, counting(9, 450));
    const Seen& answer = rig.ask(prompt, 4);
    EXPECT_EQ(answer.started.front().cached_tokens, boundary);
    EXPECT_EQ(answer.tokens, rig.alone(prompt, 4));
  }
}

TEST(Engine, TwoRepliesTooLongForThePoolBothEnd) {
  model::FakeOptions options = Rig::roomy();
  options.facts.max_context = 640;
  options.facts.pages = 22;
  Rig rig(options);
  const std::vector<Token> first = counting(100);
  const std::vector<Token> second = counting(100, 50);
  const Seen& one = rig.post(rig.request(first, 1000));
  const Seen& two = rig.post(rig.request(second, 1000));
  rig.run();
  EXPECT_GT(rig.engine->counters().suspended, 0u);
  EXPECT_EQ(one.tokens, rig.alone(first, 540)) << "the context's end";
  EXPECT_EQ(two.tokens, rig.alone(second, 540));
  EXPECT_EQ(one.finished.front().reason, link::FinishReason::length);
}

TEST(Engine, AFailedStepFailsItsRequestsAndNoOthers) {
  model::FakeOptions options = Rig::roomy();
  options.failure = 1.0;
  Rig rig(options);
  const Seen& failed = rig.ask(counting(10), 5);
  ASSERT_EQ(failed.failed.size(), 1u);
  EXPECT_EQ(failed.failed.front().error.kind, ErrorKind::internal);
  EXPECT_EQ(rig.engine->running(), 0);
  EXPECT_EQ(rig.engine->counters().failed_steps, 1u);
  EXPECT_EQ(rig.engine->prefixes().snapshots_used(), 0) << "an undefined lane is not cached";
  EXPECT_EQ(rig.ask(counting(10), 5).failed.size(), 1u) << "the engine goes on";
}

TEST(Engine, ALostDeviceEndsEveryRequestAndRefusesTheNext) {
  model::FakeOptions options = Rig::roomy();
  options.facts.lanes = 1;
  options.failure = 1.0;
  options.failure_kind = ErrorKind::lost;
  std::vector<Error> told;
  engine::Config config;
  config.on_lost = [&](const Error& error) { told.push_back(error); };
  Rig rig(options, config);
  const Seen& running = rig.post(rig.request(counting(10), 5));
  const Seen& waiting = rig.post(rig.request(counting(12), 5));
  rig.run();
  for (const Seen* seen : {&running, &waiting}) {
    ASSERT_EQ(seen->failed.size(), 1u);
    EXPECT_EQ(seen->failed.front().error.kind, ErrorKind::lost);
  }
  EXPECT_EQ(told.size(), 1u);
  const Seen& late = rig.ask(counting(10), 5);
  ASSERT_EQ(late.failed.size(), 1u);
  EXPECT_EQ(late.failed.front().error.kind, ErrorKind::lost);
  EXPECT_EQ(rig.engine->counters().failed_steps, 1u) << "nothing was tried again";
  rig.engine->audit();
}

TEST(Engine, DeadlinesEndWaitingAndRunningRequests) {
  model::FakeOptions options = Rig::roomy();
  options.facts.lanes = 1;
  Rig rig(options);
  link::Submit running = rig.request(counting(10), 10'000);
  running.deadline = rig.clock.now() + std::chrono::seconds(2);
  link::Submit waiting = rig.request(counting(12), 10);
  waiting.deadline = rig.clock.now() + std::chrono::seconds(1);
  const TimePoint soonest = waiting.deadline;
  const Seen& first = rig.post(std::move(running));
  const Seen& second = rig.post(std::move(waiting));
  rig.tick();
  EXPECT_EQ(rig.engine->next_wake(), soonest);
  rig.run();
  ASSERT_EQ(first.failed.size(), 1u);
  ASSERT_EQ(second.failed.size(), 1u);
  EXPECT_EQ(first.failed.front().error.kind, ErrorKind::timeout);
  EXPECT_EQ(second.failed.front().error.kind, ErrorKind::timeout);
  EXPECT_TRUE(second.started.empty());
  EXPECT_GT(first.failed.front().usage.reply_tokens, 0);
  EXPECT_EQ(rig.engine->counters().timed_out, 2u);
}

TEST(Engine, RefusalsNameTheField) {
  Config config;
  config.max_queued = 1;
  Rig rig(Rig::roomy(), config);
  const auto refusal = [&](auto&& spoil) {
    link::Submit submit = rig.request(counting(10), 5);
    spoil(submit);
    const Seen& seen = rig.post(std::move(submit));
    rig.tick();
    EXPECT_EQ(seen.failed.size(), 1u);
    return seen.failed.empty() ? Error{} : seen.failed.front().error;
  };
  EXPECT_EQ(refusal([](auto& it) { it.prompt.clear(); }).parameter, "prompt");
  EXPECT_EQ(refusal([](auto& it) { it.prompt[2] = vocab_size; }).parameter, "prompt");
  EXPECT_EQ(refusal([](auto& it) { it.prompt[2] = -1; }).parameter, "prompt");
  EXPECT_EQ(refusal([](auto& it) { it.prompt = counting(20'000); }).message,
            "prompt is too long: 20000 tokens > 19999 maximum");
  EXPECT_EQ(refusal([](auto& it) { it.max_tokens = 0; }).parameter, "max_tokens");
  EXPECT_EQ(refusal([](auto& it) { it.reply_boundary = 11; }).parameter, "reply_boundary");
  EXPECT_EQ(refusal([](auto& it) { it.stop_tokens.assign(65, 1); }).parameter, "stop_tokens");
  EXPECT_EQ(refusal([](auto& it) { it.sampling.temperature = -1; }).parameter, "temperature");
  EXPECT_EQ(refusal([](auto& it) { it.sampling.top_p = 0; }).parameter, "top_p");
  EXPECT_EQ(refusal([](auto& it) { it.sampling.top_k = -1; }).parameter, "top_k");
  EXPECT_EQ(refusal([](auto& it) { it.sampling.min_p = 1; }).parameter, "min_p");
  // Twice the same id, and more than may wait.
  link::Submit first = rig.request(counting(10), 5);
  link::Submit twin = first;
  int twins = 0;
  twin.sink = [&](link::Event event) {
    const auto* failed = std::get_if<link::Failed>(&event);
    twins += failed != nullptr && failed->error.parameter == std::string_view("id") ? 1 : 0;
  };
  rig.post(std::move(first));
  rig.engine->post(std::move(twin));
  const Seen& late = rig.post(rig.request(counting(10), 5));
  rig.run();
  EXPECT_EQ(twins, 1);
  EXPECT_EQ(late.failed.front().error.kind, ErrorKind::overloaded);
  EXPECT_EQ(rig.engine->counters().refused, 13u);
}

TEST(Engine, WithoutSnapshotsEverythingStillRuns) {
  model::FakeOptions options = Rig::roomy();
  options.facts.snapshots = 0;
  Rig rig(options);
  const std::vector<Token> prompt = counting(100);
  EXPECT_EQ(rig.ask(prompt, 20).tokens, rig.alone(prompt, 20));
  EXPECT_EQ(rig.ask(prompt, 20).started.front().cached_tokens, 0);
  EXPECT_EQ(rig.engine->pages().free(), rig.options.facts.pages);
}

TEST(Engine, WarmUpNarrowsBlocksWhereRowsAreDear) {
  model::FakeOptions options = Rig::roomy();
  options.acceptance = 0.1;
  options.row_seconds = 0.1;
  Rig full(options);
  Rig measured(options);
  ASSERT_TRUE(measured.engine->warm_up());
  EXPECT_EQ(measured.engine->pages().free(), options.facts.pages);
  const std::vector<Token> prompt = counting(20);
  EXPECT_EQ(full.ask(prompt, 200).tokens, measured.ask(prompt, 200).tokens);
  EXPECT_LT(measured.engine->counters().decode_rows * 2, full.engine->counters().decode_rows);
  EXPECT_LT(measured.clock.now(), full.clock.now());
}

TEST(Engine, PlainModeDraftsNothing) {
  Config config;
  config.use_draft = false;
  Rig rig(Rig::roomy(), config);
  const std::vector<Token> prompt = counting(20);
  EXPECT_EQ(rig.ask(prompt, 50).tokens, rig.alone(prompt, 50));
  EXPECT_EQ(rig.engine->counters().drafted_tokens, 0u);
  EXPECT_EQ(rig.engine->counters().decode_rows, 49u);
}

TEST(Engine, CountersAddUp) {
  Rig rig;
  const Seen& answer = rig.ask(counting(100), 50);
  const Counters& counters = rig.engine->counters();
  const link::Usage& usage = answer.finished.front().usage;
  EXPECT_EQ(counters.reply_tokens, 50u);
  EXPECT_EQ(counters.decode_steps, static_cast<std::uint64_t>(usage.decode_steps));
  EXPECT_EQ(counters.accepted_tokens, static_cast<std::uint64_t>(usage.accepted_tokens));
  EXPECT_EQ(usage.accepted_tokens + usage.decode_steps + 1, 50) << "the first token comes from the prompt's last row";
  std::uint64_t drafted = 0;
  for (const Counter& position : counters.drafted_by_position) drafted += position;
  EXPECT_EQ(drafted, counters.drafted_tokens);
  EXPECT_EQ(counters.step_ms.count, counters.steps);
  EXPECT_GT(counters.step_ms.sum_us, 0u);
  EXPECT_EQ(counters.running, 0u);
  EXPECT_EQ(counters.pages_cached, 5u) << "150 tokens, the last of them never run";
}

// What the engine takes between two steps stands between every two tokens of a lane, so it is counted, apart from what it takes
// where requests come and go; what it waits for work is not. (`splash bench serve` reports both: the target of the first is 50 us.)
TEST(Engine, TimeBetweenStepsIsCountedAndIdleTimeIsNot) {
  using std::chrono::microseconds;
  Rig rig;
  std::uint64_t steps = 0, apart = 0;
  for (int round = 0; round < 3; ++round) {
    for (int lane = 0; lane < 4; ++lane) rig.post(rig.request(counting(40, lane), 30));
    while (rig.engine->tick(rig.clock.now())) rig.clock.advance(microseconds(30));
    rig.clock.advance(std::chrono::seconds(2));  // nobody asks for anything
    rig.engine->tick(rig.clock.now());
    const Counters& counted = rig.engine->counters();
    const std::uint64_t of_round = counted.steps - steps, followed = counted.between_steps.count + counted.turnovers.count;
    EXPECT_GT(of_round, 3u);
    EXPECT_GT(counted.between_steps.count, counted.turnovers.count);
    EXPECT_EQ(followed - apart, of_round - 1);
    EXPECT_EQ(counted.between_steps.us() + counted.turnovers.us(), 30 * followed);
    steps = counted.steps, apart = followed;
  }
}

// One reply goes on while others begin and end beside it, with snapshots that are slow to save and to restore: none of that is
// counted as time between its steps.
TEST(Engine, TurnoversAreCountedApart) {
  using std::chrono::microseconds;
  model::FakeOptions options = Rig::roomy();
  options.save_seconds = 0.0005;
  options.restore_seconds = 0.0003;
  Rig rig(options);
  const auto advance_to_the_end = [&](const Seen& answer) {
    while (!answer.ended()) rig.tick(), rig.clock.advance(microseconds(20));
  };
  const Seen& longest = rig.post(rig.request(counting(40), 2000));
  for (int round = 0; round < 5; ++round) advance_to_the_end(rig.post(rig.request(counting(100 + round, 7), 20)));
  ASSERT_FALSE(longest.ended());
  advance_to_the_end(longest);
  const Counters& counted = rig.engine->counters();
  EXPECT_EQ(counted.between_steps.count + counted.turnovers.count, counted.steps - 1);
  EXPECT_EQ(counted.between_steps.us(), 20 * counted.between_steps.count);
  EXPECT_EQ(counted.admission.count, 6u);
  EXPECT_EQ(counted.snapshots_restored, 4u);
  EXPECT_EQ(counted.admission.us(), 4u * 300u);
  EXPECT_EQ(counted.filing.us(), 500 * counted.snapshots_saved);
  EXPECT_GE(counted.turnovers.us(), counted.admission.us() + counted.filing.us() - 500) << "all but the last reply's end";
  EXPECT_LT(counted.turnovers.count, 30u);
}

// What is filed for the next turn keeps nobody waiting for a token or for the end of a reply.
TEST(Engine, TokensAreSentBeforeAnythingIsFiled) {
  model::FakeOptions options = Rig::roomy();
  options.save_seconds = 1;
  Config config;
  config.checkpoint_tokens = 128;
  for (const int max_tokens : {1, 40}) {
    Rig rig(options, config);
    link::Submit submit = rig.request(counting(600), max_tokens);
    submit.reply_boundary = 590;
    std::optional<TimePoint> first, end;
    double filed_before_first = 0;
    submit.sink = [&](link::Event event) {
      if (std::holds_alternative<link::Tokens>(event) && !first) {
        first = rig.clock.now();
        filed_before_first = static_cast<double>(rig.engine->counters().filing.us()) / 1e6;
      }
      if (std::holds_alternative<link::Finished>(event)) end = rig.clock.now();
    };
    rig.engine->post(std::move(submit));
    while (!end) {
      const TimePoint begun = rig.clock.now();
      const auto filed = rig.engine->counters().filing.us();
      rig.tick();
      const double step_s = std::chrono::duration<double>(rig.clock.now() - begun).count() -
                            static_cast<double>(rig.engine->counters().filing.us() - filed) / 1e6;
      for (const auto& told : {first, end}) {
        if (!told || *told <= begun) continue;
        EXPECT_NEAR(std::chrono::duration<double>(*told - begun).count(), step_s, 1e-6);
      }
    }
    EXPECT_LT(filed_before_first, 4.5) << "the checkpoints on the way, not the mark of the last slice";
    EXPECT_EQ(rig.engine->counters().filing.us() / 1'000'000, rig.engine->counters().snapshots_saved);
    EXPECT_GE(rig.engine->counters().snapshots_saved, 5u);
  }
}

// A request that waits for pages is not tried again before every step of the others, but once something has changed it is.
TEST(Engine, WhoWaitsForPagesGetsInOnceTheyAreFree) {
  model::FakeOptions options = Rig::roomy();
  options.facts.pages = 20;
  options.facts.max_context = 640;
  Rig rig(options);
  const Seen& running = rig.post(rig.request(counting(300), 300));
  rig.tick();
  const std::vector<Token> prompt = counting(400, 50);
  const Seen& waiting = rig.post(rig.request(prompt, 10));
  rig.run();
  EXPECT_TRUE(running.ended());
  EXPECT_EQ(waiting.tokens, rig.alone(prompt, 10));
  EXPECT_EQ(rig.engine->counters().admission.count, 2u);
}

}  // namespace
}  // namespace splash::engine
