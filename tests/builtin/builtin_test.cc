// The built-in model through the real engine: the whole promise of speculation and caching on real weights. Greedy with
// the draft gives the ids of greedy without it; alone equals in company; cached equals cold; the draft is really accepted.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>

#include "base/clock.h"
#include "cache/plan.h"
#include "chat/prompt.h"
#include "engine/engine.h"
#include "models/registry.h"
#include "pack/package.h"
#include "support/agreement.h"
#include "support/questions.h"
#include "text/assets.h"

namespace splash {
namespace {

constexpr int prompt_count = 500;
constexpr int reply_tokens = 128;
constexpr int conversation_count = 100;
constexpr int parts = 4;  // of the greedy test, so that several processes share it

std::filesystem::path source_folder() {
  const char* source = std::getenv("SPLASH_SOURCE");
  return source ? source : ".";
}

// What the model is made for: one in nine of the held-out prompts of train/eval, their kinds mixed.
std::vector<chat::Conversation> conversations() {
  std::ifstream file(source_folder() / "train" / "eval" / "prompts.jsonl");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  std::vector<chat::Conversation> out;
  for (int i = 0; i < conversation_count; ++i) {
    const std::string& line = lines.at(i * 79 % lines.size());
    const boost::json::object prompt = boost::json::parse(line).as_object();
    chat::Conversation conversation;
    bool plain = true;
    for (const auto& message : prompt.at("messages").as_array()) {
      plain &= !message.as_object().contains("tool_calls");
      conversation.messages.push_back({.role = *chat::role_from_name(message.at("role").as_string()),
                                       .content = std::string(message.at("content").as_string())});
    }
    if (const auto* tools = prompt.if_contains("tools")) {
      for (const auto& tool : tools->as_array()) {
        const auto& function = tool.at("function").as_object();
        conversation.tools.push_back({std::string(function.at("name").as_string()), tool.as_object(), function.at("parameters").as_object()});
      }
    }
    if (plain) out.push_back(std::move(conversation));
  }
  return out;
}

struct Reply {
  std::vector<Token> tokens;
  link::Usage usage;
  bool operator==(const Reply& other) const { return tokens == other.tokens; }
};

class Builtin : public testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() {
    auto opened = pack::Package::open(source_folder() / "models" / "tiny");
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    package() = *opened;
    auto assets = text::load_text_assets(*package()->tokenizer_folder());
    ASSERT_TRUE(assets.has_value()) << assets.error().message;
    stop_tokens() = assets->stop_tokens;
    const chat::PromptBuilder builder(assets->tokenizer, assets->chat_template);
    const auto add = [&](const chat::Conversation& conversation, std::vector<chat::Prompt>& prompts) {
      auto prompt = builder.build(conversation);
      ASSERT_TRUE(prompt.has_value()) << prompt.error().message;
      prompts.push_back(std::move(*prompt));
    };
    for (int i = 0; i < prompt_count; ++i) {
      add({.messages = {{.role = chat::Role::user, .content = test::question(i)}}}, questions());
    }
    for (const chat::Conversation& conversation : conversations()) add(conversation, tasks());
    ASSERT_GT(tasks().size(), 80u);
  }
  static std::shared_ptr<const pack::Package>& package() {
    static std::shared_ptr<const pack::Package> value;
    return value;
  }
  static std::vector<Token>& stop_tokens() {
    static std::vector<Token> value;
    return value;
  }
  static std::vector<chat::Prompt>& questions() {
    static std::vector<chat::Prompt> value;
    return value;
  }
  static std::vector<chat::Prompt>& tasks() {
    static std::vector<chat::Prompt> value;
    return value;
  }

  struct Run {
    const std::vector<chat::Prompt>* prompts = &questions();
    int first = 0, count = prompt_count;
    int lanes = link::max_lanes;
    bool use_draft = true;
    int repeats = 1;  // the same prompts again, from the prefix cache
    std::vector<Reply>* first_round = nullptr;  // if asked for: the replies before the cache had any of them
    float temperature = 0.0f;
    bool stops = false;  // else stop tokens are like any other, and all replies are of one length
  };

