/* attention.c - attention by the vendor's library: one call for each segment, then the sinks. */
#include "backend/gpu/dnn.h"

#define DIM_MAX   256
#define DIM_STEP  8
#define ALIGNMENT 16

/* The workspace: the library's own, then the logarithms of a segment. */
#define LSE_BYTES (M2_GPU_WORKSPACE_BYTES - M2_GPU_DNN_BYTES)

/* A plan takes 60 ms to 1.3 s to build (measured), for each length that comes: a step calls it
 * thousands of times, a prompt a few.  FLOP of a segment. */
#define WORK_MIN 1e12

static double work_of(const m2_attention_args *args, int segment)
{
    const double n = (double)(args->segments[segment + 1] - args->segments[segment]);
    const double work = 4.0 * n * n * (double)(args->q->shape[1] * args->q->shape[2]);
    return args->is_causal ? work / 2 : work;
}

/* By the shapes alone; what else the library refuses it says itself. */
static int is_for_library(const m2_gpu *gpu, const m2_attention_args *args)
{
    const int64_t dim = args->q->shape[2], row = args->q->shape[1] * (int64_t)sizeof(float);
    const uintptr_t pointers = (uintptr_t)args->q->data | (uintptr_t)args->k->data |
                               (uintptr_t)args->v->data | (uintptr_t)args->y->data;
    if (!gpu->dnn || args->q->dtype != M2_BF16 || dim > DIM_MAX || dim % DIM_STEP != 0 ||
        pointers % ALIGNMENT != 0)
        return 0;
    for (int s = 0; s < args->n_segments; s++) {
        if ((args->segments[s + 1] - args->segments[s]) * row > (int64_t)LSE_BYTES) return 0;
        if (work_of(args, s) < WORK_MIN && !gpu->prefers_dnn) return 0;
    }
    return 1;
}

int m2_gpu_attention_library(m2_gpu *gpu, const m2_attention_args *args)
{
    if (!is_for_library(gpu, args)) return 0;
    m2_gpu_heads heads = {
        .n_heads = args->q->shape[1],
        .n_kv = args->k->shape[1],
        .dim = args->q->shape[2],
        .is_causal = args->is_causal,
        .scale = args->scale,
        .lse = (float *)((char *)gpu->workspace + M2_GPU_DNN_BYTES),
        .memory = gpu->workspace,
    };
    for (int s = 0; s < args->n_segments; s++) {
        const int64_t begin = args->segments[s];
        const size_t q_at = (size_t)(begin * heads.n_heads * heads.dim) * sizeof(m2_bf16);
        const size_t k_at = (size_t)(begin * heads.n_kv * heads.dim) * sizeof(m2_bf16);
        heads.n = args->segments[s + 1] - begin;
        heads.q = (const char *)args->q->data + q_at;
        heads.k = (const char *)args->k->data + k_at;
        heads.v = (const char *)args->v->data + k_at;
        heads.y = (char *)args->y->data + q_at;
        if (heads.n == 0) continue;
        if (!m2_gpu_dnn_attend(gpu, &heads)) return 0;
        if (args->sinks)
            m2_gpu_attention_sinks(gpu, &heads, args->sinks->data, (int)args->sinks->shape[0]);
    }
    return 1;
}
