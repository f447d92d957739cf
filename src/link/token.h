// Token ids, the only currency of the corridor.
#pragma once

#include <cstdint>

namespace splash {

using Token = std::int32_t;

}  // namespace splash
