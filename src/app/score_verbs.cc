#include "app/score_verbs.h"

#include <fmt/format.h>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "app/runtime.h"
#include "models/registry.h"
#include "pack/safetensors.h"

namespace splash::app {
namespace {

struct ScoreArguments {
  ModelOptions model;
  std::string tokens;  // a file
  std::string out;
  int chunk = 512;
  bool hidden = false;
  int context = 0;

  ScoreArguments() { model.backend = "cpu"; }
};

// A JSON array of ids.
Result<std::vector<Token>> ids_of_json(const std::string& text, const std::string& file) {
  boost::system::error_code code;
  const boost::json::value value = boost::json::parse(text, code);
  if (code || !value.is_array()) {
    return fail_parameter(ErrorKind::invalid, file,
                          "{}: neither a JSON array of token ids nor a safetensors file with `ids`", file);
  }
  std::vector<Token> ids;
  for (const boost::json::value& item : value.get_array()) {
    const Token id = item.is_number() && !item.is_double() ? item.to_number<Token>(code) : -1;
    if (code || id < 0) {
      return fail_parameter(ErrorKind::invalid, file, "{}: element {} is not a token id", file, ids.size());
    }
    ids.push_back(id);
  }
  return ids;
}

template <class Id>
Result<std::vector<Token>> ids_of_tensor(const pack::TensorView& tensor, const std::string& file) {
  std::vector<Token> ids(static_cast<std::size_t>(tensor.elements()));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    Id id;
    std::memcpy(&id, tensor.data.data() + i * sizeof(Id), sizeof(Id));
    if (id < 0 || id > std::numeric_limits<Token>::max()) {
      return fail_parameter(ErrorKind::invalid, file, "{}: element {} is not a token id", file, i);
    }
    ids[i] = static_cast<Token>(id);
  }
  return ids;
}

// A safetensors file with `ids` of one dimension.
Result<std::vector<Token>> ids_of_safetensors(const std::string& file) {
  SPLASH_TRY(const auto tensors, pack::SafetensorsFile::open(file));
  const pack::TensorView* ids = tensors->find("ids");
  if (ids == nullptr) return fail_parameter(ErrorKind::invalid, file, "{}: has no tensor `ids`", file);
  if (ids->shape.size() != 1 || (ids->dtype != "I32" && ids->dtype != "I64")) {
    return fail_parameter(ErrorKind::invalid, file, "{}: `ids` must be one row of I32 or I64, not {} of {} dimensions",
                          file, ids->dtype, ids->shape.size());
  }
  return ids->dtype == "I32" ? ids_of_tensor<std::int32_t>(*ids, file) : ids_of_tensor<std::int64_t>(*ids, file);
}

Result<std::vector<Token>> read_ids(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream || std::filesystem::is_directory(file)) {
    return fail_parameter(ErrorKind::not_found, file, "{}: cannot be read: {}", file,
                          std::filesystem::is_directory(file) ? "it is a folder" : std::strerror(errno));
  }
  std::string start(9, '\0');
  stream.read(start.data(), 9);
  // safetensors: eight bytes of header length (any of them may look like text, but not all: no header is that long), '{'.
  if (stream.gcount() == 9 && start[7] == '\0' && start[8] == '{') return ids_of_safetensors(file);
  start.resize(static_cast<std::size_t>(stream.gcount()));
  stream.clear();
  return ids_of_json(start + std::string(std::istreambuf_iterator<char>(stream), {}), file);
}

// Errors of a text name the file it came from.
template <class T>
Result<T> about(Result<T> result, const std::string& file) {
  if (!result && result.error().kind == ErrorKind::invalid &&
      (result.error().parameter.empty() || result.error().parameter == "context")) {
    result.error().message = fmt::format("{}: {}", file, result.error().message);
  }
  return result;
}

Result<models::Device> device_of(const ModelOptions& options) {
  SPLASH_TRY(const models::Backend backend, models::backend_named(options.backend));
  return models::Device{backend, chosen_threads(options), chosen_isa(options), options.device};
}

