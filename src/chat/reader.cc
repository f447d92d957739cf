#include "chat/reader.h"

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "chat/argument.h"
#include "chat/markup.h"
#include "chat/stop_filter.h"

namespace splash::chat {

using markup::Cursor;
using markup::Match;

namespace {

// Unique across turns and conversations, for clients keep them all.
std::string new_call_id() {
  constexpr std::string_view letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  thread_local std::mt19937_64 generator{std::random_device{}()};
  std::uniform_int_distribution<std::size_t> pick(0, letters.size() - 1);
  std::string id = "call_";
  for (int i = 0; i < 24; ++i) id += letters[pick(generator)];
  return id;
}

// Writes the arguments of one call as pieces of a JSON object. Strings go out as they arrive, other values at their
// end, when their type can be told.
class ArgumentWriter {
 public:
  ArgumentWriter() = default;
  explicit ArgumentWriter(const Tool* tool) : tool_(tool) {}

  bool knows(const std::string& key) const { return seen_.contains(key); }
  bool declares(const std::string& key) const {
    const auto* properties = tool_->parameters.if_contains("properties");
    const auto* object = properties == nullptr ? nullptr : properties->if_object();
    return object != nullptr && object->contains(key);
  }

  void open(const std::string& key, std::string& json) {
    repeated_ = !seen_.insert(key).second;  // the first value counts
    text_.clear();
    if (repeated_) return;
    types_ = declared_types(tool_->parameters, key);
    json += seen_.size() == 1 ? "{\"" : ",\"";
    append_json_escaped(key, json);
    json += types_.only_string() ? "\":\"" : "\":";
  }
  void append(std::string_view text, std::string& json) {
    if (repeated_) return;
    if (types_.only_string()) {
      append_json_escaped(text, json);
    } else {
      text_ += text;
    }
  }
  void close(std::string& json) {
    if (repeated_) return;
    json += types_.only_string() ? "\"" : argument_json(text_, types_);
  }
  void finish(std::string& json) const { json += seen_.empty() ? "{}" : "}"; }

 private:
  const Tool* tool_ = nullptr;
  std::set<std::string> seen_;
  TypeSet types_;
  std::string text_;  // of a value that is not streamed
  bool repeated_ = false;
};

// What stands at a bracket or control token inside a parameter's value.
struct Mark {
  enum Kind { none, undecided, opener, parameter, call_end } kind = none;
  std::size_t end = 0;  // after the mark
  std::string key;      // of the next parameter
  bool bare = false;    // a call end by `</tool_call>` alone
};

}  // namespace

// The text at hand that is not yet given out is `in`; each mode's step looks at its front. A value's end can only be
// told from a value that quotes the markup by what follows, so the rules are:
//   - `</parameter>` ends a value if `<parameter=`, `</function>` or `</tool_call>` follows (or the reply ends), since
//     models forget closers so do a declared, not yet given `<parameter=KEY>` on a line of its own, `</function>`
//     before
//     `</tool_call>`, and the control token `</tool_call>`;
//   - markup nested in the value (a quoted call) has its own closers;
//   - a call's end is held until another call opens or the reply ends. If more closers arrive instead that no opener
//     explains, the held end was part of the value, and the later one is held: the last match wins.
struct ReplyReader::State {
  enum class Mode { reasoning, content, value };
  // A possible end of the call: the value ends at `value_end`, its markup at `end`.
  struct HeldEnd {
    std::size_t value_end = 0;
    std::size_t end = 0;
    bool nested = false;  // closes a quoted call: the end of the real one only if nothing better follows
  };

  State(std::shared_ptr<const text::Tokenizer> tokenizer_, ReaderOptions options_)
      : tokenizer(std::move(tokenizer_)), options(std::move(options_)), detokenizer(tokenizer), stops(options.stop) {
    mode = options.starts_in_reasoning && options.parse_reasoning ? Mode::reasoning : Mode::content;
    controls = {std::pair{tokenizer->id_of(markup::think_open_text), markup::think_open},
                std::pair{tokenizer->id_of(markup::think_close_text), markup::think_close},
                std::pair{tokenizer->id_of(markup::call_open_text), markup::call_open},
                std::pair{tokenizer->id_of(markup::call_close_text), markup::call_close}};
  }

