// The instruction set is chosen once at start from cpuid and can be forced by name (SPLASH_ISA or a flag).
#pragma once

#include <optional>
#include <string_view>

#include "base/result.h"

namespace splash::cpu {

enum class Isa { scalar, avx2, avx512vnni };  // ascending preference

std::string_view name_of(Isa isa);
bool supported(Isa isa);  // by this machine (cpuid and the operating system's saved state)
// `forced`: a name, or empty for the best the machine has. Unknown or unsupported names are an error that lists what
// this machine can do.
Result<Isa> choose_isa(std::string_view forced);

}  // namespace splash::cpu
