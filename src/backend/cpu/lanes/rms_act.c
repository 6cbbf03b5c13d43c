#include "backend/cpu/lanes/ops.h"
#include "backend/cpu/lanes/rows.h"
#include "backend/cpu/lanes/vactivation.h"

#include <assert.h>

#define POSITIONS 64

static void norm_positions(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_rms_act_args *args = context;
    const m2_tensor *x = args->x, *y = args->y;
    const int64_t dim = x->shape[x->n_dims - 1];
    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        const v16 scale = v_set1(v_inverse_rms(x, row * dim, dim, args->eps));
        for (int64_t i = 0; i < dim; i += LANES) {
            const int64_t idx = row * dim + i, left = dim - i;
            const v16 value = v_get_n(x->data, x->dtype, idx, left);
            const v16 normed = v_round(y->dtype, v_mul(value, scale));
            v_put_n(y->data, y->dtype, idx, v_activation(args->activation, normed), left);
        }
    }
}

void M2_LANES_NAME(rms_act)(const m2_ops *ops, const m2_rms_act_args *args)
{
    const int64_t count = m2_tensor_count(args->x);
    assert(args->x->dtype == args->y->dtype && m2_tensor_count(args->y) == count);
    m2_rms_act_args copy = *args;
    m2_parallel_for(ops->pool, count / args->x->shape[args->x->n_dims - 1], POSITIONS,
                    norm_positions, &copy);
}
