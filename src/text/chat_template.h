// The chat template shipped with the model (Jinja), rendered by the crate minijinja, cut into control and user
// segments.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace splash::text {

struct RenderedPrompt {
  std::vector<Segment> segments;
  std::size_t reply_boundary = 0;    // number of segments before the generation prompt
  bool starts_in_reasoning = false;  // the generation prompt left `<think>` open
};

class ChatTemplate {
 public:
  // `source`: the template's text. An error names the line. `constants` (bos_token, eos_token, ...) are template text.
  static Result<std::shared_ptr<const ChatTemplate>> compile(const std::string& source,
                                                             const boost::json::object& constants = {});
  virtual ~ChatTemplate() = default;

  // `messages` and `tools` in the template's own form (tool-call arguments are objects, content strings or part lists).
  // `variables`: enable_thinking, reasoning_effort, preserve_thinking, ... (absent = undefined in the template).
  virtual Result<RenderedPrompt> render(const boost::json::array& messages, const boost::json::array& tools,
                                        const boost::json::object& variables) const = 0;

  // The text alone, as any Jinja engine gives it. The segments above concatenate to it; a template that looks at user
  // text by means that do not see through provenance (comparing it with a control token by `==`, say) is the exception:
  // there the segments hold what it gives for text without control tokens.
  virtual Result<std::string> render_plain(const boost::json::array& messages, const boost::json::array& tools,
                                           const boost::json::object& variables) const = 0;
};

}  // namespace splash::text
