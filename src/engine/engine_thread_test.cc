#include "engine/engine_thread.h"

#include <gtest/gtest.h>

#include <ctime>
#include <future>

#include "model/fake_model.h"

namespace splash::engine {
namespace {

model::FakeOptions small() {
  model::FakeOptions options;
  options.facts = {.vocab_size = 100,
                   .block_rows = 8,
                   .max_context = 2000,
                   .max_prefill_rows = 128,
                   .lanes = 3,
                   .pages = 200,
                   .snapshots = 4,
                   .has_draft = true};
  return options;
}

// How a request ended.
struct End {
  bool finished = false;
  ErrorKind kind = ErrorKind::internal;
};

struct Running {
  model::FakeModel model{small()};
  SteadyClock clock;
  Engine engine{model, {.context = 2000}, {}, clock};
  EngineThread thread{engine, clock};

  std::future<End> ask(link::RequestId id, std::vector<Token> prompt, int max_tokens) {
    auto last = std::make_shared<std::promise<End>>();
    link::Submit submit{.id = id, .prompt = std::move(prompt), .max_tokens = max_tokens};
    submit.sink = [last](link::Event event) {
      if (std::holds_alternative<link::Finished>(event)) last->set_value({true, {}});
      if (const auto* failed = std::get_if<link::Failed>(&event)) last->set_value({false, failed->error.kind});
    };
    auto future = last->get_future();
    engine.post(std::move(submit));
    return future;
  }
};

TEST(EngineThread, ServesManyThreads) {
  Running running;
  std::vector<std::thread> clients;
  std::atomic<int> finished = 0;
  std::atomic<int> cancelled = 0;
  for (int client = 0; client < 6; ++client) {
    clients.emplace_back([&, client] {
      for (int turn = 0; turn < 30; ++turn) {
        const link::RequestId id = static_cast<link::RequestId>(client * 1000 + turn);
        auto last = running.ask(id, std::vector<Token>(1 + turn * 3, client), 60);
        if (turn % 5 == 4) running.engine.post(link::Cancel{id});
        (last.get().finished ? finished : cancelled)++;
        EXPECT_LE(running.engine.counters().running, 3u);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(finished + cancelled, 180);
  EXPECT_GE(finished, 144);
}

TEST(EngineThread, SleepsWhenThereIsNothingToDo) {
  Running running;
  EXPECT_TRUE(running.ask(1, {1, 2}, 20).get().finished);
  std::timespec before{};
  std::timespec after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const double used =
      static_cast<double>(after.tv_sec - before.tv_sec) + 1e-9 * static_cast<double>(after.tv_nsec - before.tv_nsec);
  EXPECT_LT(used, 0.1);
}

TEST(EngineThread, StopLetsRunningRequestsEnd) {
  Running running;
  auto last = running.ask(1, {1, 2, 3}, 500);
  running.thread.stop(std::chrono::seconds(60));
  EXPECT_TRUE(last.get().finished);
  const End late = running.ask(2, {1}, 1).get();
  EXPECT_FALSE(late.finished) << "after the end a submit fails at once";
  EXPECT_EQ(late.kind, ErrorKind::overloaded);
  running.thread.stop(std::chrono::seconds(0));
}

TEST(EngineThread, StopWithoutGraceAnswersEveryone) {
  Running running;
  std::vector<std::future<End>> answers;
  for (link::RequestId id = 0; id < 20; ++id) answers.push_back(running.ask(id, std::vector<Token>(300, 5), 1700));
  running.thread.stop(Duration::zero());
  for (auto& answer : answers) EXPECT_NO_THROW(answer.get());
}

}  // namespace
}  // namespace splash::engine
