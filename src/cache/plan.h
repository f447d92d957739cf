// The memory plan: how many lanes, pages and snapshots of a model fit a machine. A pure function, so that it can be
// printed before anything is opened and tested for machines we do not have.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "link/limits.h"
#include "model/model.h"

namespace splash::cache {

struct MachineMemory {
  std::int64_t total_bytes = 0;
  std::int64_t available_bytes = 0;  // what the system would hand out now without swapping
};

// What the operator asked for; 0 = as the machine allows.
struct Wish {
  int lanes = 0;               // up to link::max_lanes
  int context = 0;             // positions of one request; a wish that does not fit is an error, not a smaller plan
  std::int64_t max_bytes = 0;  // upper bound of everything together
};

struct MemoryPlan {
  int lanes = 0;
  int pages = 0;
  int snapshots = 0;
  int host_snapshots = 0;  // of them, where a device has memory of its own: the last ones, in the host's
  int context = 0;  // positions that one request can really reach: prompt and reply together
  std::int64_t weights_bytes = 0;
  std::int64_t scratch_bytes = 0;
  std::int64_t lanes_bytes = 0;
  std::int64_t pages_bytes = 0;
  std::int64_t snapshots_bytes = 0;       // without the host's
  std::int64_t host_snapshots_bytes = 0;  // beside the budget
  std::int64_t reserve_bytes = 0;         // left to the system
  std::int64_t budget_bytes = 0;          // what the plan may use

  std::int64_t used_bytes() const {
    return weights_bytes + scratch_bytes + lanes_bytes + pages_bytes + snapshots_bytes;
  }
};

inline constexpr int minimum_context = 2048;  // a smaller model window counts as its own minimum
inline constexpr int minimum_snapshots = 2;   // before the generation prompt and at the end of a reply

// `model_context` is the number of positions the model was trained for (Facts::max_context).
Result<MemoryPlan> plan(const MachineMemory& machine, const model::Footprint& footprint, int model_context,
                        const Wish& wish);

// The same for a device with memory of its own. Snapshots lie there too, in an eighth of what is to spare beyond one whole
// context; those that do not fit, in a quarter of what the host has to spare. `wish.max_bytes` bounds the device's part.
Result<MemoryPlan> plan_on_device(const MachineMemory& device, const MachineMemory& host,
                                  const model::Footprint& footprint, int model_context, const Wish& wish);

// The plan as the start-up lines show it, one item a line.
std::string describe(const MemoryPlan& plan);

// "1.5 GiB": three significant digits.
std::string format_bytes(std::int64_t bytes);

// This machine, from /proc/meminfo and the cgroup limit.
MachineMemory machine_memory();

}  // namespace splash::cache
