#include "backend/cpu/ref/ref.h"

#include "backend/cpu/ref/act.h"
#include "backend/cpu/ref/activation.h"
#include "backend/cpu/ref/reduce.h"

#include <assert.h>

/* Positions in a chunk: enough work to be worth handing over. */
#define POSITIONS 64

static void norm_positions(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_rms_act_args *args = context;
    const m2_dtype dtype = args->y->dtype;
    const int64_t dim = args->x->shape[args->x->n_dims - 1];
    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        const float scale = m2_ref_inverse_rms(args->x, row * dim, dim, args->eps);
        for (int64_t i = row * dim; i < (row + 1) * dim; i++) {
            const float normed = m2_ref_round(dtype, m2_ref_get(args->x, i) * scale);
            m2_ref_put(args->y, i, activation_of(args->activation, normed));
        }
    }
}

void m2_ref_rms_act(const m2_ops *ops, const m2_rms_act_args *args)
{
    const int64_t count = m2_tensor_count(args->x);
    assert(args->x->dtype == args->y->dtype && m2_tensor_count(args->y) == count);
    m2_rms_act_args copy = *args;
    m2_parallel_for(ops->pool, count / args->x->shape[args->x->n_dims - 1], POSITIONS,
                    norm_positions, &copy);
}
