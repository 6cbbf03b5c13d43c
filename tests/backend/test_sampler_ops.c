#include "backend/random_case.h"

#include <stdlib.h>
#include <string.h>

static const int64_t shapes[][3] = { { 1, 1, 1 },    { 3, 7, 5 },    { 2, 16, 12 },
                                     { 5, 1, 4097 }, { 48, 4, 630 }, { 1, 9000, 1 } };
#define N_SHAPES (sizeof shapes / sizeof shapes[0])

static m2_tensor make_tensor(random_case *c, const int64_t shape[3], float scale)
{
    m2_tensor tensor = m2_tensor_new(&c->arena, M2_F32, 3, shape);
    random_fill(c, &tensor, scale);
    return tensor;
}

/* Scales for a frame each, or (n 1) one for all: some below 1, where skimming leaves off, none just
 * above, where it divides by almost nothing and f32 tells little. */
static m2_tensor random_scale(random_case *c, int64_t n)
{
    m2_tensor scale = m2_tensor_make(&c->arena, M2_F32, n);
    for (int64_t i = 0; i < n; i++)
        ((float *)scale.data)[i] = m2_test_random_u64(&c->random) % 5 == 0
                                       ? m2_test_random_uniform(&c->random, 0.5f, 1)
                                       : m2_test_random_uniform(&c->random, 1.5f, 8);
    return scale;
}

static m2_tensor copy_of(random_case *c, const m2_tensor *x)
{
    m2_tensor copy = m2_tensor_new(&c->arena, M2_F32, x->n_dims, x->shape);
    memcpy(copy.data, x->data, m2_tensor_bytes(x));
    return copy;
}

static float *f32(const m2_tensor *x)
{
    return x->data;
}

/* Every product and sum is one f32 operation, left to right.  Catches an FMA, another order, and a
 * result that is wrong where it overwrites a term. */
static void combine_is_products_and_sums_left_to_right(void **state)
{
    (void)state;
    random_case c;
    random_case_open(&c, 1);
    m2_ops ops;
    check_ok(m2_ops_init_cpu(&ops, NULL, M2_ISA_REF));
    for (size_t s = 0; s < N_SHAPES; s++) {
        for (int n_terms = 1; n_terms <= M2_COMBINE_MAX; n_terms++) {
            for (int target = -1; target < n_terms; target++) {
                m2_arena_reset(&c.arena);
                m2_tensor terms[M2_COMBINE_MAX], out = make_tensor(&c, shapes[s], 1);
                m2_combine_args args = { .n_terms = n_terms, .out = &out };
                for (int k = 0; k < n_terms; k++) {
                    terms[k] = make_tensor(&c, shapes[s], 1);
                    args.terms[k] = &terms[k];
                    args.coefficients[k] = m2_test_random_normal(&c.random);
                }
                const int64_t n = m2_tensor_count(&out);
                float *expected = m2_new(&c.arena, float, n);
                for (int64_t i = 0; i < n; i++) {
                    volatile float sum = args.coefficients[0] * f32(&terms[0])[i];
                    for (int k = 1; k < n_terms; k++) {
                        const volatile float product = args.coefficients[k] * f32(&terms[k])[i];
                        sum = sum + product;
                    }
                    expected[i] = sum;
                }
                if (target >= 0) args.out = &terms[target];
                ops.combine(&ops, &args);
                assert_memory_equal(args.out->data, expected, (size_t)n * sizeof(float));
            }
        }
    }
    random_case_close(&c);
}

/* u + s (c - u), with the scale of the frame.  Catches a scale of the wrong dimension. */
static void mix_uses_the_scale_of_the_frame(void **state)
{
    (void)state;
    random_case c;
    random_case_open(&c, 2);
    m2_ops ops;
    check_ok(m2_ops_init_cpu(&ops, NULL, M2_ISA_REF));
    for (size_t s = 0; s < N_SHAPES; s++) {
        for (int per_frame = 0; per_frame < 2; per_frame++) {
            m2_arena_reset(&c.arena);
            const m2_tensor cond = make_tensor(&c, shapes[s], 1);
            const m2_tensor uncond = make_tensor(&c, shapes[s], 1);
            const m2_tensor scale = random_scale(&c, per_frame ? shapes[s][1] : 1);
            m2_tensor v = make_tensor(&c, shapes[s], 1);
            ops.guidance_mix(&ops,
                             &(m2_guidance_mix_args){
                                 .cond = &cond, .uncond = &uncond, .scale = &scale, .v = &v });
            for (int64_t i = 0; i < m2_tensor_count(&v); i++) {
                const int64_t frame = per_frame ? i / shapes[s][2] % shapes[s][1] : 0;
                const volatile float difference = f32(&cond)[i] - f32(&uncond)[i];
                const volatile float scaled = f32(&scale)[frame] * difference;
                assert_true(f32(&v)[i] == f32(&uncond)[i] + scaled);
            }
        }
    }
    random_case_close(&c);
}

