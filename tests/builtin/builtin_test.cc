// The built-in model through the real engine: the whole promise of speculation and caching on real weights. Greedy with
// the draft gives the ids of greedy without it; alone equals in company; cached equals cold; the draft is really accepted.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <thread>

#include "base/clock.h"
#include "cache/plan.h"
#include "chat/prompt.h"
#include "engine/engine.h"
#include "models/registry.h"
#include "pack/package.h"
#include "text/assets.h"

namespace splash {
namespace {

constexpr int prompt_count = 500;
constexpr int reply_tokens = 128;

std::filesystem::path model_folder() {
  const char* source = std::getenv("SPLASH_SOURCE");
  return std::filesystem::path(source ? source : ".") / "models" / "tiny";
}

// Questions of the kinds the model was trained for and of kinds it was not; no two are equal.
std::string question(int index) {
  static const char* const forms[] = {
      "What is {} plus {}?",
      "Write a short poem about number {} and number {}.",
      "My name is Tester{} and I am {} years old. What is my name?",
      "Sort these numbers: {}, 17, {}, 3.",
      "Hello! This is message {} of {}. How are you?",
      "Explain what a local inference engine does, in {} words or {} lines.",
      "Return a JSON object with keys id={} and size={}.",
      "def f{}(x):\n    return x * {}\n\nWhat does this function do?",
      "Reverse the word 'splash{}x{}'.",
      "Le café numéro {} coûte {} euros. 你好! 😀",
  };
  std::string text = forms[index % std::size(forms)];
  for (int value : {index, 1000 - index}) text.replace(text.find("{}"), 2, std::to_string(value));
  return text;
}

struct Reply {
  std::vector<Token> tokens;
  link::Usage usage;
  bool operator==(const Reply& other) const { return tokens == other.tokens; }
};

// KL(softmax(p) || softmax(q)) in nats.
double kl(std::span<const float> p, std::span<const float> q) {
  const auto log_sum = [](std::span<const float> logits) {
    const double most = *std::ranges::max_element(logits);
    double sum = 0.0;
    for (float value : logits) sum += std::exp(value - most);
    return most + std::log(sum);
  };
  const double p_sum = log_sum(p), q_sum = log_sum(q);
  double divergence = 0.0;
  for (std::size_t i = 0; i < p.size(); ++i) divergence += std::exp(p[i] - p_sum) * ((p[i] - p_sum) - (q[i] - q_sum));
  return divergence;
}

class Builtin : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto opened = pack::Package::open(model_folder());
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    package() = *opened;
    auto assets = text::load_text_assets(*package()->tokenizer_folder());
    ASSERT_TRUE(assets.has_value()) << assets.error().message;
    stop_tokens() = assets->stop_tokens;
    const chat::PromptBuilder builder(assets->tokenizer, assets->chat_template);
    for (int i = 0; i < prompt_count; ++i) {
      chat::Conversation conversation;
      conversation.messages.push_back({.role = chat::Role::user, .content = question(i)});
      auto prompt = builder.build(conversation);
      ASSERT_TRUE(prompt.has_value()) << prompt.error().message;
      prompts().push_back(std::move(*prompt));
    }
  }
  static std::shared_ptr<const pack::Package>& package() {
    static std::shared_ptr<const pack::Package> value;
    return value;
  }
  static std::vector<Token>& stop_tokens() {
    static std::vector<Token> value;
    return value;
  }
  static std::vector<chat::Prompt>& prompts() {
    static std::vector<chat::Prompt> value;
    return value;
  }

  struct Run {
    int first = 0, count = prompt_count;
    int lanes = link::max_lanes;
    bool use_draft = true;
    int repeats = 1;  // the same prompts again, from the prefix cache
    float temperature = 0.0f;
  };

  // Replies by prompt; with repeats, the last round's.
  static std::vector<Reply> run(const Run& setup) {
    const auto footprint = *models::footprint(*package(), models::Backend::cpu, 512);
    const cache::MemoryPlan plan = *cache::plan({.total_bytes = std::int64_t{8} << 30, .available_bytes = std::int64_t{6} << 30},
                                                footprint, package()->target().max_positions,
                                                {.lanes = setup.lanes, .context = 4096});
    models::OpenOptions options{.threads = static_cast<int>(std::min(2u, std::thread::hardware_concurrency())),
                                .lanes = plan.lanes, .pages = plan.pages, .snapshots = plan.snapshots};
    auto model = models::open(package(), options);
    EXPECT_TRUE(model.has_value()) << model.error().message;
    const SteadyClock clock;
    engine::Engine engine(**model, plan, {.use_draft = setup.use_draft}, clock);
    std::vector<Reply> replies(setup.count);
    for (int round = 0; round < setup.repeats; ++round) {
      int next = 0, live = 0;
      while (next < setup.count || live > 0) {
        for (; next < setup.count && live < 64; ++next, ++live) {
          Reply& reply = replies[next] = {};
          const chat::Prompt& prompt = prompts()[setup.first + next];
          link::Submit submit{.id = static_cast<link::RequestId>(round * prompt_count + next + 1), .prompt = prompt.tokens,
                              .reply_boundary = prompt.reply_boundary, .max_tokens = reply_tokens};
          submit.sampling = {.temperature = setup.temperature, .top_k = 20, .top_p = 0.95f, .seed = 7u + setup.first + next};
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
          engine.post(std::move(submit));
        }
        engine.tick(clock.now());
      }
    }
    return replies;
  }

