// Addresses and memory of a device apart from each other, by the driver's own calls (the runtime has none): what a growing
// pool lies in.
#pragma once

#include <memory>

#include "backend/growing_memory.h"

namespace splash::cuda {

// Memory of device `index`. An error where its driver has no virtual memory management.
Result<std::unique_ptr<MemoryMapper>> device_mapper(int index);

}  // namespace splash::cuda
