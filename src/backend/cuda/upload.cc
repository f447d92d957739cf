#include "backend/cuda/upload.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/thread_pool.h"

namespace splash::cuda {
namespace {

constexpr std::int64_t piece_bytes = std::int64_t{64} << 20;
constexpr std::int64_t slice_bytes = std::int64_t{1} << 20;  // what a thread copies at a time

// The copies of a piece, spread over the pool: the first touch of a mapped file costs more than the copy itself.
void fill(ThreadPool& pool, const StagedPiece& piece, std::byte* staging) {
  std::vector<StagedCopy> slices;
  for (const StagedCopy& copy : piece.copies) {
    for (std::int64_t done = 0; done < copy.bytes; done += slice_bytes) {
      slices.push_back({copy.from + done, std::min(slice_bytes, copy.bytes - done), copy.at + done});
    }
  }
  pool.split(static_cast<int>(slices.size()), 1, [&](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      std::memcpy(staging + slices[i].at, slices[i].from, static_cast<std::size_t>(slices[i].bytes));
    }
  });
}

}  // namespace

Result<DeviceBuffer> upload(Stream& stream, const PlacementPlan& plan) {
  SPLASH_TRY(DeviceBuffer device, DeviceBuffer::allocate(static_cast<std::size_t>(plan.total_bytes())));
  const std::vector<StagedPiece> pieces = staged_pieces(plan, piece_bytes);
  ThreadPool pool(std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 8));
  PinnedBuffer staging[2];
  cudaEvent_t sent[2] = {};
  for (int i = 0; i < 2; ++i) {
    SPLASH_TRY(staging[i], PinnedBuffer::allocate(static_cast<std::size_t>(std::min(piece_bytes, plan.total_bytes()))));
    stream.note(cudaEventCreateWithFlags(&sent[i], cudaEventDisableTiming), "upload event");
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const int side = static_cast<int>(i % 2);
    if (i >= 2) stream.note(cudaEventSynchronize(sent[side]), "upload");
    fill(pool, pieces[i], staging[side].data());
    stream.note(cudaMemcpyAsync(device.data() + pieces[i].offset, staging[side].data(),
                                static_cast<std::size_t>(pieces[i].bytes), cudaMemcpyHostToDevice, stream.native()),
                "upload");
    stream.note(cudaEventRecord(sent[side], stream.native()), "upload");
  }
  const Status done = stream.synchronise();
  for (const cudaEvent_t event : sent) cudaEventDestroy(event);
  SPLASH_TRY_STATUS(done);
  return device;
}

}  // namespace splash::cuda
