// The built-in model through the real engine on the GPU: greedy with the draft against greedy without it, cached
// against cold, alone against in company, seeds, and a soak of random requests at eight lanes.
//
// The GPU promises the same bits for passes of up to 32 rows (docs/decisions/0006): with one lane and prompts read in
// one piece, equality is demanded; with eight lanes of eight rows, and where the cache cuts a prompt elsewhere, it is
// counted.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "backend/cuda/facts.h"
#include "backend/cuda/twin.h"
#include "base/clock.h"
#include "base/rng.h"
#include "cache/plan.h"
#include "chat/prompt.h"
#include "engine/engine.h"
#include "models/registry.h"
#include "pack/package.h"
#include "support/questions.h"
#include "text/assets.h"

namespace splash {
namespace {

constexpr int prompt_count = 64;
constexpr int reply_tokens = 96;

int number_from(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

struct Reply {
  std::vector<Token> tokens;
  link::Usage usage;
};

// What this process holds of the host's memory.
std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

double seconds_since(std::chrono::steady_clock::time_point begun) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

class BuiltinCuda : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    const auto device = cuda::choose_device(-1);
    if (!device) {
      std::printf("no GPU to test on: %s\n", device.error().message.c_str());
      std::exit(0);
    }
    const char* source = std::getenv("SPLASH_SOURCE");
    auto opened = pack::Package::open(std::filesystem::path(source ? source : ".") / "models" / "tiny");
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    package() = *opened;
    auto assets = text::load_text_assets(*package()->tokenizer_folder());
    ASSERT_TRUE(assets.has_value()) << assets.error().message;
    const chat::PromptBuilder builder(assets->tokenizer, assets->chat_template);
    for (int i = 0; i < prompt_count; ++i) {
      chat::Conversation conversation;
      conversation.messages.push_back({.role = chat::Role::user, .content = test::question(i)});
      auto prompt = builder.build(conversation);
      ASSERT_TRUE(prompt.has_value()) << prompt.error().message;
      prompts().push_back(std::move(*prompt));
    }
  }
  static std::shared_ptr<const pack::Package>& package() {
    static std::shared_ptr<const pack::Package> value;
    return value;
  }
  static std::vector<chat::Prompt>& prompts() {
    static std::vector<chat::Prompt> value;
    return value;
  }

  struct Machine {
    cache::MemoryPlan plan;
    std::unique_ptr<model::Model> model;
    SteadyClock clock;
    std::unique_ptr<engine::Engine> engine;
  };
  // width: rows of every verify pass; 0: as the engine measures.
  static std::unique_ptr<Machine> machine(models::Backend backend, int lanes, bool use_draft, int width) {
    auto made = std::make_unique<Machine>();
    const auto footprint = *models::footprint(*package(), backend, 512);
    made->plan = *cache::plan({.total_bytes = std::int64_t{8} << 30, .available_bytes = std::int64_t{6} << 30},
                              footprint, package()->target().max_positions, {.lanes = lanes, .context = 4096});
    auto model = models::open(package(), {.backend = backend,
                                          .threads = 4,
                                          .lanes = made->plan.lanes,
                                          .pages = made->plan.pages,
                                          .snapshots = made->plan.snapshots,
                                          .host_snapshots = made->plan.snapshots / 2});
    EXPECT_TRUE(model.has_value()) << model.error().message;
    made->model = std::move(*model);
    const auto begun = std::chrono::steady_clock::now();
    EXPECT_TRUE(made->model->prepare());
    if (backend == models::Backend::cuda) std::printf("prepared in %.3f s\n", seconds_since(begun));
    made->engine = std::make_unique<engine::Engine>(
        *made->model, made->plan, engine::Config{.use_draft = use_draft, .fixed_width = width}, made->clock);
    return made;
  }

