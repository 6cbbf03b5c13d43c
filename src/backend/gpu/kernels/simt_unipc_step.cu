/* simt_unipc_step.cu - one step of UniPC for one latent, one thread an element.
 *
 * Why       the step comes from a counter on the device, so a recorded step serves every step: which
 *           row of the table, which buffer is the newest, which order
 * Numerics  every product and every sum is one f32 operation, never contracted: the bits of the CPU
 * Twin      backend/cpu/ref/unipc_step.c; ops.h has the formulas */
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

#define N_CLEAN 3

typedef struct unipc_pointers {
    const float *velocity, *table;
    const int32_t *step;
    float *clean[N_CLEAN], *start, *latent;
    int n_steps;
} unipc_pointers;

/* a x + b y + c z */
static __device__ __forceinline__ float sum3(float a, float x, float b, float y, float c, float z)
{
    return __fadd_rn(__fadd_rn(__fmul_rn(a, x), __fmul_rn(b, y)), __fmul_rn(c, z));
}

static __device__ __forceinline__ float corrected(const float *c, float start, float now,
                                                  float last, float older)
{
    float slope = __fadd_rn(now, -last);
    if (c[M2_UNIPC_CORRECTOR] > 1.0f) {
        const float slope_older = __fmul_rn(__fadd_rn(older, -last), c[M2_UNIPC_INVERSE_R]);
        slope = __fadd_rn(__fmul_rn(c[M2_UNIPC_RHO_OLDER], slope_older),
                          __fmul_rn(c[M2_UNIPC_RHO_NOW], slope));
    }
    return sum3(c[M2_UNIPC_CORRECTOR_START], start, c[M2_UNIPC_CORRECTOR_LAST], last,
                c[M2_UNIPC_CORRECTOR_SLOPE], slope);
}

static __device__ __forceinline__ float predicted(const float *c, float start, float now,
                                                  float last)
{
    if (c[M2_UNIPC_PREDICTOR] > 1.0f) {
        const float slope = __fmul_rn(__fadd_rn(last, -now), c[M2_UNIPC_PREDICTOR_INVERSE_R]);
        return sum3(c[M2_UNIPC_PREDICTOR_START], start, c[M2_UNIPC_PREDICTOR_NOW], now,
                    c[M2_UNIPC_PREDICTOR_SLOPE], slope);
    }
    return __fadd_rn(__fmul_rn(c[M2_UNIPC_PREDICTOR_START], start),
                     __fmul_rn(c[M2_UNIPC_PREDICTOR_NOW], now));
}

static __global__ void unipc_kernel(unipc_pointers p, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * SIMT_THREADS + threadIdx.x;
    const int k = *p.step;
    /* A replay too many must not touch anything. */
    if (i >= n || k < 0 || k >= p.n_steps) return;
    const float *c = p.table + (int64_t)k * M2_UNIPC_COEFFS;
    const int turn = k % N_CLEAN;
    float *newest = turn == 0 ? p.clean[0] : turn == 1 ? p.clean[1] : p.clean[2];
    float *before = turn == 0 ? p.clean[2] : turn == 1 ? p.clean[0] : p.clean[1];
    float *oldest = turn == 0 ? p.clean[1] : turn == 1 ? p.clean[2] : p.clean[0];

    const float x = p.latent[i];
    const float now = __fadd_rn(x, __fmul_rn(c[M2_UNIPC_MINUS_SIGMA], p.velocity[i]));
    if (k == 0) before[i] = oldest[i] = 0.0f;
    newest[i] = now;
    if (c[M2_UNIPC_PREDICTOR] < 1.0f) {
        p.latent[i] = now;
        return;
    }
    const float last = before[i];
    const float start =
        c[M2_UNIPC_CORRECTOR] < 1.0f ? x : corrected(c, p.start[i], now, last, oldest[i]);
    p.start[i] = start;
    p.latent[i] = predicted(c, start, now, last);
}

extern "C" void m2_gpu_unipc_step(const m2_ops *ops, const m2_unipc_step_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t n = m2_tensor_count(args->latent);
    unipc_pointers p;
    assert(args->table->shape[1] == M2_UNIPC_COEFFS && args->step->dtype == M2_I32);
    assert(m2_tensor_count(args->velocity) == n && m2_tensor_count(args->start) == n);
    p.velocity = (const float *)args->velocity->data;
    p.table = (const float *)args->table->data;
    p.step = (const int32_t *)args->step->data;
    for (int j = 0; j < N_CLEAN; j++) p.clean[j] = (float *)args->clean[j]->data;
    p.start = (float *)args->start->data;
    p.latent = (float *)args->latent->data;
    p.n_steps = (int)args->table->shape[0];
    if (n == 0) return;
    unipc_kernel<<<(unsigned int)((n + SIMT_THREADS - 1) / SIMT_THREADS), SIMT_THREADS, 0,
                   gpu->stream>>>(p, n);
    m2_gpu_launched(gpu, "unipc_step");
}
