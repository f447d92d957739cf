// The instructions CUDA C++ has no words for, each under its own name.
//
// Code is compiled for sm_90a (Hopper) and for sm_80 (everything else from Ampere on). What came with Hopper and has a
// plain equivalent has it here, so that one source serves both; the rest (bulk copies by name, wgmma.cuh) belongs to
// files that are compiled for sm_90a alone.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace splash::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool hopper_code = false;
#else
constexpr bool hopper_code = true;
#endif

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// A value that the compiler knows nothing about: what is computed from it is computed where it stands, not kept in
// registers across a loop.
__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// -- programmatic dependent launch: a kernel starts while its predecessor still runs --------------------------------
// Every kernel of a stream calls dependents_may_start() once and wait_for_predecessors() before it touches anything a
// predecessor wrote or reads (weights are never written: they may be requested before). The wait returns when the
// predecessor has finished and its writes are visible; since it waited itself, so have all before it. Before Hopper a
// kernel starts when its predecessor is done (launch.h), and these are nothing.
__device__ __forceinline__ void dependents_may_start() {
  if constexpr (hopper_code) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void wait_for_predecessors() {
  if constexpr (hopper_code) asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void begin_kernel() {
  dependents_may_start();
  wait_for_predecessors();
}

// -- mbarrier and bulk copies ---------------------------------------------------------------------------------------
__device__ __forceinline__ void barrier_init(std::uint32_t barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_init_done() {  // a block barrier follows
  if constexpr (hopper_code) asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_expect(std::uint32_t barrier, unsigned bytes) {
  if constexpr (hopper_code) asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Whether the phase is over, without waiting.
__device__ __forceinline__ bool barrier_passed(std::uint32_t barrier, unsigned parity) {
  std::uint32_t passed;
  asm volatile(
      "{.reg .pred done;\n"
      "mbarrier.test_wait.parity.shared.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done; }"
      : "=r"(passed)
      : "r"(barrier), "r"(parity)
      : "memory");
  return passed != 0;
}
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, unsigned parity) {
  if constexpr (hopper_code) {
    asm volatile(
        "{.reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
        "@!done bra again; }" ::"r"(barrier),
        "r"(parity)
        : "memory");
  } else {
    while (!barrier_passed(barrier, parity)) {
    }
  }
}
// Weights are read once per step: they leave the L2 first, so that activations and partial sums stay in it.
__device__ __forceinline__ std::uint64_t stream_policy() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void bulk_copy(std::uint32_t to_shared, const void* from, unsigned bytes,
                                          std::uint32_t barrier) {
  if constexpr (hopper_code) asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to_shared),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void bulk_copy(std::uint32_t to_shared, const void* from, unsigned bytes,
                                          std::uint32_t barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to_shared),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
// -- copies that both kinds of devices make ---------------------------------------------------------------------------
// `requesters` threads bring bytes into shared memory, and whoever reads them waits for the phase of a barrier that was
// made for copy_arrivals(requesters). Hopper: requester 0 asks the copy engine, the others have nothing to do. Before:
// each of them copies its share in pieces of 16 bytes and arrives when they are there. In order: begin_copies (with all
// bytes of the phase), copy..., end_copies; by each thread for which makes_copies.
__device__ constexpr unsigned copy_arrivals(unsigned requesters) { return hopper_code ? 1 : requesters; }
__device__ __forceinline__ bool makes_copies(int requester) { return !hopper_code || requester == 0; }
__device__ __forceinline__ void begin_copies(std::uint32_t barrier, unsigned bytes) {
  if constexpr (hopper_code) barrier_expect(barrier, bytes);
}
__device__ __forceinline__ void copy_16(std::uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to_shared), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_4(std::uint32_t to_shared, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to_shared), "l"(from) : "memory");
}
// Of one thread, without a barrier: copies made since the last commit are a group; waits until at most `pending` of the
// latest groups are still under way.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}
__device__ __forceinline__ void copy(std::uint32_t to_shared, const void* from, unsigned bytes, std::uint32_t barrier,
                                     int requester, int requesters) {
  if constexpr (hopper_code) {
    bulk_copy(to_shared, from, bytes, barrier);
  } else {
    for (unsigned at = requester * 16; at < bytes; at += requesters * 16) {
      copy_16(to_shared + at, static_cast<const std::uint8_t*>(from) + at);
    }
  }
}
__device__ __forceinline__ void end_copies(std::uint32_t barrier) {
  if constexpr (!hopper_code)
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
// All of this thread's own copies have arrived: before they are read without a barrier, or before a thread ends that has
// not waited for them.
__device__ __forceinline__ void finish_copies() {
  if constexpr (!hopper_code) asm volatile("cp.async.wait_all;" ::: "memory");
}

// Brings what is only read soon into the L2.
__device__ __forceinline__ void prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}
// Loads and stores that reach the L2 each time, for words that blocks poll.
__device__ __forceinline__ uint4 load_volatile(const uint4* from) {
  uint4 value;
  asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from)
               : "memory");
  return value;
}
__device__ __forceinline__ void store_volatile(uint4* to, uint4 value) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}
__device__ __forceinline__ void store_volatile(uint2* to, uint2 value) {
  asm volatile("st.volatile.global.v2.u32 [%0], {%1,%2};" ::"l"(to), "r"(value.x), "r"(value.y) : "memory");
}

