/* unipc_step.c - one step of UniPC for one latent: clean latent, corrector of the move that led here,
 * predictor of the next; ops.h has the formulas.
 *
 * Every product and every sum is one f32 operation, as where the reference runs them one tensor at a
 * time. */
#include "backend/cpu/ref/ref.h"

#include <assert.h>

#define N_CLEAN     3
#define CHUNK_ELEMS 16384

typedef struct unipc_loop {
    const float *c; /* [M2_UNIPC_COEFFS] */
    const float *velocity;
    float *now, *last, *older, *start, *latent;
    int is_first;
} unipc_loop;

/* a x + b y + c z */
static float sum3(float a, float x, float b, float y, float c, float z)
{
    const float first = a * x, second = b * y, third = c * z;
    const float sum = first + second;
    return sum + third;
}

static float corrected(const unipc_loop *loop, int64_t i, float now)
{
    const float *c = loop->c;
    const float last = loop->last[i];
    float slope = now - last;
    if (c[M2_UNIPC_CORRECTOR] > 1.0f) {
        const float slope_older = (loop->older[i] - last) * c[M2_UNIPC_INVERSE_R];
        const float part_older = c[M2_UNIPC_RHO_OLDER] * slope_older;
        const float part_now = c[M2_UNIPC_RHO_NOW] * slope;
        slope = part_older + part_now;
    }
    return sum3(c[M2_UNIPC_CORRECTOR_START], loop->start[i], c[M2_UNIPC_CORRECTOR_LAST], last,
                c[M2_UNIPC_CORRECTOR_SLOPE], slope);
}

static float predicted(const unipc_loop *loop, int64_t i, float start, float now)
{
    const float *c = loop->c;
    if (c[M2_UNIPC_PREDICTOR] > 1.0f) {
        const float slope = (loop->last[i] - now) * c[M2_UNIPC_PREDICTOR_INVERSE_R];
        return sum3(c[M2_UNIPC_PREDICTOR_START], start, c[M2_UNIPC_PREDICTOR_NOW], now,
                    c[M2_UNIPC_PREDICTOR_SLOPE], slope);
    }
    const float from_start = c[M2_UNIPC_PREDICTOR_START] * start;
    const float from_now = c[M2_UNIPC_PREDICTOR_NOW] * now;
    return from_start + from_now;
}

static void step_range(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const unipc_loop *loop = context;
    const float *c = loop->c;
    for (int64_t i = begin; i < end; i++) {
        const float moved = c[M2_UNIPC_MINUS_SIGMA] * loop->velocity[i];
        const float now = loop->latent[i] + moved;
        loop->now[i] = now;
        if (loop->is_first) loop->last[i] = loop->older[i] = 0.0f;
        if (c[M2_UNIPC_PREDICTOR] < 1.0f) {
            loop->latent[i] = now;
            continue;
        }
        const float start =
            c[M2_UNIPC_CORRECTOR] < 1.0f ? loop->latent[i] : corrected(loop, i, now);
        loop->start[i] = start;
        loop->latent[i] = predicted(loop, i, start, now);
    }
}

void m2_ref_unipc_step(const m2_ops *ops, const m2_unipc_step_args *args)
{
    const int64_t n = m2_tensor_count(args->latent), k = *(const int32_t *)args->step->data;
    assert(args->step->dtype == M2_I32 && args->table->dtype == M2_F32);
    assert(args->table->shape[1] == M2_UNIPC_COEFFS && k >= 0 && k < args->table->shape[0]);
    assert(args->latent->dtype == M2_F32 && args->velocity->dtype == M2_F32);
    assert(m2_tensor_count(args->velocity) == n && m2_tensor_count(args->start) == n);
    for (int i = 0; i < N_CLEAN; i++) assert(m2_tensor_count(args->clean[i]) == n);
    unipc_loop loop = { .c = (const float *)args->table->data + k * M2_UNIPC_COEFFS,
                        .velocity = args->velocity->data,
                        .now = args->clean[k % N_CLEAN]->data,
                        .last = args->clean[(k + 2) % N_CLEAN]->data,
                        .older = args->clean[(k + 1) % N_CLEAN]->data,
                        .start = args->start->data,
                        .latent = args->latent->data,
                        .is_first = k == 0 };
    m2_parallel_for(ops->pool, n, CHUNK_ELEMS, step_range, &loop);
}