  struct Run {
    models::Backend backend = models::Backend::cuda;
    int first = 0, count = prompt_count;
    int lanes = link::max_lanes;
    bool use_draft = true;
    int repeats = 1;  // the same prompts again, from the prefix cache
    float temperature = 0.0f;
    int at_once = 64;  // requests in the engine
  };
  // Replies by prompt; with repeats, the last round's.
  static std::vector<Reply> run(const char* what, const Run& setup) {
    const auto m = machine(setup.backend, setup.lanes, setup.use_draft, setup.use_draft ? 8 : 1);
    std::vector<Reply> replies(setup.count);
    const auto begun = std::chrono::steady_clock::now();
    for (int round = 0; round < setup.repeats; ++round) {
      int next = 0, live = 0;
      while (next < setup.count || live > 0) {
        for (; next < setup.count && live < setup.at_once; ++next, ++live) {
          Reply& reply = replies[next] = {};
          const chat::Prompt& prompt = prompts()[setup.first + next];
          link::Submit submit{.id = static_cast<link::RequestId>(round * prompt_count + next + 1),
                              .prompt = prompt.tokens,
                              .reply_boundary = prompt.reply_boundary,
                              .max_tokens = reply_tokens};
          submit.sampling = {.temperature = setup.temperature,
                             .top_k = 20,
                             .top_p = 0.95f,
                             .seed = 7u + setup.first + next,
                             .reproducible = true};
          submit.sink = [&reply, &live](link::Event event) {
            if (auto* tokens = std::get_if<link::Tokens>(&event)) {
              reply.tokens.insert(reply.tokens.end(), tokens->tokens.begin(), tokens->tokens.end());
            } else if (auto* finished = std::get_if<link::Finished>(&event)) {
              reply.usage = finished->usage;
              --live;
            } else if (auto* failed = std::get_if<link::Failed>(&event)) {
              ADD_FAILURE() << failed->error.message;
              --live;
            }
          };
          m->engine->post(std::move(submit));
        }
        m->engine->tick(m->clock.now());
        if (testing::Test::HasFailure()) return replies;
      }
    }
    double accepted = 0, steps = 0, tokens = 0;
    for (const Reply& reply : replies) {
      accepted += reply.usage.accepted_tokens, steps += reply.usage.decode_steps;
      tokens += static_cast<double>(reply.tokens.size());
    }
    std::printf("%-32s %d replies, %.2f s, %.0f tok/s, a + 1 = %.2f\n", what, setup.count, seconds_since(begun),
                tokens * setup.repeats / seconds_since(begun), steps > 0 ? 1 + accepted / steps : 0);
    return replies;
  }
  static int equal(const std::vector<Reply>& a, const std::vector<Reply>& b) {
    int count = 0;
    for (std::size_t i = 0; i < a.size(); ++i) count += a[i].tokens == b[i].tokens;
    return count;
  }
};

TEST_F(BuiltinCuda, GreedyWithTheDraftIsGreedyWithoutIt) {
  const auto drafted = run("greedy, 1 lane, draft", {.count = 24, .lanes = 1});
  const auto plain = run("greedy, 1 lane, plain", {.count = 24, .lanes = 1, .use_draft = false});
  for (int i = 0; i < 24; ++i) EXPECT_EQ(drafted[i].tokens, plain[i].tokens) << "prompt " << i;
  const auto four = run("greedy, 4 lanes, draft", {.count = 24, .lanes = 4});
  for (int i = 0; i < 24; ++i) EXPECT_EQ(four[i].tokens, plain[i].tokens) << "four lanes, prompt " << i;
  const auto company = run("greedy, 8 lanes, draft", {.count = 24});
  const auto company_plain = run("greedy, 8 lanes, plain", {.count = 24, .use_draft = false});
  std::printf(
      "equal to plain alone: %d of 24 drafted alone, %d at four lanes, %d at eight lanes, %d plain at eight lanes\n",
      equal(drafted, plain), equal(four, plain), equal(company, plain), equal(company_plain, plain));
  double same = 0;  // tokens up to the first that differs
  for (int i = 0; i < 24; ++i) {
    const auto &a = company[i].tokens, &b = plain[i].tokens;
    same += static_cast<double>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  }
  std::printf("eight lanes of eight rows: %d first differences in %.0f tokens\n", 24 - equal(company, plain), same);
  EXPECT_EQ(equal(company_plain, plain), 24) << "eight rows are few enough";
  EXPECT_GE(equal(company, plain), 12);
}

TEST_F(BuiltinCuda, SeedsReproduceAndCompanyHardlyMatters) {
  const Run company{.count = 24, .temperature = 0.8f};
  const auto together = run("sampled, 8 lanes", company);
  const auto again = run("sampled, 8 lanes, again", company);
  EXPECT_EQ(equal(together, again), 24) << "a seed reproduces in the same company";
  const auto alone = run("sampled, 1 lane", {.count = 24, .lanes = 1, .temperature = 0.8f});
  const auto four = run("sampled, 4 lanes", {.count = 24, .lanes = 4, .temperature = 0.8f});
  std::printf("sampled: %d of 24 replies alone as at four lanes, %d as at eight\n", equal(alone, four),
              equal(alone, together));
  EXPECT_EQ(equal(alone, four), 24);
}

TEST_F(BuiltinCuda, CachedAgainstCold) {
  const auto cold = run("cold", {.count = 24, .lanes = 1});
  const auto cached = run("cached", {.count = 24, .lanes = 1, .repeats = 2});
  int hits = 0;
  for (const Reply& reply : cached) hits += reply.usage.cached_tokens > 0;
  std::printf("cached: %d of 24 had a prefix, %d of 24 replies as cold\n", hits, equal(cold, cached));
  EXPECT_GE(hits, 18);
  EXPECT_EQ(equal(cold, cached), 24);
}

// A prompt's numbers do not depend on how it is cut: one piece (tiles of 256 rows), pieces of every other kind.
TEST_F(BuiltinCuda, CutsOfAPromptChangeNoBit) {
  std::vector<Token> text;
  for (int i = 0; text.size() < 210; ++i)
    text.insert(text.end(), prompts()[i].tokens.begin(), prompts()[i].tokens.end());
  text.resize(210);
  std::vector<float> first;
  for (const int chunk : {210, 100, 65, 64, 33, 32, 7}) {
    const auto scores = models::score(*package(), {.backend = models::Backend::cuda}, text, {.chunk = chunk});
    ASSERT_TRUE(scores.has_value()) << scores.error().message;
    if (first.empty()) first = scores->logits;
    std::size_t differ = 0;
    for (std::size_t i = 0; i < first.size(); ++i) differ += scores->logits[i] != first[i];
    std::printf("pieces of %3d rows: %zu of %zu logits differ from one piece\n", chunk, differ, first.size());
    EXPECT_EQ(differ, 0u) << chunk;
  }
}

// Another implementation of the same model: the CPU's greedy replies agree for a while.
TEST_F(BuiltinCuda, TheCpuSaysMostlyTheSame) {
  const auto gpu = run("cuda", {.count = 8, .lanes = 1});
  const auto cpu = run("cpu", {.backend = models::Backend::cpu, .count = 8, .lanes = 1});
  double common = 0, length = 0, gpu_accepted = 0, cpu_accepted = 0, gpu_steps = 0, cpu_steps = 0;
  for (int i = 0; i < 8; ++i) {
    const auto& a = gpu[i].tokens;
    const auto& b = cpu[i].tokens;
    common += static_cast<double>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
    length += static_cast<double>(b.size());
    gpu_accepted += gpu[i].usage.accepted_tokens, gpu_steps += gpu[i].usage.decode_steps;
    cpu_accepted += cpu[i].usage.accepted_tokens, cpu_steps += cpu[i].usage.decode_steps;
  }
  std::printf("common prefix of cuda and cpu replies: %.0f of %.0f tokens; a + 1 = %.2f and %.2f\n", common, length,
              1 + gpu_accepted / gpu_steps, 1 + cpu_accepted / cpu_steps);
  EXPECT_GE(common, 0.3 * length);
  EXPECT_GE(gpu_accepted / gpu_steps, 0.8 * cpu_accepted / cpu_steps) << "the draft is run wrongly";
}

// SPLASH_SOAK_SECONDS of requests of every kind: lengths, laws, cancels, shared prefixes.
TEST_F(BuiltinCuda, Soak) {
  const int seconds = number_from("SPLASH_SOAK_SECONDS", 10);
  const auto m = machine(models::Backend::cuda, link::max_lanes, true, 0);
  ASSERT_TRUE(m->engine->warm_up());
  cuda::DeviceFacts before = *cuda::choose_device(-1), after = before;
  std::uint64_t drawn = 0;
  const auto roll = [&] { return uniform(11, drawn++, Purpose::test); };
  int live = 0, finished = 0, cancelled = 0;
  std::int64_t tokens = 0;
  link::RequestId next = 1;
  std::vector<link::RequestId> running;
  std::int64_t resident_before = 0;
  const auto begun = std::chrono::steady_clock::now();
  bool measured = false;
  double said = 0;
  while (seconds_since(begun) < seconds || live > 0) {
    if (seconds_since(begun) > said + 30) {  // a run of minutes that is cut off has said how far it was
      said = seconds_since(begun);
      std::printf("soak at %.0f s: %d finished, %d cancelled, %lld tokens\n", said, finished, cancelled,
                  static_cast<long long>(tokens));
      std::fflush(stdout);
    }
    if (!measured && seconds_since(begun) > seconds * 0.5) {
      ASSERT_TRUE(cuda::read_memory(before));  // every shape has been recorded by now
      resident_before = resident_bytes();
      measured = true;
    }
    while (live < 12 && seconds_since(begun) < seconds) {
      link::Submit submit{.id = next++};
      const chat::Prompt& prompt = prompts()[static_cast<int>(roll() * prompt_count)];
      submit.prompt = prompt.tokens;
      if (roll() < 0.3) {  // a long one, after a prefix that others share
        const chat::Prompt& other = prompts()[static_cast<int>(roll() * 4)];
        std::vector<Token> longer;
        for (int i = 0; i < 1 + static_cast<int>(roll() * 20); ++i)
          longer.insert(longer.end(), other.tokens.begin(), other.tokens.end());
        submit.prompt.insert(submit.prompt.begin(), longer.begin(), longer.end());
      } else {
        submit.reply_boundary = prompt.reply_boundary;
      }
      submit.max_tokens = 1 + static_cast<int>(roll() * 120);
      submit.sampling.temperature = roll() < 0.4 ? 0.0f : static_cast<float>(0.5 + roll());
      submit.sampling.top_k = roll() < 0.5 ? 20 : roll() < 0.5 ? 0 : 200;
      submit.sampling.top_p = roll() < 0.5 ? 0.95f : 1.0f;
      submit.sampling.min_p = roll() < 0.2 ? 0.05f : 0.0f;
      submit.sampling.seed = next;
      submit.sink = [&](link::Event event) {
        if (auto* some = std::get_if<link::Tokens>(&event)) {
          tokens += static_cast<std::int64_t>(some->tokens.size());
        } else if (std::holds_alternative<link::Finished>(event)) {
          --live, ++finished;
        } else if (auto* failed = std::get_if<link::Failed>(&event)) {
          --live, ++cancelled;
          EXPECT_EQ(failed->error.kind, ErrorKind::cancelled) << failed->error.message;
        }
      };
      if (roll() < 0.05) running.push_back(submit.id);
      ++live;
      m->engine->post(std::move(submit));
    }
    if (!running.empty() && roll() < 0.02) {
      m->engine->post(link::Cancel{running.back()});
      running.pop_back();
    }
    m->engine->tick(m->clock.now());
    if (testing::Test::HasFailure()) return;
  }
  m->engine->audit();
  ASSERT_TRUE(cuda::read_memory(after));
  std::printf(
      "soak: %.1f s, %d finished, %d cancelled, %lld tokens, %.0f tok/s, device memory free %lld then %lld MiB, host memory "
      "%lld then %lld MiB\n",
      seconds_since(begun), finished, cancelled, static_cast<long long>(tokens),
      static_cast<double>(tokens) / seconds_since(begun), static_cast<long long>(before.free_bytes >> 20),
      static_cast<long long>(after.free_bytes >> 20), static_cast<long long>(resident_before >> 20),
      static_cast<long long>(resident_bytes() >> 20));
  EXPECT_GT(finished, 10);
  EXPECT_LT(resident_bytes(), resident_before + (32 << 20)) << "host memory grows with the requests";
}

// A fault that no later call survives, in mid-service: every request is told, the next one too. After it this process has
// no GPU, so this test is the last.
using BuiltinCudaFault = BuiltinCuda;
TEST_F(BuiltinCudaFault, ALostDeviceIsToldToEveryRequest) {
  const auto m = machine(models::Backend::cuda, 2, true, 0);
  std::vector<Error> told;
  int finished = 0;
  const auto ask = [&](int i) {
    link::Submit submit{.id = static_cast<link::RequestId>(i + 1), .prompt = prompts()[i].tokens, .max_tokens = 400};
    submit.sampling.temperature = 0;
    submit.sink = [&](link::Event event) {
      if (auto* failed = std::get_if<link::Failed>(&event)) told.push_back(failed->error);
      finished += std::holds_alternative<link::Finished>(event);
    };
    m->engine->post(std::move(submit));
  };
  for (int i = 0; i < 6; ++i) ask(i);  // two run, four wait
  for (int i = 0; i < 20; ++i) m->engine->tick(m->clock.now());
  auto other = cuda::Stream::open(*cuda::choose_device(-1), 1 << 20);
  ASSERT_TRUE(other.has_value()) << other.error().message;
  cuda::fetch_bytes(**other, reinterpret_cast<const void*>(4096), (*other)->allocate<std::byte>(16), 16);  // nobody's address
  const auto begun = std::chrono::steady_clock::now();
  while (m->engine->tick(m->clock.now())) ASSERT_LT(seconds_since(begun), 20);
  EXPECT_EQ(finished + std::ssize(told), 6);
  EXPECT_GE(told.size(), 4u) << "those that waited at least";
  ask(6);
  m->engine->tick(m->clock.now());
  for (const Error& error : told) EXPECT_EQ(error.kind, ErrorKind::lost) << error.message;
  ASSERT_FALSE(told.empty());
  std::printf("lost device: %d finished, %zu told: %s\n", finished, told.size(), told.back().message.c_str());
  EXPECT_EQ(finished + std::ssize(told), 7);
}

}  // namespace
}  // namespace splash
