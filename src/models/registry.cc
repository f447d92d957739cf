#include "models/registry.h"

#include <algorithm>

#include "backend/cpu/isa.h"
#include "backend/cuda/facts.h"
#include "models/qwen3_5/cuda/open.h"
#include "models/qwen3_5/open.h"

namespace splash::models {

std::string_view name_of(Backend backend) {
  return backend == Backend::ref ? "ref" : backend == Backend::cpu ? "cpu" : "cuda";
}

Result<Backend> backend_named(std::string_view name) {
  for (const Backend backend : {Backend::ref, Backend::cpu, Backend::cuda}) {
    if (name == name_of(backend)) return backend;
  }
  return fail_parameter(ErrorKind::invalid, "backend", "unknown backend \"{}\": there are ref, cpu and cuda", name);
}

Result<BackendChoice> choose_backend(std::string_view name, const pack::Package& package, int index, int max_context) {
  const bool any = name == "auto";
  BackendChoice choice;
  if (!any) {
    SPLASH_TRY(choice.backend, backend_named(name));
    if (choice.backend != Backend::cuda) return choice;
  }
  const int context = max_context > 0 ? max_context : package.target().max_positions;
  const Status ready = qwen3_5::cuda_ready(package, index, context);
  if (ready) return BackendChoice{Backend::cuda, ""};
  if (!any || index >= 0) return tl::unexpected(ready.error());
  return BackendChoice{Backend::cpu, cuda::in_this_build() ? ready.error().message : ""};
}

namespace {

Status check_text(const pack::Package& package, std::span<const Token> text) {
  const pack::TargetGeometry& g = package.target();
  if (text.empty()) return fail(ErrorKind::invalid, "there are no token ids");
  if (std::ssize(text) > g.max_positions) {
    return fail(ErrorKind::invalid, "{} tokens, the model reads at most {}", text.size(), g.max_positions);
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] < 0 || text[i] >= g.vocab_size) {
      return fail(ErrorKind::invalid, "token id {} at index {} is outside the vocabulary of {}", text[i], i,
                  g.vocab_size);
    }
  }
  return {};
}

Result<std::unique_ptr<cpu::Stream>> cpu_stream(int threads, const std::string& isa_name) {
  if (threads < 1) return fail_parameter(ErrorKind::invalid, "threads", "threads must be at least 1, not {}", threads);
  SPLASH_TRY(const cpu::Isa isa, cpu::choose_isa(isa_name));
  return std::make_unique<cpu::Stream>(threads, isa);
}

// Runs `body` with a stream of the device.
template <class Body>
auto on_device(const Device& device, Body&& body) -> Result<decltype(body(std::declval<ref::Stream&>()))> {
  if (device.backend == Backend::ref) {
    ref::Stream stream;
    return body(stream);
  }
  SPLASH_TRY(const auto stream, cpu_stream(device.threads, device.isa));
  return body(*stream);
}

}  // namespace

Result<model::Footprint> footprint(const pack::Package& package, Backend backend, int max_prefill_rows,
                                   int max_context) {
  if (backend == Backend::cuda) {
    return qwen3_5::footprint_on_cuda(package, max_prefill_rows,
                                      max_context > 0 ? max_context : package.target().max_positions);
  }
  const auto format = backend == Backend::ref ? ops::KvFormat::f32 : ops::KvFormat::int8;
  return qwen3_5::footprint(package, format, max_prefill_rows,
                            max_context > 0 ? max_context : package.target().max_positions);
}

Result<std::unique_ptr<model::Model>> open(std::shared_ptr<const pack::Package> package, const OpenOptions& options) {
  const pack::TargetGeometry& g = package->target();
  model::Facts facts;
  facts.name = package->name();
  facts.lanes = options.lanes;
  facts.pages = options.pages;
  facts.snapshots = options.snapshots;
  facts.host_snapshots = options.host_snapshots;
  facts.max_prefill_rows = options.max_prefill_rows;
  facts.max_context =
      std::min(options.max_context > 0 ? options.max_context : options.pages * link::page_tokens, g.max_positions);
  facts.sampling_limit = options.sampling_limit > 0 ? std::min(options.sampling_limit, g.vocab_size) : g.vocab_size;
  if (facts.lanes < 1 || facts.lanes > link::max_lanes || facts.pages < 1 || facts.host_snapshots < 0 ||
      facts.snapshots < facts.host_snapshots || facts.max_prefill_rows < 1 ||
      facts.max_context < 1) {
    return fail(ErrorKind::invalid,
                "a model needs 1 to {} lanes, at least one page and room for a prefill row; asked for {} lanes, {} "
                "pages, {} prefill rows",
                link::max_lanes, facts.lanes, facts.pages, facts.max_prefill_rows);
  }
  if (options.backend == Backend::ref) {
    return qwen3_5::open(std::make_unique<ref::Stream>(), std::move(package), facts);
  }
  if (options.backend == Backend::cuda) return qwen3_5::open_on_cuda(options.index, std::move(package), facts);
  SPLASH_TRY(auto stream, cpu_stream(options.threads, options.isa));
  return qwen3_5::open(std::move(stream), std::move(package), facts);
}

Result<Scores> score(const pack::Package& package, const Device& device, std::span<const Token> text,
                     const ScoreOptions& options) {
  SPLASH_TRY_STATUS(check_text(package, text));
  if (options.chunk < 1) return fail_parameter(ErrorKind::invalid, "chunk", "a chunk has at least one row");
  if (device.backend == Backend::cuda) {
    return qwen3_5::score_on_cuda(device.index, package, text, options.chunk, options.hidden);
  }
  return on_device(device,
                   [&](auto& stream) { return qwen3_5::score(stream, package, text, options.chunk, options.hidden); });
}

Result<DraftReport> draft_report(const pack::Package& package, const Device& device, std::span<const Token> text,
                                 int context) {
  if (package.draft() == nullptr) {
    return fail_parameter(ErrorKind::invalid, "draft", "{} has no draft: name a DFlash 2 folder with --draft",
                          package.folder().string());
  }
  SPLASH_TRY_STATUS(check_text(package, text));
  if (context < 0 || context >= std::ssize(text)) {
    return fail_parameter(ErrorKind::invalid, "context",
                          "a context of {} needs {} token ids (the anchor follows it), there are {}", context,
                          std::int64_t{context} + 1, text.size());
  }
  if (device.backend == Backend::cuda) {
    return qwen3_5::draft_report_on_cuda(device.index, package, text.first(static_cast<std::size_t>(context) + 1), 512);
  }
  return on_device(device, [&](auto& stream) {
    return qwen3_5::draft_report(stream, package, text.first(static_cast<std::size_t>(context) + 1), 512);
  });
}

}  // namespace splash::models
