/* sm90_ptx.cuh - the instructions of Hopper that C++ has no words for, one function each.
 *
 * Shared memory is named by 32-bit addresses of the shared window (sm90_smem).  "Barrier" is an
 * mbarrier in shared memory: a phase ends when its arrivals and its announced bytes are complete;
 * waiting takes the parity of the phase, 0 for the first.
 *
 * Matrix products  wgmma m64nNk16, bf16 in, f32 out.  N is twice the length of the accumulator
 * array: thread t of a warpgroup holds d[4 i + j] = D[16 (t / 32) + (t % 32) / 4 + 8 (j / 2)]
 * [8 i + 2 (t % 4) + j % 2].  A fragment of A in registers is the same picture, two values a word:
 * a[0] columns 0-7, a[1] the same 8 rows below, a[2] and a[3] columns 8-15.
 * Descriptors are given as two words, so that stepping along a tile is one 32-bit addition to
 * the low word (in units of 16 bytes) and the high word stays a constant.
 *
 * Included by sm90_*.cu alone: everything here is inline and static.
 */
#ifndef M2_BACKEND_GPU_KERNELS_SM90_PTX_CUH
#define M2_BACKEND_GPU_KERNELS_SM90_PTX_CUH

#include <cuda.h>
#include <stdint.h>

#define SM90_INLINE static __device__ __forceinline__

SM90_INLINE uint32_t sm90_smem(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* ---- barriers in shared memory ------------------------------------------------------------ */

SM90_INLINE void sm90_bar_init(uint32_t bar, uint32_t n_arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(n_arrivals) : "memory");
}

/* After the inits, before a barrier of the block or the cluster that lets others use them. */
SM90_INLINE void sm90_bar_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

SM90_INLINE void sm90_bar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* Arrives, and announces bytes that copies into this block's memory will complete. */
SM90_INLINE void sm90_bar_arrive_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

/* The same place in block `rank` of the cluster, for sm90_bar_arrive_at. */
SM90_INLINE uint32_t sm90_place_in(uint32_t address, uint32_t rank)
{
    uint32_t remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}

/* Arrives at a barrier of any block of the cluster.  Orders nothing but this block's own view:
 * enough to say that a buffer has been read, not to hand over what ordinary stores wrote. */
SM90_INLINE void sm90_bar_arrive_at(uint32_t place)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(place) : "memory");
}

SM90_INLINE int sm90_bar_try(uint32_t bar, uint32_t parity)
{
    uint32_t is_done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(is_done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return (int)is_done;
}

SM90_INLINE void sm90_bar_wait(uint32_t bar, uint32_t parity)
{
    while (!sm90_bar_try(bar, parity)) {
    }
}

/* As sm90_bar_wait, where arrivals come from other blocks of the cluster. */
SM90_INLINE void sm90_bar_wait_cluster(uint32_t bar, uint32_t parity)
{
    uint32_t is_done = 0;
    while (!is_done)
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(is_done)
                     : "r"(bar), "r"(parity)
                     : "memory");
}

/* ---- threads ------------------------------------------------------------------------------- */

/* Barrier ID of the block among n_threads; ID 0 is __syncthreads. */
template <int ID> SM90_INLINE void sm90_sync(int n_threads)
{
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "r"(n_threads) : "memory");
}

/* Counts as a thread of that barrier, without waiting. */
template <int ID> SM90_INLINE void sm90_arrive(int n_threads)
{
    asm volatile("bar.arrive %0, %1;" ::"n"(ID), "r"(n_threads) : "memory");
}

/* 1 in one lane of a converged warp, always the same: the compiler then knows that what follows is
 * uniform. */
SM90_INLINE int sm90_elect(void)
{
    uint32_t is_elected;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "elect.sync _|p, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(is_elected));
    return (int)is_elected;
}

SM90_INLINE uint32_t sm90_cluster_rank(void)
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

SM90_INLINE uint32_t sm90_cluster_idx(void)
{
    uint32_t idx;
    asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(idx));
    return idx;
}

SM90_INLINE uint32_t sm90_n_clusters(void)
{
    uint32_t n;
    asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(n));
    return n;
}

SM90_INLINE void sm90_cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* To a place of sm90_place_in, aligned to 16 bytes; they complete at a barrier of that block. */
SM90_INLINE void sm90_send(uint32_t place, uint32_t bar_place, float4 value)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
                 "[%0], {%2, %3, %4, %5}, [%1];" ::"r"(place),
                 "r"(bar_place), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
                 : "memory");
}

