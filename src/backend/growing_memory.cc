#include "backend/growing_memory.h"

#include <algorithm>

#include "base/check.h"

namespace splash {
namespace {

std::size_t whole(std::size_t bytes, std::size_t granule) { return (bytes + granule - 1) / granule * granule; }

}  // namespace

std::size_t grown_bytes(std::size_t mapped, std::size_t wanted, std::size_t most, std::size_t granule) {
  constexpr std::size_t least_step = std::size_t{64} << 20;
  return std::min(whole(wanted + std::max(mapped / 4, least_step), granule), whole(most, granule));
}

Result<GrowingMemory> GrowingMemory::reserve(std::unique_ptr<MemoryMapper> mapper, std::size_t most_bytes) {
  GrowingMemory memory;
  memory.most_ = most_bytes;
  SPLASH_TRY(memory.data_, mapper->reserve(whole(most_bytes, mapper->granule_bytes())));
  memory.mapper_ = std::move(mapper);
  return memory;
}

Result<std::span<std::byte>> GrowingMemory::grow_to(std::size_t bytes) {
  SPLASH_CHECK(bytes <= most_, "{} bytes of {}", bytes, most_);
  if (bytes <= mapped_) return std::span<std::byte>();
  const std::size_t granule = mapper_->granule_bytes(), before = mapped_;
  std::size_t target = grown_bytes(mapped_, bytes, most_, granule);
  Status mapped = mapper_->map(before, target - before);
  if (!mapped && target > whole(bytes, granule)) {
    target = whole(bytes, granule);
    mapped = mapper_->map(before, target - before);
  }
  SPLASH_TRY_STATUS(mapped);
  mapped_ = target;
  return std::span(data_ + before, target - before);
}

}  // namespace splash
