#include "backend/cuda/host_pinner.h"

#include <cuda_runtime_api.h>

namespace splash::cuda {
namespace {

class HostPinner final : public Pinner {
 public:
  explicit HostPinner(int index) : index_(index) {}
  Status pin(std::span<std::byte> memory) override {
    cudaError_t error = cudaSetDevice(index_);
    if (error == cudaSuccess) error = cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterDefault);
    if (error == cudaSuccess) return {};
    cudaGetLastError();  // this thread's; the device is as usable as before
    return fail(ErrorKind::overloaded, "could not pin {:.2f} GiB of host memory ({})",
                static_cast<double>(memory.size()) / (1 << 30), cudaGetErrorString(error));
  }
  void unpin(std::span<std::byte> memory) override { cudaHostUnregister(memory.data()); }

 private:
  int index_;
};

}  // namespace

std::unique_ptr<Pinner> host_pinner(int index) { return std::make_unique<HostPinner>(index); }

}  // namespace splash::cuda
