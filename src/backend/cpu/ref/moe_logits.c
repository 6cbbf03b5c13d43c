#include <assert.h>

#include "backend/cpu/ref/product.h"
#include "backend/cpu/ref/ref.h"

static void logits_rows(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const m2_moe_logits_args *args = context;
    const int64_t n = args->x->shape[0], n_heads = args->x->shape[1], dim = args->x->shape[2];
    const int64_t n_experts = args->logits->shape[2];
    for (int64_t t = begin; t < end; t++) {
        for (int64_t h = 0; h < n_heads; h++) {
            for (int64_t e = 0; e < n_experts; e++) {
                m2_sum sum = m2_sum_begin(M2_F32);
                m2_sum_products(&sum, args->x->data, M2_BF16, (t * n_heads + h) * dim,
                                args->gate->data, M2_F32, (h * n_experts + e) * dim, 1, dim);
                ((float *)args->logits->data)[(h * n + t) * n_experts + e] = m2_sum_end(&sum);
            }
        }
    }
}

void m2_ref_moe_logits(const m2_ops *ops, const m2_moe_logits_args *args)
{
    assert(args->x->n_dims == 3 && args->x->dtype == M2_BF16 && args->gate->dtype == M2_F32);
    assert(args->logits->n_dims == 3 && args->logits->dtype == M2_F32);
    assert(args->logits->shape[0] == args->x->shape[1]);
    assert(args->logits->shape[1] == args->x->shape[0]);
    assert(args->gate->shape[0] == args->logits->shape[0] * args->logits->shape[2]);
    assert(args->gate->shape[1] == args->x->shape[2]);
    m2_parallel_for(ops->pool, args->x->shape[0], 4, logits_rows, (void *)args);
}
