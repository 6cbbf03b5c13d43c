#include "pipeline/bench_roof.h"

#include "core/rng.h"

#include <stdlib.h>

#define N_WARM  3
#define N_TIMES 10
#define BLOCK   ((int64_t)1 << 20)

/* A product that fills every multiprocessor several times over; on the host one of milliseconds.
 * Arrays to copy are far larger than any cache. */
static int64_t product_size(const m2_ops *ops)
{
    return m2_device_is_host(ops) ? 1024 : 8192;
}

static size_t copy_size(const m2_ops *ops)
{
    return m2_device_is_host(ops) ? (size_t)64 << 20 : (size_t)1 << 30;
}

size_t m2_roof_scratch_bytes(const m2_ops *ops)
{
    const size_t n = (size_t)product_size(ops);
    const size_t product = 3 * n * n * sizeof(m2_bf16), copy = 2 * copy_size(ops);
    return (product > copy ? product : copy) + 4 * M2_ARENA_ALIGN;
}

m2_status m2_fill_normals(const m2_ops *ops, uint64_t seed, m2_tensor *tensor)
{
    const int64_t n = m2_tensor_count(tensor), n_block = n < BLOCK ? n : BLOCK;
    const size_t bytes = (size_t)(n_block ? n_block : 1) * sizeof(float);
    m2_rng rng;
    M2_TRY(m2_rng_init(&rng, seed, M2_RNG_GRID_DEFAULT));
    float *values = malloc(bytes);
    void *block = malloc(bytes);
    if (!values || !block) {
        free(values);
        free(block);
        return m2_fail(M2_ERR_MEMORY, "no memory for random values");
    }
    m2_rng_normal(&rng, ops->pool, values, n_block);
    m2_convert(values, M2_F32, block, tensor->dtype, n_block);
    const m2_tensor flat = m2_tensor_over(tensor->data, tensor->dtype, n);
    for (int64_t begin = 0; begin < n; begin += n_block) {
        m2_tensor part = m2_tensor_rows(&flat, begin, n - begin < n_block ? n : begin + n_block);
        ops->upload(ops, &part, block);
    }
    free(values);
    free(block);
    return M2_OK;
}

static int by_size(const void *a, const void *b)
{
    const double one = *(const double *)a, two = *(const double *)b;
    return (one > two) - (one < two);
}

double m2_median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_size);
    return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

typedef void timed_call(const m2_ops *ops, const void *args);

static void call_linear(const m2_ops *ops, const void *args)
{
    ops->linear(ops, args);
}

static void call_convert(const m2_ops *ops, const void *args)
{
    ops->convert(ops, args);
}

static m2_status time_calls(const m2_ops *ops, timed_call *call, const void *args, double *ms_out)
{
    const m2_device_api *api = ops->device_api;
    double times[N_TIMES];
    m2_timer *timer = NULL;
    M2_TRY(api->timer_create(ops, N_TIMES + 1, &timer));
    for (int i = 0; i < N_WARM; i++) call(ops, args);
    for (int i = 0; i < N_TIMES; i++) {
        api->timer_mark(ops, timer, i);
        call(ops, args);
    }
    api->timer_mark(ops, timer, N_TIMES);
    const m2_status status = m2_device_wait(ops);
    for (int i = 0; i < N_TIMES && status == M2_OK; i++)
        times[i] = api->timer_ms(ops, timer, i, i + 1);
    api->timer_destroy(ops, timer);
    if (status == M2_OK) *ms_out = m2_median(times, N_TIMES);
    return status;
}

static m2_status measure_product(const m2_ops *ops, m2_arena *scratch, m2_roof *roof)
{
    const int64_t n = roof->product_size;
    m2_tensor x = m2_tensor_make(scratch, M2_BF16, n, n);
    m2_tensor w = m2_tensor_make(scratch, M2_BF16, n, n);
    m2_tensor y = m2_tensor_make(scratch, M2_BF16, n, n);
    const m2_linear_args args = { .x = &x, .w = &w, .y = &y };
    double ms = 0;
    M2_TRY(m2_fill_normals(ops, 1, &x));
    M2_TRY(m2_fill_normals(ops, 2, &w));
    M2_TRY(time_calls(ops, call_linear, &args, &ms));
    roof->flop_s = 2e3 * (double)n * (double)n * (double)n / ms;
    return M2_OK;
}

static m2_status measure_copy(const m2_ops *ops, m2_arena *scratch, m2_roof *roof)
{
    const int64_t n = (int64_t)(roof->copy_size / sizeof(m2_bf16));
    m2_tensor x = m2_tensor_make(scratch, M2_BF16, n);
    m2_tensor y = m2_tensor_make(scratch, M2_BF16, n);
    const m2_convert_args args = { .x = &x, .y = &y };
    double ms = 0;
    M2_TRY(m2_fill_normals(ops, 3, &x));
    M2_TRY(time_calls(ops, call_convert, &args, &ms));
    roof->bytes_s = 2e3 * (double)roof->copy_size / ms;
    return M2_OK;
}

m2_status m2_roof_measure(const m2_ops *ops, m2_arena *scratch, m2_roof *roof_out)
{
    m2_roof roof = { .product_size = product_size(ops), .copy_size = copy_size(ops) };
    const size_t mark = m2_arena_save(scratch);
    m2_status status = measure_product(ops, scratch, &roof);
    m2_arena_restore(scratch, mark);
    if (status == M2_OK) status = measure_copy(ops, scratch, &roof);
    m2_arena_restore(scratch, mark);
    if (status == M2_OK) *roof_out = roof;
    return status;
}