/* ---- skim, in f64 from its formulas ---- */

static int sign_of(double x)
{
    return (x > 0) - (x < 0);
}

/* How far an element is from the nearest switch of the mask, and the mask. */
static int mask_in_f64(double x, double c, double u, double s, double *margin)
{
    const double d = x - ((x - u) + s * ((x - c) - (x - u)));
    const double parts[] = { c - u, c, c * s - u * (s - 1), d, d - x };
    for (int i = 0; i < 5; i++) *margin = fmin(*margin, fabs(parts[i]));
    return sign_of(c - u) == sign_of(c) && sign_of(c) == sign_of(c * s - u * (s - 1)) &&
           sign_of(d) == sign_of(d - x);
}

/* Catches swapped arguments, the old u in the second step, w of the wrong scale, and a change where
 * the scale is not above 1.  Elements nearer than 1e-4 to a switch are not judged: f32 may choose
 * otherwise there. */
static void skim_moves_what_its_formulas_say(void **state)
{
    (void)state;
    random_case c;
    random_case_open(&c, 3);
    m2_ops ops;
    check_ok(m2_ops_init_cpu(&ops, NULL, M2_ISA_REF));
    int64_t n_judged = 0, n_moved = 0;
    for (size_t s = 0; s < N_SHAPES; s++) {
        for (int per_frame = 0; per_frame < 2; per_frame++) {
            m2_arena_reset(&c.arena);
            const m2_tensor cond = make_tensor(&c, shapes[s], 1);
            const m2_tensor latent = make_tensor(&c, shapes[s], 2);
            const m2_tensor scale = random_scale(&c, per_frame ? shapes[s][1] : 1);
            m2_tensor uncond = make_tensor(&c, shapes[s], 1);
            const m2_tensor before = copy_of(&c, &uncond);
            ops.guidance_skim(&ops, &(m2_guidance_skim_args){ .cond = &cond,
                                                              .latent = &latent,
                                                              .scale = &scale,
                                                              .skim_scale = 3,
                                                              .uncond = &uncond });
            for (int64_t i = 0; i < m2_tensor_count(&cond); i++) {
                const int64_t frame = per_frame ? i / shapes[s][2] % shapes[s][1] : 0;
                const double g = f32(&scale)[frame], x = f32(&latent)[i], v = f32(&cond)[i];
                double u = f32(&before)[i], margin = INFINITY;
                if (g > 1) {
                    const double w = (3 - 1) / (g - 1);
                    if (mask_in_f64(x, v, u, g, &margin)) u = v * (1 - w) + u * w;
                    if (mask_in_f64(x, u, v, g, &margin)) u = v * (1 - w) + u * w;
                }
                if (margin < 1e-4) continue;
                n_judged++;
                n_moved += f32(&uncond)[i] != f32(&before)[i];
                check_near(f32(&uncond)[i], u, 2e-4, "shape %d, element %d", (int)s, (int)i);
            }
        }
    }
    assert_true(n_judged > 100000);
    assert_in_range(n_moved, n_judged / 20, n_judged);
    random_case_close(&c);
}

/* Without an unconditional branch nothing moves, -0 counting as zero. */
static void skim_leaves_a_zero_branch_alone(void **state)
{
    (void)state;
    random_case c;
    random_case_open(&c, 4);
    m2_ops ops;
    check_ok(m2_ops_init_cpu(&ops, NULL, M2_ISA_REF));
    const m2_tensor cond = make_tensor(&c, shapes[4], 1), latent = make_tensor(&c, shapes[4], 1);
    const m2_tensor scale = random_scale(&c, 1);
    f32(&scale)[0] = 5;
    m2_tensor uncond = make_tensor(&c, shapes[4], 1);
    const int64_t n = m2_tensor_count(&uncond);
    for (int64_t i = 0; i < n; i++) f32(&uncond)[i] = i % 2 ? 0.0f : -0.0f;
    const m2_guidance_skim_args args = {
        .cond = &cond, .latent = &latent, .scale = &scale, .skim_scale = 3, .uncond = &uncond
    };
    ops.guidance_skim(&ops, &args);
    for (int64_t i = 0; i < n; i++) assert_true(f32(&uncond)[i] == 0);
    /* One element that is not zero is a branch. */
    f32(&uncond)[n - 1] = 1e-3f;
    ops.guidance_skim(&ops, &args);
    int64_t n_moved = 0;
    for (int64_t i = 0; i + 1 < n; i++) n_moved += f32(&uncond)[i] != 0;
    assert_true(n_moved > 0);
    random_case_close(&c);
}

static double deviation(const float *x, int64_t n, int64_t stride)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i * stride];
    for (int64_t i = 0; i < n; i++) squares += pow(x[i * stride] - sum / (double)n, 2);
    return sqrt(squares / (double)n);
}

