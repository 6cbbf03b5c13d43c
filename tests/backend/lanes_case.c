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

/* Small counts often, larger ones now and then, and the edges of blocks. */
int64_t draw_size(random_case *c, int64_t largest)
{
    static const int64_t edges[] = { 1, 16, 31, 32, 33, 64, 96, 97, 128, 129, 256 };
    const int64_t kind = random_int(c, 0, 3);
    int64_t n =
        kind == 0 ? edges[random_int(c, 0, 10)] : random_int(c, 1, kind == 1 ? 12 : largest);
    return n < largest ? n : largest;
}

/* Now and then a zero row, denormals, an infinity. */
static void disturb(random_case *c, m2_tensor *tensor)
{
    const int64_t n = m2_tensor_count(tensor), width = tensor->shape[tensor->n_dims - 1];
    const int64_t kind = random_int(c, 0, 5);
    const size_t bytes = m2_dtype_bytes(tensor->dtype);
    if (n == 0) return;
    if (kind == 0) memset(tensor->data, 0, (size_t)width * bytes);
    for (int64_t i = 0; i < n / 7 && kind == 1; i++) {
        const float tiny = (i & 1 ? -1.0f : 1.0f) * 0x1p-130f * (float)(i + 1);
        m2_convert(&tiny, M2_F32, (char *)tensor->data + (size_t)(i * 7) * bytes, tensor->dtype, 1);
    }
    if (kind == 2) {
        const float infinite = random_int(c, 0, 1) ? INFINITY : -INFINITY;
        m2_convert(&infinite, M2_F32,
                   (char *)tensor->data + (size_t)random_int(c, 0, n - 1) * bytes, tensor->dtype,
                   1);
    }
}

m2_tensor drawn(random_case *c, float scale, m2_tensor tensor)
{
    random_fill(c, &tensor, scale);
    disturb(c, &tensor);
    return tensor;
}

m2_dtype draw_act(random_case *c)
{
    return random_int(c, 0, 1) ? M2_BF16 : M2_F32;
}

/* One to three groups over n rows, some of them empty. */
m2_groups draw_groups(random_case *c, int64_t n)
{
    m2_groups groups = { .n_groups = (int)random_int(c, 1, 3) };
    for (int g = 1; g < groups.n_groups; g++)
        groups.begin[g] = random_int(c, groups.begin[g - 1], n);
    groups.begin[groups.n_groups] = n;
    return groups;
}
