#include "backend/random_case.h"

/* Truth in f64, and how far `y` stands from it. */
static double linear_error(const m2_linear_args *args)
{
    const int64_t n = args->x->shape[0], k = args->x->shape[1], out = args->y->shape[1];
    double difference = 0, norm = 0;
    for (int64_t row = 0; row < n; row++) {
        int64_t group = 0;
        while (args->groups && row >= args->groups->begin[group + 1]) group++;
        for (int64_t o = 0; o < out; o++) {
            double truth = args->bias ? value_at(args->bias, group * out + o) : 0;
            for (int64_t i = 0; i < k; i++)
                truth +=
                    value_at(args->x, row * k + i) * value_at(args->w, (group * out + o) * k + i);
            const double error = value_at(args->y, row * out + o) - truth;
            difference += error * error;
            norm += truth * truth;
        }
    }
    return norm == 0 ? difference : sqrt(difference / norm);
}

static double random_linear_error(m2_dtype dtype, m2_dtype out_dtype, int64_t n, int64_t k,
                                  int64_t out, const m2_groups *groups)
{
    random_case c;
    random_case_open(&c, (uint64_t)(n * 1000 + k));
    const m2_ops ops = reference_ops();
    const int64_t n_groups = groups ? groups->n_groups : 1;
    m2_tensor x = random_tensor(&c, dtype, 1, n, k);
    m2_tensor w = random_tensor(&c, dtype, 0.1f, n_groups * out, k);
    m2_tensor bias = random_tensor(&c, M2_F32, 1, n_groups * out);
    m2_tensor y = m2_tensor_make(&c.arena, out_dtype, n, out);
    const m2_linear_args args = { .x = &x, .w = &w, .bias = &bias, .groups = groups, .y = &y };
    ops.linear(&ops, &args);
    const double error = linear_error(&args);
    random_case_close(&c);
    return error;
}

/* Catches a block left out, a tail of K that is not padded, a group that takes its neighbour's
 * weights, a bias of the wrong group. */
static void linear_follows_the_formula(void **state)
{
    (void)state;
    const m2_groups groups = { .n_groups = 3, .begin = { 0, 4, 4, 7 } }; /* one is empty */
    const int64_t ks[] = { 1, 31, 32, 33, 100, 192, 1100 };
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
        const m2_groups *g = i % 2 ? &groups : NULL;
        /* f32 products of about 1,000 terms: a few 1e-7 at the worst, 8e-8 seen */
        check_near(random_linear_error(M2_F32, M2_F32, 7, ks[i], 5, g), 0, 3e-7, "f32 k %d",
                   (int)ks[i]);
        check_near(random_linear_error(M2_BF16, M2_F32, 7, ks[i], 5, g), 0, 3e-7, "bf16 k %d",
                   (int)ks[i]);
        /* one rounding to bf16: at most 2^-8 of a value, less than half on average */
        check_near(random_linear_error(M2_BF16, M2_BF16, 7, ks[i], 5, g), 0, 0x1p-8, "k %d",
                   (int)ks[i]);
    }
}

/* A single f32 chain over so long a row is ten times worse than this.  Catches partial sums that
 * are not used. */
static void long_f32_products_keep_their_precision(void **state)
{
    (void)state;
    const double error = random_linear_error(M2_F32, M2_F32, 3, 12288, 16, NULL);
    check_near(error, 0, 2.5e-7, "k 12288"); /* measured: 1.7e-7 */
}

/* Denormals are zeros inside the operators: else results would depend on the unit that ran.
 * Catches a path that leaves the mode of the caller on. */
static void denormals_count_as_zero(void **state)
{
    (void)state;
    random_case c;
    random_case_open(&c, 1);
    const m2_ops ops = reference_ops();
    m2_tensor x = random_tensor(&c, M2_F32, 0, 1, 2), w = random_tensor(&c, M2_F32, 0, 1, 2);
    m2_tensor y = m2_tensor_make(&c.arena, M2_F32, 1, 1);
    ((float *)x.data)[0] = 0x1p-127f;
    ((float *)w.data)[0] = 0x1p100f;
    ((float *)x.data)[1] = 0x1p-64f;
    ((float *)w.data)[1] = 0x1p-63f;
    ops.linear(&ops, &(m2_linear_args){ .x = &x, .w = &w, .y = &y });
    assert_true(((float *)y.data)[0] == 0.0f);
    random_case_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_follows_the_formula),
        cmocka_unit_test(long_f32_products_keep_their_precision),
        cmocka_unit_test(denormals_count_as_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
