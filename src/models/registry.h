// Opens a model for use: the only place that knows which family a package belongs to and which devices there are.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "model/model.h"
#include "models/probe.h"
#include "pack/package.h"

namespace splash::models {

enum class Backend { ref, cpu, cuda };
std::string_view name_of(Backend backend);
Result<Backend> backend_named(std::string_view name);

// Where a pass runs. isa: a name, or empty for the best this machine has (cpu only). index: of the GPU, -1 for the
// first that can (cuda only).
struct Device {
  Backend backend = Backend::cpu;
  int threads = 1;
  std::string isa;
  int index = -1;
};

// "auto": the fastest that is present and fits the package. `remark` says why that is not a GPU, if it is not; a
// backend that was asked for by name and cannot be had is an error.
struct BackendChoice {
  Backend backend = Backend::cpu;
  std::string remark;
};
Result<BackendChoice> choose_backend(std::string_view name, const pack::Package& package, int index,
                                     int max_context = 0);

struct OpenOptions {
  Backend backend = Backend::cpu;
  int threads = 1;
  std::string isa;
  int index = -1;  // of the GPU
  int lanes = 1;
  int pages = 0;
  int snapshots = 0;
  int host_snapshots = 0;  // cuda: the last ones of them are in host memory
  int max_prefill_rows = 512;
  int max_context = 0;     // positions; 0: what the pages hold, at most what the model was trained for
  int sampling_limit = 0;  // ids at or above it are never chosen (the tokenizer's size); 0: the whole vocabulary
};

// `max_context` sizes the draft's context where it has no window; 0: the model's own limit. cuda: bytes of device
// memory; a snapshot takes the same in either memory.
Result<model::Footprint> footprint(const pack::Package& package, Backend backend, int max_prefill_rows,
                                   int max_context = 0);

Result<std::unique_ptr<model::Model>> open(std::shared_ptr<const pack::Package> package, const OpenOptions& options);

// Logits (and hidden states) of every row of a text.
struct ScoreOptions {
  int chunk = 512;  // rows of one pass
  bool hidden = false;
};
Result<Scores> score(const pack::Package& package, const Device& device, std::span<const Token> text,
                     const ScoreOptions& options);

// One greedy draft block after the first `context` tokens of the text; the anchor is token `context`.
Result<DraftReport> draft_report(const pack::Package& package, const Device& device, std::span<const Token> text,
                                 int context);

}  // namespace splash::models
