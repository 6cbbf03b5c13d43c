/* launch.h - what the kernel files share: the open device, and how a launcher is written.
 *
 * A kernel, its launcher and the launch stand in one file, kernels/<arch>_<op>.cu.  `simt` is for
 * every vendor: no PTX, no architecture tests, shuffles of width 32, barriers in uniform control flow
 * only, 32-bit indices inside a tile, no 64-bit or float atomics.  An operator's slot is
 *
 *     extern "C" void m2_gpu_<op>(const m2_ops *ops, const m2_<op>_args *args)
 *
 * declared here by macro, and stands in kernels/simt_<op>.cu.  It may hand over to a kernel of one
 * architecture first, which gives back 0 when the shape or the device is not its own:
 *
 *     if (M2_GPU_TRY_SM90(moe_ffn, gpu, args)) return;
 *
 * A launcher never allocates, copies to the host or waits.  Scratch is gpu->workspace, free again
 * when the launcher returns (operators run in order on one stream).
 */
#ifndef M2_BACKEND_GPU_LAUNCH_H
#define M2_BACKEND_GPU_LAUNCH_H

#if defined(MAGI2_GPU_MUSA)
#include "backend/gpu/platform/musa.h"
#else
#include "backend/gpu/platform/cuda.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#include "backend/gpu/gpu.h"
#include "backend/gpu/limits.h"

#define M2_GPU_ARCH_MIN M2_GPU_VENDOR_ARCH_MIN

typedef struct m2_gpu_block {
    void *memory;
    size_t bytes;
    struct m2_gpu_block *next;
} m2_gpu_block;

struct m2_gpu {
    int device;
    int arch; /* 90 on sm_90, 31 on mp_31 */
    int n_mps;
    int smem_max; /* bytes of shared memory that a block may ask for */
    int use_portable;
    int prefers_dnn;
    size_t memory_limit, memory_used;
    m2_gpu_block *blocks;           /* all that is allocated */
    struct m2_gpu_staging *staging; /* pinned buffers        */
    gpuStream_t stream;
    void *workspace;          /* [M2_GPU_WORKSPACE_BYTES] */
    struct m2_gpu_blas *blas; /* NULL: the library is absent or not wanted */
    struct m2_gpu_dnn *dnn;   /* likewise, for attention                   */
    gpuError_t error;         /* first failure, and who had it             */
    gpuError_t error_before;  /* what it was when the recording began      */
    const char *error_op;
    char error_text[96];
    char isa[32]; /* "sm_90" */
    char banner[384];
};

static inline struct m2_gpu *m2_gpu_of(const m2_ops *ops)
{
    return (struct m2_gpu *)ops->device;
}

/* Keeps the first failure of a launch, to be told by the next wait. */
static inline void m2_gpu_launched(struct m2_gpu *gpu, const char *op)
{
    const gpuError_t error = gpuGetLastError();
    if (error != gpuSuccess && gpu->error == gpuSuccess) {
        gpu->error = error;
        gpu->error_op = op;
    }
}

#define M2_GPU_SLOT_(name) void m2_gpu_##name(const m2_ops *ops, const m2_##name##_args *args);
M2_OPS(M2_GPU_SLOT_)
#undef M2_GPU_SLOT_

/* Kernels for Hopper, in builds that hold sm_90a code: 1 when launched, 0 when not theirs. */
#if defined(M2_GPU_HAS_SM90)
int m2_sm90_moe_ffn(struct m2_gpu *gpu, const m2_moe_ffn_args *args);
int m2_sm90_moe_logits(struct m2_gpu *gpu, const m2_moe_logits_args *args);
int m2_sm90_attention(struct m2_gpu *gpu, const m2_attention_args *args);
int m2_sm90_attention_gated(struct m2_gpu *gpu, const m2_attention_gated_args *args);
int m2_sm90_mhc_open(struct m2_gpu *gpu, const m2_mhc_open_args *args);
int m2_sm90_mhc_write_open(struct m2_gpu *gpu, const m2_mhc_write_open_args *args);
int m2_sm90_conv(struct m2_gpu *gpu, const m2_conv_args *args);
int m2_sm90_linear(struct m2_gpu *gpu, const m2_linear_args *args);
int m2_sm90_linear_swiglu7(struct m2_gpu *gpu, const m2_linear_swiglu7_args *args);
int m2_sm90_linear_qk_norm_rope(struct m2_gpu *gpu, const m2_linear_qk_norm_rope_args *args);
#define M2_GPU_TRY_SM90(op, gpu, args)                                                             \
    ((gpu)->arch == 90 && !(gpu)->use_portable && m2_sm90_##op((gpu), (args)))
#else
#define M2_GPU_TRY_SM90(op, gpu, args) 0
#endif

#ifdef __cplusplus
}
#endif

#endif
