/* combine.c - out = sum of coefficient * term, left to right: every product and every sum is one f32
 * operation, as where the reference runs them one tensor at a time. */
#include "backend/cpu/ref/ref.h"

#include <assert.h>

#define CHUNK_ELEMS 16384

static void combine_range(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const m2_combine_args *args = context;
    float *out = args->out->data;
    for (int64_t i = begin; i < end; i++) {
        float sum = args->coefficients[0] * ((const float *)args->terms[0]->data)[i];
        for (int k = 1; k < args->n_terms; k++) {
            const float product = args->coefficients[k] * ((const float *)args->terms[k]->data)[i];
            sum = sum + product;
        }
        out[i] = sum;
    }
}

void m2_ref_combine(const m2_ops *ops, const m2_combine_args *args)
{
    const int64_t n = m2_tensor_count(args->out);
    assert(args->n_terms >= 1 && args->n_terms <= M2_COMBINE_MAX);
    assert(args->out->dtype == M2_F32);
    for (int k = 0; k < args->n_terms; k++)
        assert(args->terms[k]->dtype == M2_F32 && m2_tensor_count(args->terms[k]) == n);
    m2_combine_args copy = *args;
    m2_parallel_for(ops->pool, n, CHUNK_ELEMS, combine_range, &copy);
}
