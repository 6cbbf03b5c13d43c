#include <assert.h>

#include "backend/cpu/ref/product.h"
#include "backend/cpu/ref/ref.h"

/* Two taps reach each output, k and k + stride; one of them may come from outside and is zero. */
static void transposed_samples(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const m2_conv_transpose_args *args = context;
    const int64_t length = args->x->shape[0], c_in = args->x->shape[1];
    const int64_t c_out = args->y->shape[1], stride = args->stride, pad = (stride + 1) / 2;
    for (int64_t t = begin; t < end; t++) {
        for (int64_t o = 0; o < c_out; o++) {
            m2_sum sum = m2_sum_begin(M2_F32);
            for (int64_t k = (t + pad) % stride; k < 2 * stride; k += stride) {
                const int64_t from = (t + pad - k) / stride;
                const int is_inside = t + pad >= k && from < length;
                m2_sum_products(&sum, is_inside ? args->x->data : NULL, M2_F32, from * c_in,
                                args->w->data, M2_F32, (k * c_out + o) * c_in, 1, c_in);
            }
            float value = m2_sum_end(&sum);
            if (args->bias) value += ((const float *)args->bias->data)[o];
            ((float *)args->y->data)[t * c_out + o] = value;
        }
    }
}

void m2_ref_conv_transpose(const m2_ops *ops, const m2_conv_transpose_args *args)
{
    assert(args->x->n_dims == 2 && args->w->n_dims == 3 && args->y->n_dims == 2);
    assert(args->x->dtype == M2_F32 && args->w->dtype == M2_F32 && args->y->dtype == M2_F32);
    assert(args->w->shape[0] == 2 * (int64_t)args->stride);
    assert(args->w->shape[1] == args->y->shape[1] && args->w->shape[2] == args->x->shape[1]);
    assert(args->y->shape[0] == args->x->shape[0] * args->stride - args->stride % 2);
    assert(!args->bias || args->bias->dtype == M2_F32);
    m2_parallel_for(ops->pool, args->y->shape[0], 16, transposed_samples, (void *)args);
}
