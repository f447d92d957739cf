#include "backend/places_ahead.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

#include "base/check.h"
#include "base/log.h"

namespace splash {
namespace {

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

// Memory behind the pages now, in the kernel alone and on several cores: that is most of what pinning takes (on a machine with an
// H200 40 of 46 ms for 240 MB), and the driver would keep launches waiting meanwhile. A little at a time, because whoever maps
// memory in this process waits for a call to end. Best effort: kernels before 5.14 do not know the call, and pinning brings the
// pages as well.
void populate([[maybe_unused]] std::span<std::byte> memory) {
#ifdef MADV_POPULATE_WRITE
  constexpr std::size_t at_a_time = std::size_t{2} << 20, worth_a_thread = std::size_t{32} << 20, most_threads = 4;
  std::atomic<std::size_t> next = 0;
  const auto bring = [&] {
    while (true) {
      const std::size_t begin = next.fetch_add(at_a_time);
      if (begin >= memory.size()) return;
      madvise(memory.data() + begin, std::min(at_a_time, memory.size() - begin), MADV_POPULATE_WRITE);
    }
  };
  std::vector<std::thread> threads;
  try {
    while (threads.size() + 1 < std::min(memory.size() / worth_a_thread, most_threads)) threads.emplace_back(bring);
  } catch (const std::system_error&) {  // no more threads to be had: fewer do
  }
  bring();
  for (std::thread& thread : threads) thread.join();
#endif
}

}  // namespace

Result<std::unique_ptr<PlacesAhead>> PlacesAhead::reserve(std::unique_ptr<Pinner> pinner, const Sizes& sizes) {
  const std::size_t page = page_bytes();
  SPLASH_CHECK(sizes.place_bytes > 0 && sizes.places >= 0 && sizes.ahead >= 0);
  SPLASH_CHECK(sizes.piece_bytes > 0 && sizes.piece_bytes % page == 0);
  std::unique_ptr<PlacesAhead> out(new PlacesAhead(std::move(pinner), sizes));
  out->stride_ = (sizes.place_bytes + page - 1) / page * page;
  if (sizes.places == 0) return out;
  const std::size_t bytes = out->stride_ * static_cast<std::size_t>(sizes.places);
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return fail(ErrorKind::overloaded,
                "could not reserve addresses for {:.2f} GiB of snapshots ({}): raise the limit of virtual memory",
                static_cast<double>(bytes) / (1 << 30), std::strerror(errno));
  }
  madvise(data, bytes, MADV_HUGEPAGE);  // a wish: 512 times fewer pages to bring and to pin
  out->data_ = static_cast<std::byte*>(data);
  out->thread_ = std::thread([&self = *out] { self.work(); });
  return out;
}

PlacesAhead::~PlacesAhead() {
  if (data_ == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wanted_.notify_one();
  thread_.join();
  for (const std::span<std::byte> piece : pinned_) pinner_->unpin(piece);
  munmap(data_, stride_ * static_cast<std::size_t>(sizes_.places));
}

std::byte* PlacesAhead::find(int place) {
  SPLASH_CHECK(place >= 0 && place < sizes_.places, "place {} of {}", place, sizes_.places);
  const std::lock_guard lock(mutex_);
  want(place + 1 + sizes_.ahead);
  return place < ready_ ? memory(place).data() : nullptr;
}

std::byte* PlacesAhead::wait_for(int place) {
  if (std::byte* found = find(place)) return found;
  std::unique_lock lock(mutex_);
  came_.wait(lock, [&] { return place < ready_; });
  return memory(place).data();
}

void PlacesAhead::expect(int places) {
  const std::lock_guard lock(mutex_);
  want(places);
}

void PlacesAhead::prepare(int places) {
  std::unique_lock lock(mutex_);
  want(places);
  came_.wait(lock, [&] { return std::min(places, sizes_.places) <= ready_; });
}

int PlacesAhead::ready() const {
  const std::lock_guard lock(mutex_);
  return ready_;
}

// Called with the lock.
void PlacesAhead::want(int places) {
  goal_ = std::max(goal_, std::min(places, sizes_.places));
  if (goal_ > ready_) wanted_.notify_one();
}

void PlacesAhead::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wanted_.wait(lock, [&] { return ending_ || goal_ > ready_; });
    if (ending_) return;
    const int place = ready_;
    lock.unlock();
    populate(memory(place));
    pin(place);
    lock.lock();
    ++ready_;
    came_.notify_all();
  }
}

// Once refused, never tried again: the system's limit is reached.
void PlacesAhead::pin(int place) {
  using std::chrono::steady_clock;
  const std::span<std::byte> whole = memory(place);
  steady_clock::duration took{};
  in_pieces(0, whole.size(), [&](std::size_t offset, std::size_t bytes) {
    if (refused_) return;
    std::this_thread::sleep_for(took);
    const steady_clock::time_point begun = steady_clock::now();
    const std::span<std::byte> piece = whole.subspan(offset, bytes);
    if (const Status status = pinner_->pin(piece)) {
      pinned_.push_back(piece);
    } else {
      refused_ = true;
      log::warn("{}: snapshots from number {} on lie in memory that is not pinned, and to save one takes longer",
                status.error().message, place + 1);
    }
    took = steady_clock::now() - begun;
  });
}

}  // namespace splash
