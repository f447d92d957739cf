#include "backend/cuda/driver_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <type_traits>
#include <vector>

namespace splash::cuda {
namespace {

// The driver is found at run time: its functions are asked for by name, nothing links to it.
struct Driver {
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuGetErrorString) error_string = nullptr;

  static Result<Driver> find() {
    Driver driver;
    const auto get = [](const char* name, auto& function) -> Status {
      void* found = nullptr;
      cudaDriverEntryPointQueryResult how{};
      constexpr unsigned int since = 12000;  // the version of the calls as declared here
      const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableDefault, &how);
      if (error != cudaSuccess || found == nullptr) {
        cudaGetLastError();
        return fail(ErrorKind::invalid, "the NVIDIA driver has no {}: a newer driver is needed", name);
      }
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
      return {};
    };
    SPLASH_TRY_STATUS(get("cuMemGetAllocationGranularity", driver.granularity));
    SPLASH_TRY_STATUS(get("cuMemAddressReserve", driver.reserve));
    SPLASH_TRY_STATUS(get("cuMemAddressFree", driver.free));
    SPLASH_TRY_STATUS(get("cuMemCreate", driver.create));
    SPLASH_TRY_STATUS(get("cuMemRelease", driver.release));
    SPLASH_TRY_STATUS(get("cuMemMap", driver.map));
    SPLASH_TRY_STATUS(get("cuMemUnmap", driver.unmap));
    SPLASH_TRY_STATUS(get("cuMemSetAccess", driver.set_access));
    SPLASH_TRY_STATUS(get("cuGetErrorString", driver.error_string));
    return driver;
  }

  // What a call says that did not succeed.
  Status check(CUresult result, const char* what, std::size_t bytes) const {
    if (result == CUDA_SUCCESS) return {};
    const char* text = nullptr;
    if (error_string(result, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown error";
    std::size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    constexpr double gib = std::size_t{1} << 30;
    return fail(ErrorKind::overloaded, "could not {} {:.2f} GiB of device memory ({}); {:.2f} of {:.2f} GiB are free", what,
                static_cast<double>(bytes) / gib, text, static_cast<double>(free_bytes) / gib,
                static_cast<double>(total_bytes) / gib);
  }
};

class DeviceMapper final : public MemoryMapper {
 public:
  DeviceMapper(const Driver& driver, int index) : driver_(driver) {
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, index};
    access_ = {properties_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  }
  ~DeviceMapper() override {
    for (const Part& part : parts_) {
      driver_.unmap(base_ + part.offset, part.bytes);
      driver_.release(part.handle);
    }
    if (reserved_ > 0) driver_.free(base_, reserved_);
  }
  Status find_granule() {
    return driver_.check(driver_.granularity(&granule_, &properties_, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                         "find the granule of", 0);
  }

  std::size_t granule_bytes() const override { return granule_; }

  Result<std::byte*> reserve(std::size_t bytes) override {
    SPLASH_TRY_STATUS(driver_.check(driver_.reserve(&base_, bytes, granule_, 0, 0), "reserve addresses for", bytes));
    reserved_ = bytes;
    return reinterpret_cast<std::byte*>(base_);
  }

  Status map(std::size_t offset, std::size_t bytes) override {
    Part part{offset, bytes, 0};
    SPLASH_TRY_STATUS(driver_.check(driver_.create(&part.handle, bytes, &properties_, 0), "take", bytes));
    Status status = driver_.check(driver_.map(base_ + offset, bytes, 0, part.handle, 0), "map", bytes);
    if (status) {
      status = driver_.check(driver_.set_access(base_ + offset, bytes, &access_, 1), "open", bytes);
      if (!status) driver_.unmap(base_ + offset, bytes);
    }
    if (!status) {
      driver_.release(part.handle);
      return status;
    }
    parts_.push_back(part);
    return {};
  }

 private:
  struct Part {
    std::size_t offset = 0, bytes = 0;
    CUmemGenericAllocationHandle handle = 0;
  };
  const Driver driver_;
  CUmemAllocationProp properties_{};
  CUmemAccessDesc access_{};
  std::size_t granule_ = 0, reserved_ = 0;
  CUdeviceptr base_ = 0;
  std::vector<Part> parts_;
};

}  // namespace

Result<std::unique_ptr<MemoryMapper>> device_mapper(int index) {
  SPLASH_TRY(const Driver driver, Driver::find());
  auto mapper = std::make_unique<DeviceMapper>(driver, index);
  SPLASH_TRY_STATUS(mapper->find_granule());
  return std::unique_ptr<MemoryMapper>(std::move(mapper));
}

}  // namespace splash::cuda
