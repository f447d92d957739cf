// Memory that grows in place: addresses for all of it are reserved at once, memory is put behind them from the beginning on,
// as it is needed. Never given back while it lives: pages of idle prefixes lie all over it, and a pool that was needed once
// will be again. What differs between devices is behind MemoryMapper.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/result.h"

namespace splash {

class MemoryMapper {
 public:
  virtual ~MemoryMapper() = default;
  virtual std::size_t granule_bytes() const = 0;  // what is mapped is a multiple of it
  // Addresses, whole granules. Once.
  virtual Result<std::byte*> reserve(std::size_t bytes) = 0;
  // Puts memory behind `bytes` at `offset` of the reserved addresses, whole granules. An error leaves what was mapped.
  virtual Status map(std::size_t offset, std::size_t bytes) = 0;
};

// How much to have mapped when `wanted` bytes are needed and `mapped` are not enough: a quarter of what there was beyond that and
// at least 64 MiB, so that neither a reply that grows page by page nor the turn behind a long prompt asks the driver each time;
// whole granules, and no more than `most`.
std::size_t grown_bytes(std::size_t mapped, std::size_t wanted, std::size_t most, std::size_t granule);

class GrowingMemory {
 public:
  static Result<GrowingMemory> reserve(std::unique_ptr<MemoryMapper> mapper, std::size_t most_bytes);
  GrowingMemory() = default;

  // At least `bytes` are there afterwards; the part that is new, uninitialised. Where the device has no room for more than
  // is wanted it makes do with that; an error (overloaded) leaves what was there.
  Result<std::span<std::byte>> grow_to(std::size_t bytes);

  std::byte* data() const { return data_; }
  std::size_t mapped_bytes() const { return mapped_; }

 private:
  std::unique_ptr<MemoryMapper> mapper_;
  std::byte* data_ = nullptr;
  std::size_t most_ = 0, mapped_ = 0;
};

}  // namespace splash
