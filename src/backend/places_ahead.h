// Host memory for places of one size (snapshots that a device copies to), the next ones made ready by a thread of its own: to pin
// 240 MB takes longer than a step, and what a request saves stands between its prompt and its first token.
//
// Places become ready in the order of their numbers and stay so. Addresses for all of them are reserved at once, so only the
// pinning can fail later: from there on it is ordinary memory, to which a copy takes longer. A place is pinned piece by piece
// with a rest as long behind each (the driver lets nobody launch while it pins), so a copy goes piece by piece too.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/result.h"

namespace splash {

class Pinner {
 public:
  virtual ~Pinner() = default;
  // On the thread of PlacesAhead. An error leaves the memory as it was.
  virtual Status pin(std::span<std::byte> memory) = 0;
  virtual void unpin(std::span<std::byte> memory) = 0;
};

class PlacesAhead {
 public:
  struct Sizes {
    std::size_t place_bytes = 0;
    int places = 0;
    int ahead = 0;  // places beyond the last one that was asked for that are kept ready; nothing is taken before the first is
    std::size_t piece_bytes = std::size_t{16} << 20;  // whole pages
  };
  static Result<std::unique_ptr<PlacesAhead>> reserve(std::unique_ptr<Pinner> pinner, const Sizes& sizes);
  // Waits for the place that is being made ready, if any. Nothing may be copied to or from a place any more.
  ~PlacesAhead();
  PlacesAhead(const PlacesAhead&) = delete;
  PlacesAhead& operator=(const PlacesAhead&) = delete;

  // The memory of a place, null while it is not ready; asking gets it under way.
  std::byte* find(int place);
  // The same, once it is ready.
  std::byte* wait_for(int place);
  // Gets the first `places` under way (as many as there are; none if negative) and returns at once.
  void expect(int places);
  // Returns when the first `places` are ready.
  void prepare(int places);

  // Calls copy(offset, bytes) for bytes [from, to) of a place, cut where pieces meet.
  template <class Copy>
  void in_pieces(std::size_t from, std::size_t to, Copy&& copy) const {
    while (from < to) {
      const std::size_t end = std::min(to, (from / sizes_.piece_bytes + 1) * sizes_.piece_bytes);
      copy(from, end - from);
      from = end;
    }
  }

  int ready() const;

 private:
  PlacesAhead(std::unique_ptr<Pinner> pinner, const Sizes& sizes) : pinner_(std::move(pinner)), sizes_(sizes) {}
  std::span<std::byte> memory(int place) const { return {data_ + stride_ * static_cast<std::size_t>(place), stride_}; }
  void want(int places);
  void work();
  void pin(int place);

  std::unique_ptr<Pinner> pinner_;
  const Sizes sizes_;
  std::byte* data_ = nullptr;
  std::size_t stride_ = 0;
  std::vector<std::span<std::byte>> pinned_;  // the thread's; its owner's after that
  bool refused_ = false;                      // likewise
  mutable std::mutex mutex_;
  std::condition_variable wanted_, came_;
  int goal_ = 0, ready_ = 0;  // with the lock
  bool ending_ = false;
  std::thread thread_;  // last: runs work()
};

}  // namespace splash
