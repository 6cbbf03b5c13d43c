#include <assert.h>

#include "backend/cpu/ref/groups.h"
#include "backend/cpu/ref/product.h"
#include "backend/cpu/ref/ref.h"

typedef struct linear_job {
    const m2_linear_args *args;
    int64_t k, out;
} linear_job;

static void linear_rows(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const linear_job *job = context;
    const m2_linear_args *args = job->args;
    for (int64_t row = begin; row < end; row++) {
        const int64_t w_row = m2_ref_group_of(args->groups, row) * job->out;
        for (int64_t o = 0; o < job->out; o++) {
            m2_sum sum = m2_sum_begin(args->x->dtype);
            m2_sum_products(&sum, args->x->data, args->x->dtype, row * job->k, args->w->data,
                            args->w->dtype, (w_row + o) * job->k, 1, job->k);
            float value = m2_sum_end(&sum);
            if (args->bias) value += m2_load(args->bias->data, args->bias->dtype, w_row + o);
            m2_store(args->y->data, args->y->dtype, row * job->out + o, value);
        }
    }
}

void m2_ref_linear(const m2_ops *ops, const m2_linear_args *args)
{
    const int64_t n = args->x->shape[0];
    linear_job job = { .args = args, .k = args->x->shape[1], .out = args->y->shape[1] };
    assert(args->x->n_dims == 2 && args->w->n_dims == 2 && args->y->n_dims == 2);
    assert(args->w->dtype == args->x->dtype && args->w->shape[1] == job.k);
    assert(args->w->shape[0] == job.out * (args->groups ? args->groups->n_groups : 1));
    assert(args->y->shape[0] == n);
    assert(!args->groups || args->groups->begin[args->groups->n_groups] == n);
    m2_parallel_for(ops->pool, n, 4, linear_rows, &job);
}
