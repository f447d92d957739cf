#include <cuda_bf16.h>

#include <cstdint>

#include "device_kernels.h"

namespace splash::bench {
namespace {

__device__ std::uint32_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<std::uint32_t>(x >> 16);
}

__global__ void fill_tiles_kernel(std::uint8_t* tiles, std::size_t count, unsigned seed) {
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count * 36;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    const std::size_t tile = i / 36, part = i % 36;  // 16 bytes each: 32 of codes, 4 of scales and biases (q4_tile.h)
    auto* to = reinterpret_cast<std::uint32_t*>(tiles + tile * 576 + part * 16);
    for (int j = 0; j < 4; ++j) {
      const int with = part >= 32 ? j & ~1 : j;  // biases are drawn with the scales before them
      std::uint32_t value = mix(i * 4 + with + (static_cast<std::uint64_t>(seed) << 40));
      if (part >= 32) {
        // Small scales of both signs; the bias puts zero in the middle of the codes.
        const float scale = ((value & 1) ? 1 : -1) * 0.002f * (1 + (value >> 8 & 255) / 256.0f);
        const float other = ((value >> 1 & 1) ? 1 : -1) * 0.002f * (1 + (value >> 16 & 255) / 256.0f);
        const float factor = j & 1 ? -7.5f : 1.0f;
        const __nv_bfloat162 pair = __floats2bfloat162_rn(scale * factor, other * factor);
        value = *reinterpret_cast<const std::uint32_t*>(&pair);
      }
      to[j] = value;
    }
  }
}
__global__ void fill_floats_kernel(float* values, std::size_t count, float scale, unsigned seed) {
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    values[i] = scale * (static_cast<float>(mix(i + (static_cast<std::uint64_t>(seed) << 40))) / 2147483648.0f - 1.0f);
  }
}
__global__ void fill_pages_kernel(std::uint32_t* words, std::size_t count, unsigned seed) {
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    words[i] = 0x3c000000u | (mix(i + (static_cast<std::uint64_t>(seed) << 40)) & 0x007fffffu);
  }
}
__global__ void __launch_bounds__(512) read_kernel(const uint4* data, std::size_t count, unsigned* sink) {
  unsigned x = 0;
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
  for (; i + 3 * step < count; i += 4 * step) {
    const uint4 a = __ldcs(data + i), b = __ldcs(data + i + step), c = __ldcs(data + i + 2 * step),
                d = __ldcs(data + i + 3 * step);
    x ^= a.x ^ b.y ^ c.z ^ d.w ^ a.w ^ b.x ^ c.y ^ d.x;
  }
  if (x == 0x12345) *sink = x;
}

}  // namespace

void fill_tiles(cuda::Stream& stream, void* tiles, std::size_t count, unsigned seed) {
  fill_tiles_kernel<<<1056, 256, 0, stream.native()>>>(static_cast<std::uint8_t*>(tiles), count, seed);
}
void fill_floats(cuda::Stream& stream, float* values, std::size_t count, float scale, unsigned seed) {
  fill_floats_kernel<<<1056, 256, 0, stream.native()>>>(values, count, scale, seed);
}
void fill_pages(cuda::Stream& stream, void* pages, std::size_t bytes, unsigned seed) {
  fill_pages_kernel<<<1056, 256, 0, stream.native()>>>(static_cast<std::uint32_t*>(pages), bytes / 4, seed);
}
void read_everything(cuda::Stream& stream, const void* data, std::size_t bytes, unsigned* sink, int blocks) {
  read_kernel<<<blocks, 512, 0, stream.native()>>>(static_cast<const uint4*>(data), bytes / 16, sink);
}

}  // namespace splash::bench
