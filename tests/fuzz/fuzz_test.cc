// Everything that reads bytes from outside, fed with thousands of broken inputs. What is asked of it: no crash, no
// exception, no sanitizer report; an accepted input keeps its promises; a refused one says why in valid UTF-8.
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "api/error.h"
#include "api/openai_chat.h"
#include "api/test_backend.h"
#include "http/guard.h"
#include "http/target.h"
#include "pack/config.h"
#include "pack/fixture_testing.h"
#include "pack/manifest.h"
#include "pack/safetensors.h"
#include "text/chat_template.h"
#include "text/grammar.h"
#include "text/test_tokenizer.h"
#include "text/utf8.h"

#include "mutator.h"

namespace splash {
namespace {

namespace json = boost::json;

std::string content_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string content(std::istreambuf_iterator<char>(stream), {});
  EXPECT_FALSE(content.empty()) << file;
  return content;
}

std::filesystem::path in_source(std::string_view name) {
  const char* source = std::getenv("SPLASH_SOURCE");
  return std::filesystem::path(source ? source : ".") / name;
}

bool is_utf8(const std::string& text) {
  std::string bytes = text;
  return text::take_utf8(bytes, text::Utf8End::closed) == text;
}

// How many inputs got through: a mutator whose inputs all fail at the first byte tests nothing.
struct Tally {
  int accepted = 0, refused = 0;

  template <class T>
  bool take(const Result<T>& result) {
    if (result) return ++accepted, true;
    ++refused;
    EXPECT_FALSE(result.error().message.empty());
    return false;
  }
  void expect_both(const char* what) const {
    std::printf("%s: %d accepted, %d refused\n", what, accepted, refused);
    EXPECT_GT(accepted, 0) << what;
    EXPECT_GT(refused, 0) << what;
  }
};

TEST(Fuzz, Manifest) {
  fuzz::Mutator inputs({content_of(in_source("models/tiny/manifest.json"))},
                       fuzz::with_json_words({"\"offset\"", "\"bytes\"", "\"sha256\"", "\"path\"", "\"sections\"", "64", "4096"}), 1);
  Tally tally;
  for (int i = 0; i < 300; ++i) {
    const std::string input = inputs.next();
    const auto manifest = pack::parse_manifest(input, "manifest.json");
    if (!tally.take(manifest)) continue;
    for (const pack::PackedFile& file : manifest->files) EXPECT_TRUE(pack::is_safe_path(file.path)) << i;
    const std::string text = pack::manifest_text(*manifest);
    const auto again = pack::parse_manifest(text, "manifest.json");
    ASSERT_TRUE(again) << i << ": " << again.error().message;
    EXPECT_EQ(pack::manifest_text(*again), text) << i;
  }
  tally.expect_both("manifest");
}

TEST(Fuzz, Safetensors) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
      R"("b":{"dtype":"F32","shape":[],"data_offsets":[12,16]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  file += header + std::string(16, 'x');
  fuzz::Mutator inputs({file}, fuzz::with_json_words({"\"dtype\"", "\"shape\"", "\"data_offsets\"", "[0,12]", "[12,16]", "\"F32\""}), 2);
  Tally tally;
  for (int i = 0; i < 20'000; ++i) {
    const std::string input = inputs.next();
    const auto bytes = std::as_bytes(std::span(input));
    const auto tensors = pack::parse_safetensors(bytes, "a.safetensors");
    if (!tally.take(tensors)) continue;
    for (const pack::TensorView& tensor : *tensors) {
      EXPECT_EQ(static_cast<std::int64_t>(tensor.data.size()), tensor.elements() * pack::dtype_bytes(tensor.dtype)) << i;
      EXPECT_TRUE(tensor.data.empty() || (tensor.data.data() >= bytes.data() &&
                                          tensor.data.data() + tensor.data.size() <= bytes.data() + bytes.size())) << i;
    }
  }
  tally.expect_both("safetensors");
}

TEST(Fuzz, ModelConfigs) {
  const std::string target = content_of(fixture("dense") / "config.json"), mlx = content_of(fixture("dense-mlx4") / "config.json"),
                    draft = content_of(fixture("dense-draft") / "config.json");
  fuzz::Mutator inputs({target, mlx, draft}, fuzz::with_json_words({"\"hidden_size\"", "\"num_hidden_layers\"", "\"layer_types\"", "\"rope_parameters\"",
                                                                  "\"full_attention\"", "65536", "\"quantization\"", "\"block_size\""}), 3);
  Tally targets, drafts;
  for (int i = 0; i < 5'000; ++i) {
    const std::string input = inputs.next();
    if (const auto parsed = pack::parse_target_config(input, "config.json"); targets.take(parsed)) {
      EXPECT_TRUE(pack::check_geometry(parsed->geometry, "config.json")) << i;
    }
    if (const auto parsed = pack::parse_draft_config(input, "config.json"); drafts.take(parsed)) {
      EXPECT_TRUE(pack::check_geometry(parsed->geometry, "config.json")) << i;
    }
  }
  targets.expect_both("target config");
  drafts.expect_both("draft config");
}

