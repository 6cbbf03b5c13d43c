/* linear.c - the choice between the vendor's products and our own, by the weight's shape alone. */
#include "backend/gpu/blas.h"
#include "backend/gpu/launch.h"

static m2_gpu_product product_of(const m2_linear_args *args, int64_t out, int group, int64_t begin,
                                 int64_t end)
{
    const int64_t k = args->x->shape[args->x->n_dims - 1];
    const size_t size = m2_dtype_bytes(args->x->dtype), y_size = m2_dtype_bytes(args->y->dtype);
    m2_gpu_product product = {
        .n = end - begin,
        .k = k,
        .out = out,
        .x = (const char *)args->x->data + (size_t)(begin * k) * size,
        .w = (const char *)args->w->data + (size_t)(group * out * k) * size,
        .y = (char *)args->y->data + (size_t)(begin * out) * y_size,
        .dtype = args->x->dtype,
        .y_dtype = args->y->dtype,
    };
    if (args->bias) {
        product.bias_dtype = args->bias->dtype;
        product.bias = (const char *)args->bias->data +
                       (size_t)(group * out) * m2_dtype_bytes(args->bias->dtype);
    }
    return product;
}

static int by_library(m2_gpu *gpu, const m2_linear_args *args)
{
    const int64_t n = m2_tensor_count(args->x) / args->x->shape[args->x->n_dims - 1];
    const m2_groups whole = { .n_groups = 1, .begin = { 0, n } };
    const m2_groups *groups = args->groups ? args->groups : &whole;
    const int64_t out = args->w->shape[0] / groups->n_groups;
    for (int g = 0; g < groups->n_groups; g++) {
        if (groups->begin[g] == groups->begin[g + 1]) continue;
        const m2_gpu_product product =
            product_of(args, out, g, groups->begin[g], groups->begin[g + 1]);
        /* The answer depends on the weight's shape alone: it is the same for every group. */
        if (!m2_gpu_blas_linear(gpu, &product)) return 0;
    }
    return 1;
}

void m2_gpu_linear(const m2_ops *ops, const m2_linear_args *args)
{
    m2_gpu *gpu = m2_gpu_of(ops);
    if (m2_tensor_count(args->y) == 0) return;
    /* Rows of several groups: in one launch, where the library needs one for each. */
    if (args->groups && args->groups->n_groups > 1 && M2_GPU_TRY_SM90(linear, gpu, args)) return;
    /* Long sums in f32 need the blocks of our own kernel to meet the error rule. */
    if (gpu->blas && args->x->dtype == M2_BF16 && by_library(gpu, args)) return;
    m2_gpu_linear_own(gpu, args);
}
