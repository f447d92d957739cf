#include "text/assets.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <fstream>
#include <iterator>
#include <utility>

namespace splash::text {
namespace {

std::optional<std::string> read_file(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return std::nullopt;
  return std::string{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// The object in `file`; empty if there is no such file.
Result<boost::json::object> read_object(const std::string& file) {
  const std::optional<std::string> text = read_file(file);
  if (!text) return boost::json::object{};
  boost::system::error_code error;
  boost::json::value value = boost::json::parse(*text, error);
  if (error) return fail_parameter(ErrorKind::corrupt, file, "{}: {}", file, error.message());
  if (!value.is_object()) return fail_parameter(ErrorKind::corrupt, file, "{} holds no JSON object", file);
  return std::move(value.as_object());
}

// A special token in tokenizer_config.json is its text or an object with `content`.
std::optional<std::string> token_text(const boost::json::value& value) {
  const boost::json::value* text = &value;
  if (const auto* object = value.if_object()) {
    text = object->if_contains("content");
    if (text == nullptr) return std::nullopt;
  }
  if (const auto* string = text->if_string()) return std::string(*string);
  return std::nullopt;
}

// The text of `chat_template`: a string, or a list of named ones of which "default" is meant.
std::optional<std::string> template_text(const boost::json::object& config) {
  const boost::json::value* value = config.if_contains("chat_template");
  if (value == nullptr) return std::nullopt;
  if (const auto* text = value->if_string()) return std::string(*text);
  const auto* variants = value->if_array();
  if (variants == nullptr) return std::nullopt;
  for (const boost::json::value& variant : *variants) {
    const auto* object = variant.if_object();
    if (object == nullptr) continue;
    const auto* name = object->if_contains("name");
    const auto* text = object->if_contains("template");
    if (name != nullptr && text != nullptr && *name == "default" && text->is_string())
      return std::string(text->as_string());
  }
  return std::nullopt;
}

Result<std::shared_ptr<const ChatTemplate>> load_template(const std::string& folder,
                                                          const boost::json::object& tokenizer_config) {
  std::string file = folder + "/chat_template.jinja";
  std::optional<std::string> source = read_file(file);
  if (!source) {
    file = folder + "/tokenizer_config.json";
    source = template_text(tokenizer_config);
  }
  if (!source) return nullptr;
  boost::json::object constants;
  for (const char* name : {"bos_token", "eos_token", "pad_token", "unk_token"}) {
    const boost::json::value* value = tokenizer_config.if_contains(name);
    if (value == nullptr) continue;
    if (std::optional<std::string> text = token_text(*value)) constants[name] = *text;
  }
  auto compiled = ChatTemplate::compile(*source, constants);
  if (!compiled) {
    Error error = std::move(compiled).error();
    error.kind = ErrorKind::corrupt;
    error.message = file + ": " + error.message;
    error.parameter = file;
    return tl::unexpected(std::move(error));
  }
  return compiled;
}

std::vector<Token> stop_tokens(const boost::json::object& generation_config, const Tokenizer& tokenizer) {
  std::vector<Token> tokens;
  const auto add = [&](const boost::json::value& id) {
    if (!id.is_int64()) return;
    const std::int64_t token = id.as_int64();
    if (token >= 0 && token < tokenizer.size()) tokens.push_back(static_cast<Token>(token));
  };
  if (const boost::json::value* eos = generation_config.if_contains("eos_token_id")) {
    if (const auto* list = eos->if_array()) {
      for (const boost::json::value& id : *list) add(id);
    } else {
      add(*eos);
    }
  }
  // A config's own eos is often `<|endoftext|>` alone; a chat ends at `<|im_end|>`.
  for (const char* name : {"<|im_end|>", "<|endoftext|>"}) {
    if (const std::optional<Token> token = tokenizer.id_of(name)) tokens.push_back(*token);
  }
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

SamplingDefaults sampling_defaults(const boost::json::object& generation_config) {
  const auto number = [&](const char* name) -> std::optional<double> {
    const boost::json::value* value = generation_config.if_contains(name);
    if (value == nullptr || !value->is_number()) return std::nullopt;
    return value->to_number<double>();
  };
  SamplingDefaults defaults;
  if (const auto value = number("temperature"); value && *value >= 0) defaults.temperature = static_cast<float>(*value);
  if (const auto value = number("top_k"); value && *value >= 0) defaults.top_k = static_cast<int>(*value);
  if (const auto value = number("top_p"); value && *value > 0 && *value <= 1)
    defaults.top_p = static_cast<float>(*value);
  if (const auto value = number("min_p"); value && *value >= 0 && *value < 1)
    defaults.min_p = static_cast<float>(*value);
  // Hugging Face's way to say greedy; its default is sampling for chat models of this family.
  if (const boost::json::value* sample = generation_config.if_contains("do_sample")) {
    if (sample->is_bool() && !sample->as_bool()) defaults.temperature = 0.0f;
  }
  return defaults;
}

}  // namespace

Result<TextAssets> load_text_assets(const std::string& folder) {
  TextAssets assets;
  SPLASH_TRY(assets.tokenizer, Tokenizer::load(folder));
  SPLASH_TRY(const boost::json::object tokenizer_config, read_object(folder + "/tokenizer_config.json"));
  SPLASH_TRY(const boost::json::object generation_config, read_object(folder + "/generation_config.json"));
  SPLASH_TRY(assets.chat_template, load_template(folder, tokenizer_config));
  assets.stop_tokens = stop_tokens(generation_config, *assets.tokenizer);
  assets.sampling = sampling_defaults(generation_config);
  return assets;
}

}  // namespace splash::text