/* Moves registers between warpgroups: the first statement of each role's branch. */
template <int N> SM90_INLINE void sm90_registers_give(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> SM90_INLINE void sm90_registers_take(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- copies -------------------------------------------------------------------------------- */

/* Ordinary writes to shared memory become visible to wgmma and to bulk copies. */
SM90_INLINE void sm90_fence_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

SM90_INLINE void sm90_map_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"((uint64_t)map) : "memory");
}

/* The box of `map` at (x, y), x innermost, to shared memory; its bytes complete at `bar`. */
SM90_INLINE void sm90_load_2d(uint32_t to, const CUtensorMap *map, uint32_t bar, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"((uint64_t)map), "r"(bar), "r"(x), "r"(y)
                 : "memory");
}

SM90_INLINE void sm90_load_3d(uint32_t to, const CUtensorMap *map, uint32_t bar, int x, int y,
                              int z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"((uint64_t)map), "r"(bar), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

SM90_INLINE void sm90_load_4d(uint32_t to, const CUtensorMap *map, uint32_t bar, int x, int y,
                              int z, int w)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"((uint64_t)map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

SM90_INLINE void sm90_load_5d(uint32_t to, const CUtensorMap *map, uint32_t bar, int x, int y,
                              int z, int w, int v)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
                 "l"((uint64_t)map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v)
                 : "memory");
}

/* To the same place in every block of the cluster whose bit is set in `mask`; the bytes complete at
 * the barrier of the same place in each. */
SM90_INLINE void sm90_load_2d_to(uint32_t to, const CUtensorMap *map, uint32_t bar, int x, int y,
                                 uint16_t mask)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"((uint64_t)map), "r"(bar), "r"(x), "r"(y), "h"(mask)
                 : "memory");
}

/* 16 bytes by this thread, zeros where `is_inside` is 0. */
SM90_INLINE void sm90_copy16(uint32_t to, const void *from, int is_inside)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(is_inside ? 16 : 0)
                 : "memory");
}

