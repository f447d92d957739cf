// Where concrete things meet: a model argument becomes a package, a memory plan, a model, an engine and its thread.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "api/backend.h"
#include "cache/plan.h"
#include "engine/engine.h"
#include "engine/engine_thread.h"
#include "models/registry.h"
#include "pack/package.h"
#include "text/assets.h"

namespace splash::app {

// Most rows of one step's prefill; sizes the scratch memory. 2,048 fill a GPU's waves (0011); where lanes decode beside
// it the scheduler gives fewer.
constexpr int prefill_rows(models::Backend backend) { return backend == models::Backend::cuda ? 2048 : 512; }

// Options that every verb with a model has.
struct ModelOptions {
  std::string model;  // a folder; empty: the built-in model
  std::string draft;  // a DFlash 2 folder for a source without one
  std::string weights = "q4";
  std::string backend = "auto";
  std::string isa;  // empty: SPLASH_ISA, else the best the machine has
  int device = -1;  // of several GPUs; -1: the first that can
  int threads = 0;  // 0: all
  int lanes = 0;    // 0: as the machine allows
  int context = 0;  // 0: as the model and the machine allow
  std::string max_memory;
  bool plain = false;  // one-row steps without the draft
};

void add_model_options(CLI::App& verb, ModelOptions& options);

// The folder of the built-in model: beside the binary's build or install tree, or where it was built.
Result<std::string> builtin_model();

// "64M", "1.5GiB" or plain bytes.
Result<std::int64_t> parse_size(const std::string& text);

Result<models::BackendChoice> chosen_backend(const ModelOptions& options, const pack::Package& package);
// For people: "cpu avx512vnni, 2 threads".
Result<std::string> describe_device(models::Backend backend, int index, const std::string& isa, int threads);
std::string chosen_isa(const ModelOptions& options);
int chosen_threads(const ModelOptions& options);
// `stop` ends the packing of a source folder.
Result<std::shared_ptr<const pack::Package>> open_package(const ModelOptions& options,
                                                          const std::atomic<bool>* stop = nullptr);

// For people and for /v1/models.
std::string model_name(const ModelOptions& options, const pack::Package& package);

// A model ready to serve. Destroy it after everything that posts to its engine.
class Runtime {
 public:
  // `say` is told what is going on, a line at a time; `on_lost`, on the engine's thread, that the device is gone, after
  // every request was told.
  static Result<std::unique_ptr<Runtime>> open(const ModelOptions& options,
                                               const std::function<void(const std::string&)>& say,
                                               const std::atomic<bool>* stop = nullptr,
                                               std::function<void(const Error&)> on_lost = {});
  ~Runtime() { stop(Duration::zero()); }

  const std::string& name() const { return name_; }
  const pack::Package& package() const { return *package_; }
  const cache::MemoryPlan& plan() const { return plan_; }
  const model::Facts& facts() const { return model_->facts(); }
  const text::TextAssets& text() const { return text_; }
  engine::Engine& engine() { return *engine_; }
  std::string device() const { return device_; }  // "cpu avx512vnni, 2 threads", "cuda NVIDIA H200"

  // Everything the dialects need. Grammars need a trie over the vocabulary, built in the background.
  enum class Grammars { none, in_background };
  api::Backend backend(Grammars grammars = Grammars::in_background);

  // Lets running requests go on for up to `grace`, then fails them; every sink has had its last event.
  void stop(Duration grace);

 private:
  Runtime() = default;
  Status open_model(const ModelOptions& options, const std::function<void(const std::string&)>& say,
                    std::function<void(const Error&)> on_lost);
  Status make_plan(const ModelOptions& options, const models::OpenOptions& open);

  std::string name_;
  std::shared_ptr<const pack::Package> package_;
  text::TextAssets text_;
  cache::MemoryPlan plan_;
  std::string device_;
  SteadyClock clock_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<engine::EngineThread> thread_;
};

api::EngineStatus status_of(const engine::Counters& counters);

}  // namespace splash::app