Status run_score(const ScoreArguments& arguments) {
  SPLASH_TRY(const models::Device device, device_of(arguments.model));
  SPLASH_TRY(const std::vector<Token> ids, read_ids(arguments.tokens));
  SPLASH_TRY(const auto package, open_package(arguments.model));
  SPLASH_TRY(const models::Scores scores,
             about(models::score(*package, device, ids, {arguments.chunk, arguments.hidden}), arguments.tokens));
  std::vector<pack::OutputTensor> tensors;
  tensors.push_back({"logits", "F32", {scores.rows, scores.vocab_size}, std::as_bytes(std::span(scores.logits))});
  for (std::size_t i = 0; i < scores.hidden.size(); ++i) {
    tensors.push_back({fmt::format("hidden.{}", i),
                       "F32",
                       {scores.rows, scores.hidden_size},
                       std::as_bytes(std::span(scores.hidden[i]))});
  }
  return pack::write_safetensors(arguments.out, tensors);
}

Status run_draft(const ScoreArguments& arguments) {
  SPLASH_TRY(const models::Device device, device_of(arguments.model));
  SPLASH_TRY(const std::vector<Token> ids, read_ids(arguments.tokens));
  SPLASH_TRY(const auto package, open_package(arguments.model));
  SPLASH_TRY(const models::DraftReport report,
             about(models::draft_report(*package, device, ids, arguments.context), arguments.tokens));
  const int slots = report.block - 1, k = report.candidates_per_slot;
  const pack::OutputTensor tensors[] = {
      {"hidden", "F32", {report.block, report.hidden_size}, std::as_bytes(std::span(report.hidden))},
      {"logits", "F32", {report.block, report.vocab_size}, std::as_bytes(std::span(report.logits))},
      {"candidates", "I32", {slots, k}, std::as_bytes(std::span(report.candidates))},
      {"scores", "F32", {slots, k}, std::as_bytes(std::span(report.scores))},
      {"path", "I32", {slots}, std::as_bytes(std::span(report.path))}};
  return pack::write_safetensors(arguments.out, tensors);
}

void add_common(CLI::App& verb, ScoreArguments& arguments) {
  ModelOptions& model = arguments.model;
  verb.add_option("--model", model.model, "a pack, a Hugging Face folder or an MLX folder")->required();
  verb.add_option("--draft", model.draft, "a DFlash 2 folder, for a source folder");
  verb.add_option("--weights", model.weights, "how a source folder is packed: q4 or source")
      ->check(CLI::IsMember({"q4", "source"}))
      ->capture_default_str();
  verb.add_option("--backend", model.backend, "ref, cpu or cuda")
      ->check(CLI::IsMember({"ref", "cpu", "cuda"}))
      ->capture_default_str();
  verb.add_option("--device", model.device, "number of the GPU")->check(CLI::Range(0, 1023));
  verb.add_option("--threads", model.threads, "0: all cores")->capture_default_str();
  verb.add_option("--isa", model.isa, "scalar, avx2 or avx512vnni; empty: the best of this machine");
  verb.add_option("--tokens", arguments.tokens, "a JSON array of ids, or a safetensors file with `ids`")->required();
}

void add_verb(CLI::App& app, int& exit_code, const char* name, const char* about_verb, Status (*run)(const ScoreArguments&),
              void (*options)(CLI::App&, ScoreArguments&)) {
  CLI::App* verb = app.add_subcommand(name, about_verb);
  auto arguments = std::make_shared<ScoreArguments>();
  add_common(*verb, *arguments);
  options(*verb, *arguments);
  verb->callback([arguments, run, &exit_code] {
    const Status status = run(*arguments);
    if (status) return;
    fmt::print(stderr, "splash: {}\n", status.error().message);
    exit_code = 1;
  });
}

}  // namespace

void add_score_verbs(CLI::App& app, int& exit_code) {
  add_verb(app, exit_code, "score", "write the logits of every position of a text", run_score,
           [](CLI::App& verb, ScoreArguments& arguments) {
             verb.add_option("--logits", arguments.out, "the file to write: `logits` F32 [T, V]")->required();
             verb.add_flag(
                 "--hidden", arguments.hidden,
                 "also `hidden.i` F32 [T, H]: 0 = embeddings, i = residual after layer i (counted from 1), the "
                 "last one after the final norm");
             verb.add_option("--chunk", arguments.chunk, "rows of one pass")
                 ->check(CLI::Range(1, 4096))
                 ->capture_default_str();
           });
  add_verb(app, exit_code, "draft", "write one greedy draft block with all that led to it", run_draft,
           [](CLI::App& verb, ScoreArguments& arguments) {
             verb.add_option("--context", arguments.context, "positions of context; the anchor is the token after them")
                 ->required();
             verb.add_option("--out", arguments.out,
                             "the file to write: `hidden`, `logits`, `candidates`, `scores`, `path`")
                 ->required();
           });
}

}  // namespace splash::app