SM90_INLINE void sm90_copy16_wait(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* ---- matrix products ------------------------------------------------------------------------ */

#define SM90_SWIZZLE_128 1u
#define SM90_SWIZZLE_64  2u
#define SM90_SWIZZLE_32  3u

/* Low word: where the tile lies, and the leading offset in bytes. */
SM90_INLINE uint32_t sm90_desc(uint32_t address, uint32_t leading)
{
    return (address & 0x3ffffu) >> 4 | (leading >> 4) << 16;
}

/* High word: the stride offset in bytes, and the swizzle. */
static __host__ __device__ constexpr uint32_t sm90_desc_high(uint32_t stride, uint32_t swizzle)
{
    return stride >> 4 | swizzle << 30;
}

/* D = A . B + D of one warp, m16n8k16, bf16 in, f32 out: A as one warp's part of a wgmma fragment,
 * b[0] = B[2 q, 2 q + 1][g], b[1] = B[2 q + 8, 2 q + 9][g] for lane 4 g + q, d as there. */
SM90_INLINE void sm90_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Before the first product after a wait, and after ordinary writes to its registers. */
SM90_INLINE void sm90_wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

SM90_INLINE void sm90_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most N committed groups are unfinished. */
template <int N> SM90_INLINE void sm90_wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keeps the compiler from moving uses of accumulators across a wait. */
template <int N> SM90_INLINE void sm90_wgmma_pin(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

#define SM90_R0  "%0, %1, %2, %3, %4, %5, %6, %7"
#define SM90_R1  SM90_R0 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SM90_R2  SM90_R1 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define SM90_R3  SM90_R2 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define SM90_R4  SM90_R3 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define SM90_R5  SM90_R4 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define SM90_R6  SM90_R5 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define SM90_R7  SM90_R6 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define SM90_R8  SM90_R7 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define SM90_R9  SM90_R8 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define SM90_R10 SM90_R9 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define SM90_R11 SM90_R10 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define SM90_R12 SM90_R11 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define SM90_R13 SM90_R12 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define SM90_R14 SM90_R13 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define SM90_R15 SM90_R14 ", %120, %121, %122, %123, %124, %125, %126, %127"

#define SM90_F8(i)                                                                                 \
    "+f"(d[8 * (i)]), "+f"(d[8 * (i) + 1]), "+f"(d[8 * (i) + 2]), "+f"(d[8 * (i) + 3]),            \
        "+f"(d[8 * (i) + 4]), "+f"(d[8 * (i) + 5]), "+f"(d[8 * (i) + 6]), "+f"(d[8 * (i) + 7])
#define SM90_F0  SM90_F8(0)
#define SM90_F1  SM90_F0, SM90_F8(1)
#define SM90_F2  SM90_F1, SM90_F8(2)
#define SM90_F3  SM90_F2, SM90_F8(3)
#define SM90_F4  SM90_F3, SM90_F8(4)
#define SM90_F5  SM90_F4, SM90_F8(5)
#define SM90_F6  SM90_F5, SM90_F8(6)
#define SM90_F7  SM90_F6, SM90_F8(7)
#define SM90_F8_ SM90_F7, SM90_F8(8)
#define SM90_F9  SM90_F8_, SM90_F8(9)
#define SM90_F10 SM90_F9, SM90_F8(10)
#define SM90_F11 SM90_F10, SM90_F8(11)
#define SM90_F12 SM90_F11, SM90_F8(12)
#define SM90_F13 SM90_F12, SM90_F8(13)
#define SM90_F14 SM90_F13, SM90_F8(14)
#define SM90_F15 SM90_F14, SM90_F8(15)

/* The two forms for one N: A and B in shared memory (ss), A in registers and B in shared memory
 * (rs). TRANSPOSED_B: B lies with N contiguous.  is_adding 0: d is overwritten, not added to.  r0
 * ... r7 are the numbers of the operands behind the accumulators. */
#define SM90_WGMMA(n, regs, floats, r0, r1, r2, r3, r4, r5, r6, r7)                                \
    template <int TRANSPOSED_B>                                                                    \
    SM90_INLINE void sm90_wgmma_ss(float(&d)[(n) / 2], uint32_t a, uint32_t a_high, uint32_t b,    \
                                   uint32_t b_high, int is_adding)                                 \
    {                                                                                              \
        asm volatile("{\n"                                                                         \
                     ".reg .pred p;\n"                                                             \
                     ".reg .b64 a, b;\n"                                                           \
                     "setp.ne.b32 p, %" #r4 ", 0;\n"                                               \
                     "mov.b64 a, {%" #r0 ", %" #r1 "};\n"                                          \
                     "mov.b64 b, {%" #r2 ", %" #r3 "};\n"                                          \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 "                   \
                     "{" regs "}, a, b, p, 1, 1, 0, %" #r5 ";\n"                                   \
                     "}"                                                                           \
                     : floats                                                                      \
                     : "r"(a), "r"(a_high), "r"(b), "r"(b_high), "r"(is_adding),                   \
                       "n"(TRANSPOSED_B));                                                         \
    }                                                                                              \
    template <int TRANSPOSED_B>                                                                    \
    SM90_INLINE void sm90_wgmma_rs(float(&d)[(n) / 2], const uint32_t(&a)[4], uint32_t b,          \
                                   uint32_t b_high, int is_adding)                                 \
    {                                                                                              \
        asm volatile("{\n"                                                                         \
                     ".reg .pred p;\n"                                                             \
                     ".reg .b64 b;\n"                                                              \
                     "setp.ne.b32 p, %" #r6 ", 0;\n"                                               \
                     "mov.b64 b, {%" #r4 ", %" #r5 "};\n"                                          \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 "                   \
                     "{" regs "}, {%" #r0 ", %" #r1 ", %" #r2 ", %" #r3 "}, b, p, 1, 1, %" #r7     \
                     ";\n"                                                                         \
                     "}"                                                                           \
                     : floats                                                                      \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(b_high),            \
                       "r"(is_adding), "n"(TRANSPOSED_B));                                         \
    }

SM90_WGMMA(64, SM90_R3, SM90_F3, 32, 33, 34, 35, 36, 37, 38, 39)
SM90_WGMMA(128, SM90_R7, SM90_F7, 64, 65, 66, 67, 68, 69, 70, 71)
SM90_WGMMA(160, SM90_R9, SM90_F9, 80, 81, 82, 83, 84, 85, 86, 87)
SM90_WGMMA(176, SM90_R10, SM90_F10, 88, 89, 90, 91, 92, 93, 94, 95)
SM90_WGMMA(192, SM90_R11, SM90_F11, 96, 97, 98, 99, 100, 101, 102, 103)
SM90_WGMMA(256, SM90_R15, SM90_F15, 128, 129, 130, 131, 132, 133, 134, 135)

#endif
