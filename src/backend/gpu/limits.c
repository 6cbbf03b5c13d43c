#include "backend/gpu/limits.h"

#define WORKSPACE ((int64_t)M2_GPU_WORKSPACE_BYTES)

static int64_t delta_tokens(int64_t n_key_heads, int64_t n_value_heads)
{
    const int64_t group_bytes =
        n_value_heads * M2_GPU_DELTA_VALUE_BYTES + n_key_heads * M2_GPU_DELTA_KEY_BYTES;
    return WORKSPACE / group_bytes * M2_GPU_DELTA_TOKENS;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Routes are numbered in 32 bits; then the sort's counts, one tile more than there are routes for, and
 * the list of work must fit. */
static int64_t routed_tokens(int64_t n_heads, int64_t n_experts, int64_t top_k)
{
    const int64_t rows = n_heads * n_experts;
    const int64_t tile_routes = 32 * (int64_t)m2_gpu_tile_words((int)n_experts);
    const int64_t n_tiles = WORKSPACE / (rows * M2_GPU_COUNT_BYTES) - 1;
    const int64_t n_works = WORKSPACE / M2_GPU_WORK_BYTES - rows - 1;
    const int64_t by_counts = n_tiles > 0 ? n_tiles * tile_routes / top_k : 0;
    const int64_t by_work = n_works > 0 ? n_works * M2_GPU_WORK_ROUTES / (n_heads * top_k) : 0;
    return least(INT32_MAX / (n_heads * top_k), least(by_counts, by_work));
}

const m2_device_limits m2_gpu_limits = { .head_dim = M2_GPU_HEAD_DIM_MAX,
                                         .n_experts = M2_GPU_EXPERTS_MAX,
                                         .top_k = M2_GPU_TOP_K_MAX,
                                         .stream_tokens = WORKSPACE / M2_GPU_MHC_TOKEN_BYTES,
                                         .delta_tokens = delta_tokens,
                                         .routed_tokens = routed_tokens };