  // Replies by prompt; with repeats, the last round's.
  static std::vector<Reply> run(const Run& setup) {
    const auto footprint = *models::footprint(*package(), models::Backend::cpu, 512);
    const cache::MemoryPlan plan = *cache::plan({.total_bytes = std::int64_t{8} << 30, .available_bytes = std::int64_t{6} << 30},
                                                footprint, package()->target().max_positions,
                                                {.lanes = setup.lanes, .context = 4096});
    // One thread: the parts of this program run side by side. That threads change no bit is golden_test's business.
    models::OpenOptions options{.threads = 1, .lanes = plan.lanes, .pages = plan.pages, .snapshots = plan.snapshots};
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
          const chat::Prompt& prompt = (*setup.prompts)[setup.first + next];
          link::Submit submit{.id = static_cast<link::RequestId>(round * prompt_count + next + 1), .prompt = prompt.tokens,
                              .reply_boundary = prompt.reply_boundary, .max_tokens = reply_tokens};
          if (setup.stops) submit.stop_tokens = stop_tokens();
          submit.sampling = {.temperature = setup.temperature, .top_k = 20, .top_p = 0.95f, .seed = 7u + setup.first + next,
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
          engine.post(std::move(submit));
        }
        engine.tick(clock.now());
      }
      if (round == 0 && setup.first_round != nullptr) *setup.first_round = replies;
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

TEST_P(Builtin, GreedyWithTheDraftIsGreedyWithoutIt) {
  constexpr int count = prompt_count / parts;
  const std::vector<Reply> speculated = run({.first = GetParam() * count, .count = count});
  const std::vector<Reply> plain = run({.first = GetParam() * count, .count = count, .use_draft = false});
  int equal = 0;
  for (int i = 0; i < count; ++i) {
    EXPECT_EQ(speculated[i].tokens, plain[i].tokens) << "prompt " << i;
    EXPECT_EQ(speculated[i].tokens.size(), static_cast<std::size_t>(reply_tokens));
    equal += speculated[i] == plain[i];
  }
  std::printf("greedy equality: %d of %d prompts x %d tokens\n", equal, count, reply_tokens);
}
INSTANTIATE_TEST_SUITE_P(Part, Builtin, testing::Range(0, parts));

TEST_F(Builtin, TheDraftIsAccepted) {
  const std::vector<Reply> replies =
      run({.prompts = &tasks(), .count = static_cast<int>(tasks().size()), .lanes = 1, .stops = true});
  const double mean = acceptance(replies);
  std::printf("acceptance a + 1 = %.2f over %zu conversations to their own end\n", mean, replies.size());
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
    if (temperature > 0) {
      EXPECT_EQ(run(company), together) << "a seed reproduces";
    }
  }
}

TEST_F(Builtin, CachedIsAsCold) {
  std::vector<Reply> cold;
  const std::vector<Reply> cached = run({.count = 20, .repeats = 2, .first_round = &cold});
  int hits = 0;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(cold[i].tokens, cached[i].tokens) << "prompt " << i;
    hits += cached[i].usage.cached_tokens > 0;
  }
  EXPECT_GE(hits, 15);
}

// The 8-bit activations and the kernels' order of sums against float32 on the same 4-bit weights.
void expect_close_to_ref(const pack::Package& package, const char* name, std::span<const Token> text) {
  const auto truth = models::score(package, {.backend = models::Backend::ref}, text, {});
  ASSERT_TRUE(truth.has_value()) << truth.error().message;
  for (const char* isa : {"scalar", "avx2", "avx512vnni"}) {
    const auto scores = models::score(package, {.threads = 1, .isa = isa}, text, {});
    if (!scores) {
      std::printf("%s: %s\n", isa, scores.error().message.c_str());
      continue;
    }
    const test::Agreement got = test::agreement(truth->logits, scores->logits, truth->vocab_size);
    std::printf("%s, %s: mean KL %.2e nats over %d rows, argmax agrees in %d of %d clear rows\n", name, isa, got.kl,
                got.rows, got.same, got.clear);
    EXPECT_LE(got.kl, 2e-3) << name << ", " << isa;
    EXPECT_GE(got.same, 0.99 * got.clear) << name << ", " << isa;
  }
}

// Over whole conversations: with the model's own replies.
TEST_F(Builtin, CpuLogitsAreCloseToRefInConversations) {
  constexpr int count = 16;
  std::vector<Token> text;
  for (const std::vector<chat::Prompt>* prompts : {&tasks(), &questions()}) {
    const std::vector<Reply> replies = run({.prompts = prompts, .count = count, .stops = true});
    for (int i = 0; i < count && text.size() < 1000; ++i) {
      text.insert(text.end(), (*prompts)[i].tokens.begin(), (*prompts)[i].tokens.end());
      text.insert(text.end(), replies[i].tokens.begin(), replies[i].tokens.end());
    }
  }
  expect_close_to_ref(*package(), "conversations", text);
}

// And where the model knows little, so that small differences show most: prose of a kind it was not trained on.
TEST_F(Builtin, CpuLogitsAreCloseToRefInForeignText) {
  std::ifstream file(source_folder() / "LICENSE");
  const std::string prose{std::istreambuf_iterator<char>(file), {}};
  const auto assets = text::load_text_assets(*package()->tokenizer_folder());
  ASSERT_TRUE(assets.has_value()) << assets.error().message;
  const text::Segment segment{prose};
  std::vector<Token> text = assets->tokenizer->encode(std::span(&segment, 1));
  ASSERT_GT(text.size(), 1000u);
  text.resize(1000);
  expect_close_to_ref(*package(), "a licence", text);
}

}  // namespace
}  // namespace splash
