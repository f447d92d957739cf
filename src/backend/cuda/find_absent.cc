// A build without the CUDA backend.
#include "backend/cuda/facts.h"

namespace splash::cuda {

bool in_this_build() { return false; }

Result<std::vector<DeviceFacts>> find_devices() {
  return fail(ErrorKind::unsupported, "this build has no CUDA backend: configure it with -DSPLASH_CUDA=ON");
}

Result<DeviceFacts> choose_device(int) { return tl::unexpected(find_devices().error()); }

Status read_memory(DeviceFacts&) { return tl::unexpected(find_devices().error()); }

}  // namespace splash::cuda