  void read(Token token) {
    for (const auto& [id, control] : controls) {
      if (id != token || !tokenizer->is_added(token)) continue;
      in += detokenizer.flush();  // a control token ends a character that is not whole
      in += control;
      return;
    }
    in += detokenizer.push(token);
  }

  void advance() {
    while (!stops.met()) {
      const bool moved = mode == Mode::reasoning ? step_reasoning()
                         : mode == Mode::content ? step_content()
                                                 : step_value();
      if (!moved) return;
    }
    in.clear();
  }

  // --- reasoning: everything up to `</think>` or a call, without the line breaks around it ---

  bool step_reasoning() {
    const std::size_t text_end = std::min(in.find_first_of(all_controls), in.size());
    reasoning_text(in.substr(0, text_end));
    in.erase(0, text_end);
    if (in.empty()) return false;
    if (in[0] == markup::call_open && !options.tools.empty()) return step_call();
    if (in[0] == markup::think_close) {
      end_reasoning();
    } else if (in[0] != markup::think_open || reasoning_begun) {
      reasoning_text(markup::spelled_out(in.substr(0, 1)));
    }
    in.erase(0, 1);
    return true;
  }

  void reasoning_text(std::string_view text) {
    if (!reasoning_begun) {
      const std::size_t begin = text.find_first_not_of("\r\n");
      if (begin == std::string_view::npos) return;
      text.remove_prefix(begin);
    }
    reasoning_begun = true;
    const std::size_t last = text.find_last_not_of("\r\n");
    if (last == std::string_view::npos) {
      reasoning_breaks += text;
      return;
    }
    std::string piece = std::exchange(reasoning_breaks, std::string(text.substr(last + 1)));
    piece += text.substr(0, last + 1);
    emit_text<ReasoningDelta>(std::move(piece));
  }

  void end_reasoning() {
    reasoning_breaks.clear();
    mode = Mode::content;
    skip_breaks = true;
  }

  // --- content: text, with stop strings, and calls; white space that only frames calls is dropped ---

  bool step_content() {
    const std::size_t text_end = std::min(in.find_first_of(all_controls), in.size());
    content_text(in.substr(0, text_end));
    in.erase(0, text_end);
    if (in.empty() || stops.met()) return false;
    if (in[0] == markup::call_open && !options.tools.empty()) return step_call();
    const char control = in[0];
    in.erase(0, 1);
    if (control == markup::think_close && options.parse_reasoning) {
      skip_breaks = !content_begun;
    } else if (control == markup::think_open && options.parse_reasoning && !content_begun && calls == 0) {
      spaces.clear();
      stops.flush();  // white space at most
      mode = Mode::reasoning;
    } else {
      content_text(markup::spelled_out({&control, 1}));
    }
    return true;
  }

  void content_text(std::string_view text) {
    if (skip_breaks) {
      const std::size_t begin = text.find_first_not_of("\r\n");
      if (begin == std::string_view::npos) return;
      text.remove_prefix(begin);
      skip_breaks = false;
    }
    spaced_text(stops.push(text));
    if (stops.met()) release_spaces();
  }

  // White space at the text's end, unless a call is all that it touches.
  void release_spaces() {
    std::string last = std::exchange(spaces, {});
    if (!frames_call) emit_text<TextDelta>(std::move(last));
  }

  void spaced_text(std::string_view text) {
    if (options.tools.empty() && content_begun) {
      emit_text<TextDelta>(std::string(text));
      return;
    }
    const std::size_t first = std::min(text.find_first_not_of(" \t\r\n"), text.size());
    spaces += text.substr(0, first);
    text.remove_prefix(first);
    if (text.empty()) return;
    if (frames_call && !content_begun) spaces.clear();
    const std::size_t last = text.find_last_not_of(" \t\r\n");
    std::string piece = std::exchange(spaces, std::string(text.substr(last + 1)));
    piece += text.substr(0, last + 1);
    frames_call = false;
    content_begun = true;
    emit_text<TextDelta>(std::move(piece));
    if (options.tools.empty()) emit_text<TextDelta>(std::exchange(spaces, {}));  // there is no call to frame
  }