TEST(Fuzz, ChatRequests) {
  const std::string messages = R"("messages":[{"role":"system","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"hé 你好"}]}])";
  const std::vector<std::string> seeds = {
      "{" + messages + R"(,"model":"test/model","stream":true,"stream_options":{"include_usage":true},"temperature":0.5,"top_p":0.9,"seed":7})",
      "{" + messages + R"(,"max_tokens":100,"stop":["a","b"],"top_k":5,"min_p":0.1,"response_format":{"type":"json_object"}})",
      "{" + messages + R"(,"tools":[{"type":"function","function":{"name":"get","description":"d","parameters":{"type":"object","properties":{"n":{"type":"integer"}}}}}],"tool_choice":"auto"})",
      "{" + messages + R"(,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object"},"strict":true}}})",
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"get","arguments":"{\"n\":1}"}}]},{"role":"tool","tool_call_id":"c1","content":"2"}]})"};
  fuzz::Mutator inputs(seeds, fuzz::with_json_words({"\"messages\"", "\"role\"", "\"tool_calls\"", "\"content\"", "\"user\"", "\"tool\"", "\"stop\"",
                                                   "\"chat_template_kwargs\":{\"enable_thinking\":true}", "<|im_start|>", "\"max_completion_tokens\":1"}), 4);
  const api::Backend backend = api::test_backend(std::make_shared<api::ScriptedEngine>());
  Tally tally;
  for (int i = 0; i < 20'000; ++i) {
    const std::string input = inputs.next();
    const auto request = api::read_chat_request(input, backend);
    if (request) {
      ++tally.accepted;
      EXPECT_FALSE(request->generation.conversation.messages.empty()) << i;
      EXPECT_GE(request->generation.sampling.temperature, 0.0f) << i;
      continue;
    }
    ++tally.refused;
    EXPECT_TRUE(request.error().status >= 400 && request.error().status < 500) << i << ": " << input;
    EXPECT_TRUE(is_utf8(api::openai_error_response(request.error()).body)) << i << ": " << input;
  }
  tally.expect_both("chat request");
}

TEST(Fuzz, RequestTargets) {
  fuzz::Mutator inputs({"/v1/chat/completions?x=1", "http://127.0.0.1:8080/v1/models", "/a/./b/../c//d%2e%2e/%41#f", "*"},
                       {"..", "%2e%2e", "%2f", "/", "//", "%", "%00", "?", "#", "http://", "@", "[::1]", ":", "\\", "\xff"}, 5);
  Tally tally;
  for (int i = 0; i < 50'000; ++i) {
    const std::string input = inputs.next();
    const auto target = http::parse_target(input);
    if (!tally.take(target)) continue;
    EXPECT_TRUE(target->path == "*" || target->path.starts_with('/')) << input;
    EXPECT_EQ(("/" + target->path + "/").find("/../"), std::string::npos) << input;
    http::host_name(target->authority);
  }
  tally.expect_both("request target");
}

TEST(Fuzz, JsonSchemasOfClients) {
  const auto tokenizer = text::test::synthetic_tokenizer();
  const auto factory = text::GrammarFactory::create(tokenizer, {*tokenizer->id_of("<|im_end|>")}, tokenizer->size());
  ASSERT_TRUE(factory) << factory.error().message;
  fuzz::Mutator inputs({R"({"type":"object","properties":{"a":{"type":"string","maxLength":5},"b":{"type":"array","items":{"type":"integer"}}},"required":["a"]})",
                        R"({"anyOf":[{"enum":["x","y"]},{"type":"number","minimum":0}],"$defs":{"n":{"$ref":"#/$defs/n"}}})",
                        R"({"type":"string","pattern":"^[a-z]{2,5}$"})"},
                       fuzz::with_json_words({"\"$ref\":\"#\"", "\"pattern\":\"(((a*)*)*)*\"", "\"minItems\":4000000000", "\"type\"", "\"allOf\"",
                                              "\"additionalProperties\":false", "\"format\":\"date\""}), 6);
  Tally tally;
  std::vector<std::uint32_t> mask((tokenizer->size() + 31) / 32);
  for (int i = 0; i < 1'500; ++i) {
    const std::string input = inputs.next();
    const auto grammar = (*factory)->json_schema(input);
    if (tally.take(grammar)) (*grammar)->masks_along({}, mask);
  }
  tally.expect_both("JSON schema");
}

TEST(Fuzz, ChatTemplatesAndTokenizersOfModels) {
  const std::string own = text::test::test_data("chat_template_35.jinja");
  fuzz::Mutator templates({own}, {"{%", "%}", "{{", "}}", "{% for x in messages %}", "{% endfor %}", "range(10**9)", "loop", "|tojson", "{%- if", "''", "messages[0]", "~", "undefined.x"}, 7);
  const json::array messages{{{"role", "user"}, {"content", "hi"}}};
  Tally tally;
  for (int i = 0; i < 300; ++i) {
    const auto compiled = text::ChatTemplate::compile(templates.next());
    if (tally.take(compiled)) (void)(*compiled)->render(messages, {}, {{"add_generation_prompt", true}});
  }
  tally.expect_both("chat template");

  const text::test::TemporaryFolder folder;
  fuzz::Mutator tokenizers({text::test::synthetic_tokenizer_json()},
                           fuzz::with_json_words({"\"merges\"", "\"vocab\"", "\"added_tokens\"", "\"Regex\"", "\"type\":\"BPE\"", "\"id\":-5"}), 8);
  Tally loads;
  for (int i = 0; i < 300; ++i) {
    folder.write("tokenizer.json", tokenizers.next());
    const auto loaded = text::Tokenizer::load(folder.path());
    if (!loads.take(loaded)) continue;
    const text::Segment segment{"Hello <think> 123 \xf0\x9f\x98\x80", true};
    for (const Token token : (*loaded)->encode({&segment, 1})) EXPECT_LT(token, (*loaded)->size()) << i;
  }
  loads.expect_both("tokenizer");
}

}  // namespace
}  // namespace splash
