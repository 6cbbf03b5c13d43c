/* time_channels.c - overwrite the first columns of every row with the embedding of its time.
 *
 *   p = tau * 1000;  f[i] = 10000^(-i / half);  row = [cos(p f[0]) ..., sin(p f[0]) ...]
 *
 * Timesteps are whole numbers, so rounding p undoes the division by 1000 exactly; without it ten of
 * the thousand, 507 among them, would come back one bit off.
 * Frequencies and phases are f64: p reaches 999, where an f32 phase would already be off by 3e-5.
 * They use products and sums alone, so that the bits do not depend on the machine's libm.
 */
#include "backend/cpu/ref/reduce.h"
#include "backend/cpu/ref/ref.h"
#include "core/fmath.h"

#define LN_10000 9.210340371976182736
#define LN_2     0.693147180559945309417
#define TWO_PI   6.283185307179586476925

/* exp(x) for -10 <= x <= 0 to about 1e-16: 2^k times the series of the rest, |rest| <= 0.35. */
static double exp_of(double x)
{
    const double k = rint(x / LN_2);
    const double rest = fma(-k, LN_2, x);
    double sum = 1.0;
    for (int n = 16; n >= 1; n--) sum = fma(sum, rest / n, 1.0);
    return ldexp(sum, (int)k);
}

static void embed_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_time_channels_args *args = context;
    const int half = args->n_channels / 2;
    const int64_t width = args->x->shape[1];
    (void)worker;

    for (int64_t row = begin; row < end; row++) {
        float *channels = (float *)args->x->data + row * width;
        const float position = rintf(((const float *)args->tau->data)[row] * 1000.0f);
        for (int i = 0; i < half; i++) {
            const double phase = (double)position * exp_of(-LN_10000 * i / half);
            const float turned = (float)fma(-rint(phase / TWO_PI), TWO_PI, phase);
            channels[i] = m2_cosf(turned);
            channels[half + i] = m2_sinf(turned);
        }
    }
}

void m2_ref_time_channels(const m2_ops *ops, const m2_time_channels_args *args)
{
    assert(args->x->n_dims == 2 && args->x->dtype == M2_F32 && args->tau->dtype == M2_F32);
    assert(args->n_channels % 2 == 0 && args->n_channels <= args->x->shape[1]);
    assert(m2_tensor_count(args->tau) == args->x->shape[0]);
    m2_time_channels_args copy = *args;
    m2_parallel_for(ops->pool, args->x->shape[0], M2_REF_ROWS_CHUNK, embed_rows, &copy);
}