  // --- calls ---

  const Tool* tool_named(const std::string& name) const {
    const auto tool =
        std::find_if(options.tools.begin(), options.tools.end(), [&](const Tool& t) { return t.name == name; });
    return tool == options.tools.end() ? nullptr : &*tool;
  }

  Match call_header(Cursor& cursor, const Tool*& tool) const {
    ++cursor.at;  // the control token
    std::string name;
    if (cursor.space() == Match::more) return Match::more;
    if (const Match match = cursor.named("<function=", name); match != Match::yes) return match;
    tool = tool_named(name);
    return tool == nullptr ? Match::no : Match::yes;
  }

  // At a `<tool_call>`: opens the call, or gives the token out as text if no call of an offered tool follows.
  bool step_call() {
    Cursor cursor{in, closed};
    const Tool* tool = nullptr;
    std::string key;
    Match match = call_header(cursor, tool);
    if (match == Match::yes) match = cursor.space();
    if (match == Match::yes) match = cursor.named("<parameter=", key);
    if (match == Match::no && tool != nullptr) {
      match = cursor.at_end() ? Match::yes : call_end(cursor);
    }
    if (match == Match::more) return false;
    if (match == Match::no) {
      in.erase(0, 1);
      if (mode == Mode::reasoning) {
        reasoning_text(markup::call_open_text);
      } else {
        content_text(markup::call_open_text);
      }
      return true;
    }
    in.erase(0, cursor.at);
    open_call(tool);
    if (key.empty()) {
      close_call();
    } else {
      open_parameter(key);
    }
    return true;
  }

  // `</function>` with or without `</tool_call>`, or the latter alone.
  Match call_end(Cursor& cursor) const {
    if (const Match match = cursor.literal("</function>"); match != Match::yes)
      return either(match, call_close(cursor));
    Cursor further = cursor;
    if (further.space() == Match::more) return Match::more;
    const Match match = call_close(further);
    if (match == Match::yes) cursor = further;
    return match == Match::more ? match : Match::yes;
  }

  static Match either(Match first, Match second) {
    if (first == Match::yes || second == Match::yes) return Match::yes;
    return first == Match::more || second == Match::more ? Match::more : Match::no;
  }
  static Match call_close(Cursor& cursor) {
    return cursor.control_or_literal(markup::call_close, markup::call_close_text);
  }

  void open_call(const Tool* tool) {
    if (mode == Mode::reasoning) end_reasoning();
    spaced_text(stops.flush());
    frames_call = true;
    skip_breaks = false;
    arguments = ArgumentWriter(tool);
    events.push_back(ToolCallStart{calls++, new_call_id(), tool->name});
  }

  void close_call() {
    std::string json;
    arguments.finish(json);
    emit_arguments(std::move(json));
    events.push_back(ToolCallEnd{calls - 1});
    mode = Mode::content;
  }

  void open_parameter(const std::string& key) {
    std::string json;
    arguments.open(key, json);
    emit_arguments(std::move(json));
    mode = Mode::value;
    value_begun = false;
    scanned = 0;
    nested = quoted = 0;
    held.reset();
  }

  void close_parameter(std::size_t value_end, std::size_t markup_end) {
    value_text(value_end);
    const std::size_t rest = markup_end - value_end + (in.starts_with('\n') ? 1 : 0);
    std::string json;
    arguments.close(json);
    emit_arguments(std::move(json));
    in.erase(0, rest);
  }

  // Gives out the value's text before `end`, but not a line break right there: it may belong to the closer.
  void value_text(std::size_t end) {
    if (end > 0 && in[end - 1] == '\n') --end;
    if (end == 0) return;
    std::string json;
    arguments.append(markup::spelled_out(std::string_view(in).substr(0, end)), json);
    emit_arguments(std::move(json));
    in.erase(0, end);
    scanned -= std::min(scanned, end);
    if (held) {
      held->value_end -= end;
      held->end -= end;
    }
  }

