#include "backend/lanes_case.h"

#include <stdio.h>

#define N_THREADS 3
static const int thread_counts[N_THREADS] = { 1, 2, 5 };

static int is_nan_at(const m2_tensor *tensor, int64_t i)
{
    return isnan(value_at(tensor, i));
}

/* A NaN is as good as another: which of two a sum passes on is the processor's choice. */
static int64_t first_difference(const m2_tensor *a, const m2_tensor *b)
{
    const size_t bytes = m2_dtype_bytes(a->dtype);
    for (int64_t i = 0; i < m2_tensor_count(a); i++) {
        const size_t at = (size_t)i * bytes;
        if (memcmp((const char *)a->data + at, (const char *)b->data + at, bytes) != 0 &&
            !(is_nan_at(a, i) && is_nan_at(b, i)))
            return i;
    }
    return -1;
}

void check_operator(const char *name, draw_and_run *draw, int n_cases)
{
    const m2_isa best = m2_isa_detect();
    m2_pool *pools[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) check_ok(m2_pool_create(thread_counts[i], &pools[i]));
    for (int seed = 1; seed <= n_cases; seed++) {
        random_case expected, got;
        m2_ops ops;
        m2_tensor y_expected, y;
        random_case_open(&expected, (uint64_t)seed);
        check_ok(m2_ops_init_cpu(&ops, pools[1], M2_ISA_REF));
        draw(&expected, &ops, &y_expected);
        for (int isa = M2_ISA_AVX2; isa <= (int)best; isa++) {
            for (int i = 0; i < N_THREADS; i++) {
                random_case_open(&got, (uint64_t)seed);
                check_ok(m2_ops_init_cpu(&ops, pools[i], (m2_isa)isa));
                draw(&got, &ops, &y);
                const int64_t at = first_difference(&y, &y_expected);
                if (at >= 0)
                    fail_msg("%s, %s, %d threads, seed %d: element %lld is %.9g, not %.9g", name,
                             ops.isa, thread_counts[i], seed, (long long)at, value_at(&y, at),
                             value_at(&y_expected, at));
                random_case_close(&got);
            }
        }
        random_case_close(&expected);
    }
    for (int i = 0; i < N_THREADS; i++) m2_pool_destroy(pools[i]);
}
