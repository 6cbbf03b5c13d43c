#include "backend/cpu/lanes/ops.h"
#include "backend/cpu/lanes/rows.h"
#include "backend/cpu/ref/groups.h"

#define ROWS_CHUNK 16

typedef struct rms_norm_loop {
    const m2_rms_norm_args *args;
    int64_t dim, rows_per_item; /* rows of one outermost item */
} rms_norm_loop;

static void norm_rows(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const rms_norm_loop *loop = context;
    const m2_rms_norm_args *args = loop->args;
    const int64_t dim = loop->dim;
    for (int64_t row = begin; row < end; row++) {
        const int64_t w_idx = m2_ref_group_of(args->groups, row / loop->rows_per_item) * dim;
        const v16 scale = v_set1(v_inverse_rms(args->x, row * dim, dim, args->eps));
        for (int64_t i = 0; i < dim; i += LANES) {
            v16 value =
                v_mul(v_get_n(args->x->data, args->x->dtype, row * dim + i, dim - i), scale);
            if (args->w) {
                const v16 w = v_get_n(args->w->data, args->w->dtype, w_idx + i, dim - i);
                value = v_mul(value, v_add(w, v_set1(args->weight_offset)));
            }
            v_put_n(args->y->data, args->y->dtype, row * dim + i, value, dim - i);
        }
    }
}

void M2_LANES_NAME(rms_norm)(const m2_ops *ops, const m2_rms_norm_args *args)
{
    const m2_tensor *x = args->x;
    rms_norm_loop loop = { .args = args, .dim = x->shape[x->n_dims - 1], .rows_per_item = 1 };
    for (int i = 1; i < x->n_dims - 1; i++) loop.rows_per_item *= x->shape[i];
    const int64_t n_items = x->n_dims == 1 ? 1 : x->shape[0];
    m2_parallel_for(ops->pool, n_items * loop.rows_per_item, ROWS_CHUNK, norm_rows, &loop);
}