// A vector as four values, two as eight.
__device__ __forceinline__ void take_four(const float4& from, float (&to)[4]) {
  to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
}
__device__ __forceinline__ void take_eight(const float4& low, const float4& high, float (&to)[8]) {
  to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
  to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

// -- between the warps of a block -----------------------------------------------------------------------------------
// Barrier `id` (0 .. 15; 0 is that of __syncthreads) of `threads` threads.
template <int id>
__device__ __forceinline__ void block_barrier(int threads) {
  asm volatile("bar.sync %0, %1;" ::"n"(id), "r"(threads) : "memory");
}

// -- matrix units ---------------------------------------------------------------------------------------------------
// Fragments (g = lane / 4, t = lane % 4): a0 row g, a1 row g + 8 with k 2t, 2t+1; a2, a3 the same with k + 8; b0 k 2t,
// 2t+1 of column g, b1 k + 8; c0, c1 row g, columns 2t, 2t+1; c2, c3 row g + 8.
__device__ __forceinline__ void mma_bf16(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                         std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_fp16(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                         std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// The nearest tf32 number: ten bits behind the leading one, so that mma_tf32 has nothing to cut off.
__device__ __forceinline__ float rounded_tf32(float x) {
  std::uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
}
// tf32: 16 x 8 times 8 x 8; a0 row g, k t, a1 row g + 8, a2, a3 k t + 4; b0 k t of column g, b1 k t + 4. The low 13 bits
// of an operand do not count.
__device__ __forceinline__ void mma_tf32(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                         std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Four 8 x 8 matrices of 16-bit values; lane l names row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// -- 4-bit codes ----------------------------------------------------------------------------------------------------
// The nibbles at bits 0..3 and 16..19 of a word as two bf16 values 128 + code: the exponent of 128 leaves one unit per
// mantissa step, so one logic operation converts two codes exactly.
__device__ __forceinline__ std::uint32_t codes_plus_128(std::uint32_t word) {
  std::uint32_t pair;
  asm("lop3.b32 %0, %1, 0x000F000F, 0x43004300, 0xEA;" : "=r"(pair) : "r"(word));
  return pair;
}
__device__ __forceinline__ float bf16_at(const std::uint8_t* p) {
  return __uint_as_float(static_cast<std::uint32_t>(*reinterpret_cast<const std::uint16_t*>(p)) << 16);
}
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
__device__ __forceinline__ std::uint32_t pack_fp16(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// -- clusters: before Hopper a block is one of its own ---------------------------------------------------------------
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank = 0;
  if constexpr (hopper_code) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ unsigned cluster_size() {
  unsigned size = 1;
  if constexpr (hopper_code) asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
__device__ __forceinline__ void cluster_arrive() {
  if constexpr (hopper_code) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// Orders no memory: for reads that have arrived before their places are written.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  if constexpr (hopper_code) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  if constexpr (hopper_code) {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  } else {
    __syncthreads();
  }
}
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
// Stores into the shared memory of another block of the cluster, at the place that has this address here.
template <class T>
__device__ __forceinline__ void store_to_peer(T* local, unsigned rank, T value) {
  if constexpr (hopper_code) {
    std::uint32_t peer;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(shared_address(local)), "r"(rank));
    if constexpr (sizeof(T) == 4) {
      asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(peer), "r"(*reinterpret_cast<const std::uint32_t*>(&value))
                   : "memory");
    } else {
      static_assert(sizeof(T) == 8);
      asm volatile("st.shared::cluster.b64 [%0], %1;" ::"r"(peer), "l"(*reinterpret_cast<const std::uint64_t*>(&value))
                   : "memory");
    }
  } else {
    *local = value;
  }
}
// The same, counted as its bytes at a barrier of the peer (which has this address here), so that the reader needs no
// cluster barrier: one with release waits for every store to device memory first. Portable: a block barrier follows.
template <class T>
__device__ __forceinline__ void store_to_peer(T* local, const std::uint64_t* barrier, unsigned rank, T value) {
  if constexpr (hopper_code) {
    std::uint32_t to, at;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(local)), "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(barrier)), "r"(rank));
    if constexpr (sizeof(T) == 4) {
      asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
                   "r"(*reinterpret_cast<const std::uint32_t*>(&value)), "r"(at)
                   : "memory");
    } else {
      static_assert(sizeof(T) == 8);
      asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(to),
                   "l"(*reinterpret_cast<const std::uint64_t*>(&value)), "r"(at)
                   : "memory");
    }
  } else {
    *local = value;
  }
}

}  // namespace splash::cuda