  bool step_value() {
    if (!value_begun) {
      if (in.empty() && !closed) return false;
      if (in.starts_with('\n')) in.erase(0, 1);
      value_begun = true;
    }
    while (true) {
      const std::size_t at = std::min(in.find_first_of(value_marks, scanned), in.size());
      const Mark mark = at == in.size() ? Mark{Mark::undecided} : mark_at(at);
      if (mark.kind == Mark::undecided) {
        scanned = at;
        if (!closed) {
          value_text(held ? held->value_end : at);
          return false;
        }
        return end_value_with_reply();
      }
      if (mark.kind == Mark::none) {
        scanned = at + 1;
        continue;
      }
      if (take_mark(at, mark)) return true;
      scanned = mark.end;
    }
  }

  // Acts on a mark; true if it ended the value.
  bool take_mark(std::size_t at, const Mark& mark) {
    const bool ended = held && !held->nested;  // the call is over unless closers without an opener follow
    if (mark.kind == Mark::opener) {
      const bool by_token = in[at] == markup::call_open;
      if (ended && by_token) return end_call_as_held();
      ++(ended ? quoted : nested);
      return false;
    }
    if (ended && (mark.bare || quoted > 0)) {
      if (quoted > 0 && mark.kind == Mark::call_end) --quoted;
      return false;
    }
    if (mark.kind == Mark::parameter) {
      if (!ended && nested > 0) return false;
      held.reset();
      close_parameter(at, mark.end);
      open_parameter(mark.key);
      return true;
    }
    const bool closes_quote = !ended && nested > 0;
    if (closes_quote) --nested;
    held = HeldEnd{at, mark.end, closes_quote};
    return false;
  }

  bool end_call_as_held() {
    const HeldEnd end = *held;
    held.reset();
    close_parameter(end.value_end, end.end);
    close_call();
    return true;
  }

  // The reply is over inside a value.
  bool end_value_with_reply() {
    if (held) return end_call_as_held();
    close_parameter(in.size(), in.size());
    in.clear();
    close_call();
    return true;
  }

  Mark mark_at(std::size_t at) const {
    Cursor cursor{in, closed, at};
    if (in[at] == markup::call_close) return {Mark::call_end, at + 1, {}, true};
    if (const Mark mark = opener_at(at); mark.kind != Mark::none) return mark;
    if (in[at] != '<') return {};
    std::string key;
    const Match parameter_end = cursor.literal("</parameter>");
    if (parameter_end == Match::yes) {
      if (cursor.space() == Match::more) return {Mark::undecided};
      if (cursor.at_end()) return {Mark::call_end, cursor.at};
      const Match next = cursor.named("<parameter=", key);
      if (next == Match::yes) return {Mark::parameter, cursor.at, key};
      const Match end = call_end(cursor);
      if (end == Match::yes) return {Mark::call_end, cursor.at};
      return {either(next, end) == Match::more ? Mark::undecided : Mark::none};
    }
    // Forgotten `</parameter>`.
    const Match function_end = cursor.literal("</function>");
    if (function_end == Match::yes) {
      if (cursor.space() == Match::more) return {Mark::undecided};
      const Match end = cursor.at_end() ? Match::yes : call_close(cursor);
      if (end == Match::yes) return {Mark::call_end, cursor.at};
      return {end == Match::more ? Mark::undecided : Mark::none};
    }
    const Match next = next_parameter(cursor, key);
    if (next == Match::yes) return {Mark::parameter, cursor.at, key};
    return {either(either(parameter_end, function_end), next) == Match::more ? Mark::undecided : Mark::none};
  }

  // A `<tool_call>` in a value, by token or spelled out, with a function: a quoted call.
  Mark opener_at(std::size_t at) const {
    Cursor cursor{in, closed, at};
    std::string name;
    Match match = cursor.control_or_literal(markup::call_open, markup::call_open_text);
    if (match == Match::yes) match = cursor.space();
    if (match == Match::yes) match = cursor.named("<function=", name);
    // After the call's end only a call of an offered tool is one; before it any quoted call is.
    if (match == Match::yes && held && !held->nested && in[at] == markup::call_open && tool_named(name) == nullptr)
      return {};
    if (match == Match::yes) return {Mark::opener, cursor.at};
    return {match == Match::more ? Mark::undecided : Mark::none};
  }

