/* limits.h - what the kernels for GPUs take at most.
 *
 * Kernel files hold their arrays to these figures; m2_gpu_limits is made of them, and is there on
 * machines and in builds without a GPU too, so that a plan refuses what a run would.
 */
#ifndef M2_BACKEND_GPU_LIMITS_H
#define M2_BACKEND_GPU_LIMITS_H

#include "backend/device.h"

#define M2_GPU_HEAD_DIM_MAX 256
#define M2_GPU_EXPERTS_MAX  1024 /* of one routing head */
#define M2_GPU_TOP_K_MAX    16

/* What has to lie in the workspace, in bytes: of a group of tokens of the delta rule for each value head
 * and each key head; of a token's coefficients of mHC; of the counts of a tile of routes for each
 * expert; of the list of work for the experts, at most for each so many routes and for each expert. */
#define M2_GPU_WORKSPACE_BYTES   ((size_t)96 << 20)
#define M2_GPU_DELTA_TOKENS      4
#define M2_GPU_DELTA_VALUE_BYTES 160
#define M2_GPU_DELTA_KEY_BYTES   64
#define M2_GPU_MHC_TOKEN_BYTES   96
#define M2_GPU_COUNT_BYTES       4
#define M2_GPU_WORK_ROUTES       256
#define M2_GPU_WORK_BYTES        36

/* A tile is 32 routes for each of its words; the words of all experts of a head share these. */
#define M2_GPU_MARK_WORDS     8192
#define M2_GPU_TILE_WORDS_MAX 31

/* Odd, so that rows of marks start in different banks. */
static inline int m2_gpu_tile_words(int n_experts)
{
    const int words = (M2_GPU_MARK_WORDS / n_experts - 1) | 1;
    return words < M2_GPU_TILE_WORDS_MAX ? words : M2_GPU_TILE_WORDS_MAX;
}

extern const m2_device_limits m2_gpu_limits;

#endif
