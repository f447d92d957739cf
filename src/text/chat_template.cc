#include "text/chat_template.h"

#include <boost/json/serialize.hpp>
#include <string_view>
#include <utility>

#include "text/ffi_call.h"

namespace splash::text {
namespace {

// The generation prompt left a think block open.
bool ends_in_reasoning(std::string_view reply_start) {
  const std::size_t open = reply_start.rfind("<think>");
  const std::size_t close = reply_start.rfind("</think>");
  return open != std::string_view::npos && (close == std::string_view::npos || close < open);
}

class JinjaTemplate final : public ChatTemplate {
 public:
  explicit JinjaTemplate(SplashTemplate* handle) : handle_(handle) {}
  ~JinjaTemplate() override { splash_template_close(handle_); }
  JinjaTemplate(const JinjaTemplate&) = delete;
  JinjaTemplate& operator=(const JinjaTemplate&) = delete;

  Result<RenderedPrompt> render(const boost::json::array& messages, const boost::json::array& tools,
                                const boost::json::object& variables) const override {
    FfiBytes text, cuts;
    std::size_t reply_start = 0;
    SPLASH_TRY_STATUS(call(messages, tools, variables, text.out(), cuts.out(), &reply_start));
    return cut(text.text(), cuts.array<std::uint32_t>(), reply_start);
  }

  Result<std::string> render_plain(const boost::json::array& messages, const boost::json::array& tools,
                                   const boost::json::object& variables) const override {
    FfiBytes text;
    std::size_t reply_start = 0;
    SPLASH_TRY_STATUS(call(messages, tools, variables, text.out(), nullptr, &reply_start));
    return std::string(text.text());
  }

 private:
  Status call(const boost::json::array& messages, const boost::json::array& tools, const boost::json::object& variables,
              SplashBytes* text, SplashBytes* cuts, std::size_t* reply_start) const {
    const std::string input =
        boost::json::serialize(boost::json::object{{"messages", messages}, {"tools", tools}, {"variables", variables}});
    auto status = ffi_call("messages", [&](SplashBytes* error) {
      return splash_template_render(handle_, ffi_text(input), text, cuts, reply_start, error);
    });
    if (!status) status.error().parameter = "messages";
    return status;
  }

  static RenderedPrompt cut(std::string_view text, const std::vector<std::uint32_t>& cuts, std::size_t reply_start) {
    RenderedPrompt prompt;
    std::size_t begin = 0;
    for (std::size_t i = 0; i + 1 < cuts.size(); i += 2) {
      const std::size_t end = cuts[i];
      prompt.segments.push_back({std::string(text.substr(begin, end - begin)), cuts[i + 1] != 0});
      if (end <= reply_start) prompt.reply_boundary = prompt.segments.size();
      begin = end;
    }
    prompt.starts_in_reasoning = ends_in_reasoning(text.substr(reply_start));
    return prompt;
  }

  SplashTemplate* handle_;
};

}  // namespace

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::compile(const std::string& source,
                                                                  const boost::json::object& constants) {
  SplashTemplate* handle = nullptr;
  const std::string constants_json = boost::json::serialize(constants);
  auto status = ffi_call("chat template", [&](SplashBytes* error) {
    return splash_template_open(ffi_text(source), ffi_text(constants_json), &handle, error);
  });
  if (!status) return tl::unexpected(std::move(status).error());
  return std::make_shared<const JinjaTemplate>(handle);
}

}  // namespace splash::text