  // A parameter that begins on its own line though the one before was not closed: only one that the tool declares and
  // that was not given yet, for any other text may look like it.
  Match next_parameter(Cursor& cursor, std::string& key) const {
    const std::size_t at = cursor.at;
    Match match = cursor.named("<parameter=", key);
    if (match != Match::yes) return match;
    if (at == 0 || in[at - 1] != '\n' || !arguments.declares(key) || arguments.knows(key)) return Match::no;
    if (cursor.at_end()) return closed ? Match::no : Match::more;
    return in[cursor.at] == '\n' ? Match::yes : Match::no;
  }

  // --- giving out ---

  template <class Delta>
  void emit_text(std::string text) {
    if (text.empty()) return;
    if (!events.empty()) {
      if (auto* last = std::get_if<Delta>(&events.back())) {
        last->text += text;
        return;
      }
    }
    events.emplace_back(std::in_place_type<Delta>, std::move(text));
  }

  void emit_arguments(std::string json) {
    if (json.empty()) return;
    if (!events.empty()) {
      if (auto* last = std::get_if<ToolCallArguments>(&events.back())) {
        last->json += json;
        return;
      }
    }
    events.emplace_back(std::in_place_type<ToolCallArguments>, calls - 1, std::move(json));
  }

  void finish(ReplyEnd end) {
    if (closed) return;
    in += detokenizer.flush();
    advance();
    // What a cut leaves of a call stays unfinished: it is neither closed nor shown as text.
    const bool in_call = mode == Mode::value ? !held : in.starts_with(markup::call_open);
    closed = true;
    if (end == ReplyEnd::cut && in_call) return;
    advance();
    spaced_text(stops.flush());
    release_spaces();
  }

  static constexpr std::string_view all_controls = "\xF8\xF9\xFA\xFB";
  static constexpr std::string_view value_marks = "<\xFA\xFB";

  std::shared_ptr<const text::Tokenizer> tokenizer;
  ReaderOptions options;
  text::Detokenizer detokenizer;
  StopFilter stops;
  std::array<std::pair<std::optional<Token>, char>, 4> controls;
  std::vector<OutputEvent> events;

  std::string in;
  bool closed = false;
  Mode mode = Mode::content;

  bool reasoning_begun = false;
  std::string reasoning_breaks;  // line breaks that may be the last

  bool content_begun = false;
  bool skip_breaks = false;  // right after `</think>`
  bool frames_call = false;  // `spaces` touches a call
  std::string spaces;        // white space that may only frame a call

  int calls = 0;
  ArgumentWriter arguments;
  bool value_begun = false;
  std::size_t scanned = 0;  // no mark begins before
  int nested = 0;           // quoted calls open in the value
  int quoted = 0;           // quoted calls open in the text after the held end
  std::optional<HeldEnd> held;
};

ReplyReader::ReplyReader(std::shared_ptr<const text::Tokenizer> tokenizer, ReaderOptions options)
    : state_(std::make_unique<State>(std::move(tokenizer), std::move(options))) {}

ReplyReader::~ReplyReader() = default;

std::vector<OutputEvent> ReplyReader::push(std::span<const Token> tokens) {
  if (state_->closed) return {};
  for (const Token token : tokens) {
    state_->read(token);
    state_->advance();
  }
  return std::exchange(state_->events, {});
}

std::vector<OutputEvent> ReplyReader::finish(ReplyEnd end) {
  state_->finish(end);
  return std::exchange(state_->events, {});
}

bool ReplyReader::stopped() const { return state_->stops.met(); }
const std::string& ReplyReader::stop_string() const { return state_->stops.stop(); }
bool ReplyReader::has_tool_calls() const { return state_->calls > 0; }

}  // namespace splash::chat
