#include "backend/cpu/ref/ref.h"

#include "core/fmath.h"

#include <assert.h>

#define SAMPLES 256

/* Channel by channel, so that the exponentials are taken once a chunk. */
static void snake_samples(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_snake_args *args = context;
    const int64_t channels = args->x->shape[1];
    const float *x = args->x->data, *alpha = args->alpha->data, *beta = args->beta->data;
    float *y = args->y->data;
    (void)worker;
    for (int64_t c = 0; c < channels; c++) {
        const float a = m2_expf(alpha[c]);
        const float gain = 1.0f / (m2_expf(beta[c]) + 1e-9f);
        for (int64_t i = begin * channels + c; i < end * channels; i += channels) {
            const float wave = m2_sinf(a * x[i]);
            y[i] = x[i] + gain * (wave * wave);
        }
    }
}

void m2_ref_snake(const m2_ops *ops, const m2_snake_args *args)
{
    const int64_t samples = args->x->shape[0], channels = args->x->shape[1];
    assert(args->x->n_dims == 2 && args->x->dtype == M2_F32 && args->y->dtype == M2_F32);
    assert(m2_tensor_count(args->y) == samples * channels);
    assert(args->alpha->shape[0] == channels && args->beta->shape[0] == channels);
    m2_snake_args copy = *args;
    m2_parallel_for(ops->pool, samples, SAMPLES, snake_samples, &copy);
}