/* Both layouts against f64; a mean far from 0 shows a deviation that cancels.  A flat prediction is
 * divided by 1e-6, not by 0. */
static void rescale_scales_every_channel(void **state)
{
    (void)state;
    random_case c;
    random_case_open(&c, 5);
    m2_ops ops;
    check_ok(m2_ops_init_cpu(&ops, NULL, M2_ISA_REF));
    for (int channels_last = 0; channels_last < 2; channels_last++) {
        for (int64_t n = 1; n <= 40000; n = n * 5 + 2) {
            const int64_t n_channels = 5;
            m2_arena_reset(&c.arena);
            m2_tensor cond = channels_last ? m2_tensor_make(&c.arena, M2_F32, n, n_channels)
                                           : m2_tensor_make(&c.arena, M2_F32, n_channels, n);
            m2_tensor v = cond;
            v.data = m2_new(&c.arena, float, n *n_channels);
            random_fill(&c, &cond, 1);
            random_fill(&c, &v, 3);
            for (int64_t i = 0; i < n * n_channels; i++) f32(&cond)[i] += 100;
            const m2_tensor before = copy_of(&c, &v);
            ops.guidance_rescale(&ops, &(m2_guidance_rescale_args){ .cond = &cond,
                                                                    .rescale = 0.7f,
                                                                    .channels_last = channels_last,
                                                                    .v = &v });
            const int64_t stride = channels_last ? n_channels : 1;
            for (int64_t channel = 0; channel < n_channels; channel++) {
                const int64_t begin = channels_last ? channel : channel * n;
                const double factor = 0.7f * deviation(f32(&cond) + begin, n, stride) /
                                          fmax(deviation(f32(&before) + begin, n, stride), 1e-6) +
                                      (1 - 0.7f);
                for (int64_t i = 0; i < n; i++) {
                    const double expected = f32(&before)[begin + i * stride] * factor;
                    check_near(f32(&v)[begin + i * stride], expected, 4e-7 * fabs(expected) + 1e-30,
                               "n %d, channel %d", (int)n, (int)channel);
                }
            }
        }
    }
    random_case_close(&c);
}

/* Any number of threads, any instruction set: the same bits. */
static void all_have_the_same_bits_for_any_threads_and_isa(void **state)
{
    (void)state;
    random_case c;
    random_case_open(&c, 6);
    static const int64_t shape[3] = { 7, 33, 1003 };
    const m2_tensor cond = make_tensor(&c, shape, 1), latent = make_tensor(&c, shape, 1);
    const m2_tensor uncond = make_tensor(&c, shape, 1), scale = random_scale(&c, 33);
    float *expected = NULL;
    const size_t mark = m2_arena_save(&c.arena);
    for (int isa = M2_ISA_REF; isa <= (int)m2_isa_detect(); isa++) {
        for (int n_threads = 1; n_threads <= 4; n_threads++) {
            m2_pool *pool = NULL;
            m2_ops ops;
            check_ok(m2_pool_create(n_threads, &pool));
            check_ok(m2_ops_init_cpu(&ops, pool, (m2_isa)isa));
            m2_tensor u = copy_of(&c, &uncond), v = copy_of(&c, &uncond);
            ops.guidance_skim(&ops, &(m2_guidance_skim_args){ .cond = &cond,
                                                              .latent = &latent,
                                                              .scale = &scale,
                                                              .skim_scale = 3,
                                                              .uncond = &u });
            ops.guidance_mix(&ops, &(m2_guidance_mix_args){
                                       .cond = &cond, .uncond = &u, .scale = &scale, .v = &v });
            ops.guidance_rescale(
                &ops, &(m2_guidance_rescale_args){ .cond = &cond, .rescale = 0.3f, .v = &v });
            ops.combine(&ops, &(m2_combine_args){ .n_terms = 3,
                                                  .terms = { &v, &u, &latent },
                                                  .coefficients = { 0.3f, -1.7f, 0.9f },
                                                  .out = &v });
            if (!expected) {
                expected = malloc(m2_tensor_bytes(&v));
                assert_non_null(expected);
                memcpy(expected, v.data, m2_tensor_bytes(&v));
            }
            assert_memory_equal(expected, v.data, m2_tensor_bytes(&v));
            m2_arena_restore(&c.arena, mark);
            m2_pool_destroy(pool);
        }
    }
    free(expected);
    random_case_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(combine_is_products_and_sums_left_to_right),
        cmocka_unit_test(mix_uses_the_scale_of_the_frame),
        cmocka_unit_test(skim_moves_what_its_formulas_say),
        cmocka_unit_test(skim_leaves_a_zero_branch_alone),
        cmocka_unit_test(rescale_scales_every_channel),
        cmocka_unit_test(all_have_the_same_bits_for_any_threads_and_isa),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
