#include "backend/cpu/lanes/ops.h"
#include "backend/cpu/lanes/vmath.h"

#include <assert.h>

#define SAMPLES 256 /* a multiple of the lanes: see snake_narrow */

static v16 v_snake(v16 x, v16 a, v16 gain)
{
    const v16 wave = v_sin(v_mul(a, x));
    return v_add(x, v_mul(gain, v_mul(wave, wave)));
}

static v16 v_gain(v16 beta)
{
    return v_div(v_set1(1.0f), v_add(v_exp(beta), v_set1(1e-9f)));
}

/* Sixteen channels at a time, down the samples. */
static void snake_wide(const m2_snake_args *args, int64_t begin, int64_t end)
{
    const int64_t channels = args->x->shape[1];
    const float *x = args->x->data;
    float *y = args->y->data;
    for (int64_t c = 0; c < channels; c += LANES) {
        const int64_t left = channels - c;
        const v16 a = v_exp(v_get_n(args->alpha->data, M2_F32, c, left));
        const v16 gain = v_gain(v_get_n(args->beta->data, M2_F32, c, left));
        for (int64_t i = begin; i < end; i++) {
            const int64_t idx = i * channels + c;
            v_put_n(y, M2_F32, idx, v_snake(v_get_n(x, M2_F32, idx, left), a, gain), left);
        }
    }
}

/* Fewer channels than lanes: along the memory, where the channels of a vector's lanes come round
 * again after `channels` vectors.  Chunks begin at a round. */
static void snake_narrow(const m2_snake_args *args, int64_t begin, int64_t end)
{
    const int64_t channels = args->x->shape[1];
    const float *x = args->x->data, *alpha = args->alpha->data, *beta = args->beta->data;
    float a[LANES][LANES], gain[LANES][LANES];
    for (int64_t v = 0; v < channels; v++) {
        for (int64_t l = 0; l < LANES; l++) {
            a[v][l] = alpha[(v * LANES + l) % channels];
            gain[v][l] = beta[(v * LANES + l) % channels];
        }
        v_store(a[v], v_exp(v_load(a[v])));
        v_store(gain[v], v_gain(v_load(gain[v])));
    }
    int64_t v = 0;
    for (int64_t i = begin * channels; i < end * channels; i += LANES) {
        const int64_t left = end * channels - i;
        const v16 value = v_snake(v_get_n(x, M2_F32, i, left), v_load(a[v]), v_load(gain[v]));
        v_put_n(args->y->data, M2_F32, i, value, left);
        v = v + 1 < channels ? v + 1 : 0;
    }
}

static void snake_samples(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_snake_args *args = context;
    (void)worker;
    if (args->x->shape[1] < LANES)
        snake_narrow(args, begin, end);
    else
        snake_wide(args, begin, end);
}

void M2_LANES_NAME(snake)(const m2_ops *ops, const m2_snake_args *args)
{
    assert(args->x->n_dims == 2 && args->x->dtype == M2_F32 && args->y->dtype == M2_F32);
    assert(m2_tensor_count(args->y) == m2_tensor_count(args->x));
    m2_snake_args copy = *args;
    m2_parallel_for(ops->pool, args->x->shape[0], SAMPLES, snake_samples, &copy);
}