  static double acceptance(const std::vector<Reply>& replies) {
    double accepted = 0, steps = 0;
    for (const Reply& reply : replies) {
      accepted += reply.usage.accepted_tokens;
      steps += reply.usage.decode_steps;
    }
    return steps > 0 ? 1.0 + accepted / steps : 0.0;
  }
};

TEST_F(Builtin, GreedyWithTheDraftIsGreedyWithoutIt) {
  const std::vector<Reply> speculated = run({});
  const std::vector<Reply> plain = run({.use_draft = false});
  int equal = 0;
  for (int i = 0; i < prompt_count; ++i) {
    EXPECT_EQ(speculated[i].tokens, plain[i].tokens) << "prompt " << i;
    EXPECT_EQ(speculated[i].tokens.size(), static_cast<std::size_t>(reply_tokens));
    equal += speculated[i] == plain[i];
  }
  const double mean = acceptance(speculated);
  std::printf("greedy equality: %d of %d prompts x %d tokens; acceptance a + 1 = %.2f (stop tokens ignored)\n", equal,
              prompt_count, reply_tokens, mean);
  EXPECT_GE(mean, 2.0);
}

TEST_F(Builtin, AloneIsAsInCompanyGreedyAndSeeded) {
  for (float temperature : {0.0f, 0.8f}) {
    const Run company{.count = 16, .temperature = temperature};
    const std::vector<Reply> together = run(company);
    for (int i = 0; i < company.count; i += 5) {
      const std::vector<Reply> alone = run({.first = i, .count = 1, .lanes = 1, .temperature = temperature});
      EXPECT_EQ(alone[0].tokens, together[i].tokens) << "prompt " << i;
    }
    EXPECT_EQ(run(company), together) << "a seed reproduces, temperature " << temperature;
  }
}

TEST_F(Builtin, CachedIsAsCold) {
  const std::vector<Reply> cold = run({.count = 20});
  const std::vector<Reply> cached = run({.count = 20, .repeats = 2});
  int hits = 0;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(cold[i].tokens, cached[i].tokens) << "prompt " << i;
    hits += cached[i].usage.cached_tokens > 0;
  }
  EXPECT_GE(hits, 15);
}

// The 8-bit activations and the kernels' order of sums against float32 on the same 4-bit weights, over whole conversations:
// every kind of question with the model's own reply.
TEST_F(Builtin, CpuLogitsAreCloseToRef) {
  const std::vector<Reply> replies = run({.count = 20});
  std::vector<Token> text;
  for (int i = 0; i < 20; ++i) {
    text.insert(text.end(), prompts()[i].tokens.begin(), prompts()[i].tokens.end());
    const auto end = std::ranges::find_first_of(replies[i].tokens, stop_tokens());
    text.insert(text.end(), replies[i].tokens.begin(), end);
    if (end != replies[i].tokens.end()) text.push_back(*end);
  }
  const auto truth = models::score(*package(), {.backend = models::Backend::ref}, text, {});
  ASSERT_TRUE(truth.has_value()) << truth.error().message;
  for (const char* isa : {"scalar", "avx2", "avx512vnni"}) {
    const auto scores = models::score(*package(), {.threads = 2, .isa = isa}, text, {});
    if (!scores) {
      std::printf("%s: %s\n", isa, scores.error().message.c_str());
      continue;
    }
    double divergence = 0.0;
    int clear = 0, agree = 0;
    for (int row = 0; row < truth->rows; ++row) {
      const auto p = std::span(truth->logits).subspan(std::size_t(row) * truth->vocab_size, truth->vocab_size);
      const auto q = std::span(scores->logits).subspan(std::size_t(row) * truth->vocab_size, truth->vocab_size);
      divergence += kl(p, q);
      std::vector<float> top(p.begin(), p.end());
      std::partial_sort(top.begin(), top.begin() + 2, top.end(), std::greater<>());
      if (top[0] - top[1] <= 0.05f) continue;
      ++clear;
      agree += std::ranges::max_element(p) - p.begin() == std::ranges::max_element(q) - q.begin();
    }
    const double mean = divergence / truth->rows;
    std::printf("%s: mean KL %.2e nats over %d rows, argmax agrees in %d of %d clear rows\n", isa, mean, truth->rows, agree,
                clear);
    EXPECT_LE(mean, 2e-3) << isa;
    EXPECT_GE(agree, 0.99 * clear) << isa;
  }
}

}  // namespace
}  // namespace splash
