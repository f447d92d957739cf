#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "app/bench.h"
#include "app/serve.h"
#include "app/signals.h"
#include "base/log.h"

namespace splash::app {
namespace {

namespace json = boost::json;
using std::chrono::steady_clock;

double seconds_between(TimePoint from, TimePoint to) { return std::chrono::duration<double>(to - from).count(); }

// What one turn of a conversation took.
struct Turn {
  int number = 0;
  double first_token_s = 0, decode_s = 0;  // as the client sees text
  double first_chosen_s = 0;  // the token itself, which may be no whole character or none that is shown
  std::int64_t prompt_tokens = 0, cached_tokens = 0, reply_tokens = 0, steps = 0, accepted = 0;
  std::string reply;
  std::string error;
};

// The least HTTP that a stream needs: one connection, one request, lines as they come.
class StreamClient {
 public:
  explicit StreamClient(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int on = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~StreamClient() { ::close(socket_); }
  StreamClient(const StreamClient&) = delete;
  StreamClient& operator=(const StreamClient&) = delete;

  bool send(std::string_view bytes) {
    while (connected_ && !bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return connected_;
  }
  std::optional<std::string> line() {
    while (true) {
      if (const std::size_t end = unread_.find('\n'); end != std::string::npos) {
        std::string out = unread_.substr(0, end);
        unread_.erase(0, end + 1);
        return out;
      }
      char bytes[65536];
      const ssize_t count = ::recv(socket_, bytes, sizeof bytes, 0);
      if (count <= 0) return std::nullopt;
      unread_.append(bytes, static_cast<std::size_t>(count));
    }
  }

 private:
  int socket_;
  bool connected_ = false;
  std::string unread_;
};

void take_chunk(const json::object& chunk, Turn& turn, TimePoint begun, std::optional<TimePoint>& first,
                TimePoint& last) {
  if (const json::value* error = chunk.if_contains("error")) {
    turn.error = error->at("message").as_string();
    return;
  }
  if (const json::value* numbers = chunk.if_contains("splash")) {
    turn.steps = numbers->at("decode_steps").as_int64();
    turn.accepted = numbers->at("accepted_tokens").as_int64();
    // It comes with the end of the reply, decode_ms behind the first token.
    turn.first_chosen_s =
        seconds_between(begun, steady_clock::now()) - numbers->at("decode_ms").to_number<double>() / 1000;
  }
  if (const json::value* usage = chunk.if_contains("usage"); usage && usage->is_object()) {
    turn.prompt_tokens = usage->at("prompt_tokens").as_int64();
    turn.reply_tokens = usage->at("completion_tokens").as_int64();
    turn.cached_tokens = usage->at("prompt_tokens_details").at("cached_tokens").as_int64();
  }
  const json::array& choices = chunk.at("choices").as_array();
  if (choices.empty()) return;
  const json::object& delta = choices[0].at("delta").as_object();
  for (const char* name : {"content", "reasoning_content"}) {
    const json::value* text = delta.if_contains(name);
    if (!text || text->as_string().empty()) continue;
    last = steady_clock::now();
    if (!first) {
      first = last;
      turn.first_token_s = seconds_between(begun, last);
    }
    if (std::string_view(name) == "content") turn.reply += text->as_string();
  }
}

Turn ask(int port, const json::array& messages, const ServeBenchOptions& options) {
  Turn turn;
  // Greedy: the same replies every time, at widths as the engine chooses them (a stated seed would demand full blocks).
  const std::string body = json::serialize(json::object{{"messages", messages},
                                                        {"stream", true},
                                                        {"stream_options", {{"include_usage", true}}},
                                                        {"max_tokens", options.tokens},
                                                        {"temperature", 0}});
  StreamClient client(port);
  const TimePoint begun = steady_clock::now();
  if (!client.send(
          fmt::format("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                      "Connection: close\r\nContent-Length: {}\r\n\r\n{}",
                      body.size(), body)))
    turn.error = "cannot connect";
  std::optional<TimePoint> first;
  TimePoint last = begun;
  bool done = false;
  while (const auto line = client.line()) {
    if (line->starts_with("{\"error\"")) turn.error = *line;
    if (!line->starts_with("data: ")) continue;
    if (line->starts_with("data: [DONE]"))
      done = true;
    else
      take_chunk(json::parse(line->substr(6)).as_object(), turn, begun, first, last);
  }
  if (!done && turn.error.empty()) turn.error = "the stream ended early";
  if (first) turn.decode_s = seconds_between(*first, last);
  return turn;
}

std::string words(int count, std::uint64_t seed) {
  static constexpr const char* some[] = {"river", "stone", "light", "seven",  "garden",
                                         "paper", "north", "quiet", "engine", "bread"};
  std::string out;
  for (int i = 0; i < count; ++i)
    out += fmt::format("{} ", some[(seed * 7919 + i * i * 31 + i * seed) % std::size(some)]);
  return out;
}

std::vector<Turn> converse(int port, const ServeBenchOptions& options, int client) {
  std::vector<Turn> turns;
  json::array messages;
  for (int number = 0; number < options.turns; ++number) {
    const std::string text = number == 0
                                 ? fmt::format("Conversation {}. {}", client, words(options.prompt_words, client + 1))
                                 : fmt::format("Go on, part {}.", number + 1);
    messages.push_back({{"role", "user"}, {"content", text}});
    turns.push_back(ask(port, messages, options));
    turns.back().number = number;
    if (!turns.back().error.empty()) break;
    messages.push_back({{"role", "assistant"}, {"content", turns.back().reply}});
  }
  return turns;
}

json::object summary(const std::vector<Turn>& turns, double wall_s) {
  std::vector<double> cold, cached, speed;
  std::int64_t tokens = 0, prompt = 0, reused = 0, steps = 0, accepted = 0;
  json::array errors;
  std::vector<std::vector<double>> by_number, chosen_by_number;
  for (const Turn& turn : turns) {
    if (!turn.error.empty()) {
      errors.push_back(json::value(turn.error));
      continue;
    }
    (turn.number == 0 ? cold : cached).push_back(turn.first_token_s);
    by_number.resize(std::max(by_number.size(), static_cast<std::size_t>(turn.number) + 1));
    chosen_by_number.resize(by_number.size());
    by_number[turn.number].push_back(turn.first_token_s);
    chosen_by_number[turn.number].push_back(turn.first_chosen_s);
    if (turn.decode_s > 0) speed.push_back(static_cast<double>(turn.reply_tokens - 1) / turn.decode_s);
    tokens += turn.reply_tokens, prompt += turn.prompt_tokens, reused += turn.cached_tokens;
    steps += turn.steps, accepted += turn.accepted;
  }
  const auto turn_by_turn = [](const std::vector<std::vector<double>>& times) {
    json::array medians;
    for (const auto& of_turn : times) medians.push_back(of_turn.empty() ? 0.0 : median(of_turn));
    return medians;
  };
  return {{"ttft_cold_s", median(cold)},
          {"ttft_cached_s", median(cached)},
          {"ttft_by_turn_s", turn_by_turn(by_number)},
          {"first_chosen_by_turn_s", turn_by_turn(chosen_by_number)},
          {"stream_tokens_per_s", median(speed)},
          {"total_tokens_per_s", static_cast<double>(tokens) / wall_s},
          {"reply_tokens", tokens},
          {"prompt_tokens", prompt},
          {"cached_tokens", reused},
          {"wall_s", wall_s},
          {"tokens_per_step", steps ? 1.0 + static_cast<double>(accepted) / static_cast<double>(steps) : 0.0},
          {"errors", std::move(errors)}};
}

}  // namespace

int run_serve_bench(const ServeBenchOptions& options) {
  StopSignals& stop = StopSignals::take();
  const auto complain = [](const Error& error) {
    fmt::print(stderr, "splash: error: {}\n", error.message);
    return 1;
  };
  spdlog::set_level(spdlog::level::warn);
  const TimePoint started = steady_clock::now();
  auto server = http::Server::bind({.port = 0});
  if (!server) return complain(server.error());
  auto runtime = Runtime::open(options.model, [](const std::string&) {}, stop.flag());
  if (!runtime) return complain(runtime.error());
  const std::string name = (*runtime)->name(), device = (*runtime)->device();
  const int lanes = (*runtime)->plan().lanes;
  api::Backend backend = (*runtime)->backend();
  const auto status = backend.status;
  auto serving = Serving::open(std::move(*server), std::move(*runtime), std::move(backend));
  if (!serving) return complain(serving.error());

  const double ready_s = seconds_between(started, steady_clock::now());
  const int port = (*serving)->port();
  std::vector<std::vector<Turn>> results(options.clients);
  std::vector<std::thread> clients;
  const TimePoint begun = steady_clock::now();
  for (int i = 0; i < options.clients; ++i) clients.emplace_back([&, i] { results[i] = converse(port, options, i); });
  for (std::thread& client : clients) client.join();
  const double wall_s = seconds_between(begun, steady_clock::now());
  std::vector<Turn> turns;
  for (auto& result : results) turns.insert(turns.end(), result.begin(), result.end());
  json::object numbers = summary(turns, wall_s);
  const api::EngineStatus counted = status();
  numbers["ready_s"] = ready_s;
  numbers["between_steps_us"] = counted.between_steps.mean_us();
  numbers["turnover_us"] = counted.turnovers.mean_us();
  numbers["admission_us"] = counted.admission.mean_us();
  numbers["filing_us"] = counted.filing.mean_us();
  numbers["between_steps"] = counted.between_steps.count, numbers["turnovers"] = counted.turnovers.count;
  const bool failed = !numbers.at("errors").as_array().empty();
  if (options.as_json) {
    numbers["model"] = name, numbers["device"] = device, numbers["clients"] = options.clients, numbers["lanes"] = lanes;
    fmt::print("{}\n", json::serialize(numbers));
    return failed;
  }
  const auto number = [&](const char* key) { return numbers.at(key).to_number<double>(); };
  fmt::print(
      "{} · {} · {} clients on {} lanes, {} turns of {} tokens\n"
      "  ready after {:.2f} s\n"
      "  first token  {:.3f} s cold, {:.3f} s in later turns (medians)\n"
      "  a stream     {:.1f} tokens/s (median), {:.2f} tokens/step\n"
      "  all streams  {:.1f} tokens/s; {:.0f} of {:.0f} prompt tokens came from the cache\n"
      "  between two steps the engine takes {:.1f} us, {:.1f} where requests come and go (admission {:.1f}, filing {:.1f}; means)\n",
      name, device, options.clients, lanes, options.turns, options.tokens, ready_s, number("ttft_cold_s"),
      number("ttft_cached_s"), number("stream_tokens_per_s"), number("tokens_per_step"), number("total_tokens_per_s"),
      number("cached_tokens"), number("prompt_tokens"), number("between_steps_us"), number("turnover_us"), number("admission_us"),
      number("filing_us"));
  for (const json::value& error : numbers.at("errors").as_array())
    fmt::print("  error: {}\n", std::string(error.as_string()));
  return failed;
}

}  // namespace splash::app
