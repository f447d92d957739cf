// The neutral conversation that every API dialect is turned into.
#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <vector>

namespace splash::chat {

enum class Role { system, user, assistant, tool };

struct ToolCall {
  std::string id;
  std::string name;
  boost::json::object arguments;
};

struct Message {
  Role role = Role::user;
  std::string content;               // text; images come with a later issue
  std::string reasoning;             // assistant only
  std::vector<ToolCall> tool_calls;  // assistant only
  std::string tool_call_id;          // tool only
};

struct Tool {
  std::string name;
  boost::json::object definition;  // {"type": "function", "function": {...}} as the client gave it
  boost::json::object parameters;  // its JSON schema; may be empty
};

struct Conversation {
  std::vector<Message> messages;
  std::vector<Tool> tools;
  boost::json::object template_variables;  // enable_thinking, reasoning_effort, ...
};

}  // namespace splash::chat
