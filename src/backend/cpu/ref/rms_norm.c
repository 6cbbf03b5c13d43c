/* rms_norm.c - y = (x * rsqrt(mean(x^2) + eps)) * (w[g] + offset), row by row.
 *
 * The weight slice is that of the outermost row: heads of one token share a group.
 */
#include "backend/cpu/ref/groups.h"
#include "backend/cpu/ref/reduce.h"
#include "backend/cpu/ref/ref.h"

typedef struct rms_norm_loop {
    const m2_rms_norm_args *args;
    int64_t dim, rows_per_item; /* rows of one outermost item */
} rms_norm_loop;

static void norm_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const rms_norm_loop *loop = context;
    const m2_rms_norm_args *args = loop->args;
    const int64_t dim = loop->dim;
    (void)worker;

    for (int64_t row = begin; row < end; row++) {
        const int64_t group = m2_ref_group_of(args->groups, row / loop->rows_per_item);
        const int64_t first = row * dim;
        const float scale = m2_ref_inverse_rms(args->x, first, dim, args->eps);
        for (int64_t i = 0; i < dim; i++) {
            float value = m2_ref_get(args->x, first + i) * scale;
            if (args->w) value *= m2_ref_get(args->w, group * dim + i) + args->weight_offset;
            m2_ref_put(args->y, first + i, value);
        }
    }
}

void m2_ref_rms_norm(const m2_ops *ops, const m2_rms_norm_args *args)
{
    const m2_tensor *x = args->x;
    assert(x->n_dims >= 1 && m2_tensor_count(args->y) == m2_tensor_count(x));
    const int64_t dim = x->shape[x->n_dims - 1];
    int64_t rows_per_item = 1;
    for (int i = 1; i < x->n_dims - 1; i++) rows_per_item *= x->shape[i];
    const int64_t n_items = x->n_dims == 1 ? 1 : x->shape[0];
    assert(!args->w ||
           m2_tensor_count(args->w) == dim * (args->groups ? args->groups->n_groups : 1));
    assert(!args->groups || args->groups->begin[args->groups->n_groups] == n_items);

    m2_parallel_for(ops->pool, n_items * rows_per_item, M2_REF_ROWS_CHUNK, norm_rows,
                    &(rms_norm_loop){ args, dim, rows_per_item });
}
