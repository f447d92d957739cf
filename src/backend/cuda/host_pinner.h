// Memory of this process that a device copies to and from at full speed.
#pragma once

#include <memory>

#include "backend/places_ahead.h"

namespace splash::cuda {

// For device `index`.
std::unique_ptr<Pinner> host_pinner(int index);

}  // namespace splash::cuda
