#include "app/devices.h"

#include <fmt/format.h>

#include <thread>

#include "app/runtime.h"
#include "backend/cpu/isa.h"
#include "backend/cuda/facts.h"

namespace splash::app {
namespace {

// One line a device; a backend without one gives its reason.
int run_devices() {
  const ModelOptions any;
  if (const auto cpu = describe_device(models::Backend::cpu, -1, chosen_isa(any), chosen_threads(any))) {
    fmt::print("{}\n", *cpu);
  } else {
    fmt::print("cpu   none: {}\n", cpu.error().message);
  }
  const auto gpus = cuda::find_devices();
  if (!gpus) {
    fmt::print("cuda  none: {}\n", gpus.error().message);
    return 0;
  }
  for (const cuda::DeviceFacts& gpu : *gpus) {
    const Status usable = cuda::supported(gpu);
    fmt::print("cuda  --device {}: {}{}\n", gpu.index, cuda::describe(gpu),
               usable ? "" : "; not used: " + usable.error().message);
  }
  return 0;
}

}  // namespace

void add_devices_verb(CLI::App& app, int& exit_code) {
  app.add_subcommand("devices", "what a model can run on here, and why something is missing")
      ->group("Measure")
      ->callback([&exit_code] { exit_code = run_devices(); });
}

}  // namespace splash::app
