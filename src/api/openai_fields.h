// Fields that the OpenAI dialects share: model, sampling, limits, stop strings, tools, messages.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/backend.h"
#include "api/error.h"
#include "api/generation.h"
#include "api/json.h"
#include "chat/conversation.h"

namespace splash::api {

inline constexpr int max_messages = 10'000;
inline constexpr int max_tools = 1024;
inline constexpr int max_tool_name_bytes = 128;
inline constexpr int max_stop_strings = 4;
inline constexpr int max_stop_bytes = 1024;
inline constexpr double least_sampled_temperature = 0.01;  // smaller ones, but not 0, are raised to it

// The served model or one of its aliases; absent = the served one.
Answer<std::monostate> check_model(const Fields& fields, const Backend& backend);

Result<link::Sampling> read_sampling(const Fields& fields, const SamplingDefaults& defaults);
Result<std::vector<std::string>> read_stop(const Fields& fields);
Result<std::optional<Duration>> read_time_limit(const Fields& fields);

Result<std::vector<chat::Tool>> read_tools(const Fields& fields);

// "auto", "none", absent. The others are refused by name until their grammar is here.
enum class ToolChoice { automatic, none };
Result<ToolChoice> read_tool_choice(const Fields& fields, bool has_tools);

// reasoning_effort, enable_thinking, preserve_thinking and chat_template_kwargs, as template variables.
Result<json::object> read_template_variables(const Fields& fields, const std::optional<std::string>& default_effort);

// Text of a string, null, or an array of text parts.
Result<std::string> read_text_content(const Fields& fields, std::string_view name);

}  // namespace splash::api
