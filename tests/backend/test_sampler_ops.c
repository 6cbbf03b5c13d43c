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

#define N_ROWS 3 /* of a table of scales */

/* Rows of scales for a frame each, or (n 1) one for all: some below 1, where skimming leaves off, none
 * just above, where it divides by almost nothing and f32 tells little. */
static m2_tensor random_scale(random_case *c, int64_t n)
{
    m2_tensor scale = m2_tensor_make(&c->arena, M2_F32, N_ROWS, n);
    for (int64_t i = 0; i < N_ROWS * n; i++)
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

/* ---- unipc_step ---- */

/* One f32 operation each, whatever the compiler would like to do with two of them. */
static float times(float a, float b)
{
    const volatile float product = a * b;
    return product;
}

static float plus(float a, float b)
{
    const volatile float sum = a + b;
    return sum;
}

/* One element: the history of a whole run by step number, not in a ring of three. */
typedef struct unipc_element {
    float clean[8], start, x;
} unipc_element;

static void unipc_element_step(unipc_element *e, const float *c, int k, float velocity)
{
    const float now = plus(e->x, times(c[M2_UNIPC_MINUS_SIGMA], velocity));
    e->clean[k] = now;
    if (c[M2_UNIPC_PREDICTOR] == 0) {
        e->x = now;
        return;
    }
    if (c[M2_UNIPC_CORRECTOR] != 0) {
        const float last = e->clean[k - 1];
        float slope = plus(now, -last);
        if (c[M2_UNIPC_CORRECTOR] == 2) {
            const float older = times(plus(e->clean[k - 2], -last), c[M2_UNIPC_INVERSE_R]);
            slope = plus(times(c[M2_UNIPC_RHO_OLDER], older), times(c[M2_UNIPC_RHO_NOW], slope));
        }
        e->x = plus(times(c[M2_UNIPC_CORRECTOR_START], e->start),
                    times(c[M2_UNIPC_CORRECTOR_LAST], last));
        e->x = plus(e->x, times(c[M2_UNIPC_CORRECTOR_SLOPE], slope));
    }
    e->start = e->x;
    e->x =
        plus(times(c[M2_UNIPC_PREDICTOR_START], e->start), times(c[M2_UNIPC_PREDICTOR_NOW], now));
    if (c[M2_UNIPC_PREDICTOR] == 2) {
        const float slope = times(plus(e->clean[k - 1], -now), c[M2_UNIPC_PREDICTOR_INVERSE_R]);
        e->x = plus(e->x, times(c[M2_UNIPC_PREDICTOR_SLOPE], slope));
    }
}

/* Orders of corrector and predictor as a run has them: they rise over the first steps, and the last
 * step has neither. */
static void unipc_fill_table(random_case *c, m2_tensor *table)
{
    const int64_t n_steps = table->shape[0];
    random_fill(c, table, 1);
    for (int64_t k = 0; k < n_steps; k++) {
        float *row = f32(table) + k * M2_UNIPC_COEFFS;
        const int is_last = k == n_steps - 1;
        row[M2_UNIPC_CORRECTOR] = is_last ? 0 : k < 2 ? (float)k : 2;
        row[M2_UNIPC_PREDICTOR] = is_last ? 0 : k < 1 ? 1 : 2;
    }
}

/* Every product and sum is one f32 operation in the order of ops.h, the step picks its row and its
 * buffers by the counter, and the first step clears what it does not fill.  Catches an FMA, another
 * order, a ring that turns the wrong way, coefficients of another step. */
static void unipc_step_is_the_operations_of_its_formulas(void **state)
{
    (void)state;
    enum { STEPS = 6 };
    random_case c;
    random_case_open(&c, 1);
    m2_ops ops;
    check_ok(m2_ops_init_cpu(&ops, NULL, M2_ISA_REF));
    for (size_t s = 0; s < N_SHAPES; s++) {
        for (int n_steps = 1; n_steps <= STEPS; n_steps++) {
            m2_arena_reset(&c.arena);
            m2_tensor table = m2_tensor_make(&c.arena, M2_F32, n_steps, M2_UNIPC_COEFFS);
            unipc_fill_table(&c, &table);
            m2_tensor clean[3], start = make_tensor(&c, shapes[s], 1);
            for (int i = 0; i < 3; i++) clean[i] = make_tensor(&c, shapes[s], 1);
            m2_tensor latent = make_tensor(&c, shapes[s], 1);
            m2_tensor velocity = make_tensor(&c, shapes[s], 1);
            const int64_t n = m2_tensor_count(&latent);
            unipc_element *expected = m2_new(&c.arena, unipc_element, n);
            for (int64_t i = 0; i < n; i++)
                expected[i] = (unipc_element){ .start = f32(&start)[i], .x = f32(&latent)[i] };
            int32_t n_done = 0;
            m2_tensor step = m2_tensor_over(&n_done, M2_I32, 1);
            for (int k = 0; k < n_steps; k++) {
                random_fill(&c, &velocity, 1);
                ops.unipc_step(&ops,
                               &(m2_unipc_step_args){ .velocity = &velocity,
                                                      .table = &table,
                                                      .step = &step,
                                                      .clean = { &clean[0], &clean[1], &clean[2] },
                                                      .start = &start,
                                                      .latent = &latent });
                ops.advance(&ops, &(m2_advance_args){ .counter = &step });
                assert_int_equal(n_done, k + 1);
                for (int64_t i = 0; i < n; i++) {
                    unipc_element *e = &expected[i];
                    unipc_element_step(e, f32(&table) + k * M2_UNIPC_COEFFS, k, f32(&velocity)[i]);
                    assert_true(f32(&latent)[i] == e->x && f32(&start)[i] == e->start);
                    for (int age = 0; age < 3; age++) {
                        const float kept = f32(&clean[(k + 3 - age) % 3])[i];
                        assert_true(kept == (age <= k ? e->clean[k - age] : 0.0f));
                    }
                }
            }
        }
    }
    random_case_close(&c);
}

/* u + s (c - u), with the scale of the step and the frame.  Catches a scale of the wrong dimension or
 * the wrong row. */
static void mix_uses_the_scale_of_the_step_and_the_frame(void **state)
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
            int32_t row = (int32_t)s % N_ROWS;
            const m2_tensor step = m2_tensor_over(&row, M2_I32, 1);
            const float *scales = f32(&scale) + row * scale.shape[1];
            ops.guidance_mix(
                &ops,
                &(m2_guidance_mix_args){
                    .cond = &cond, .uncond = &uncond, .scale = &scale, .step = &step, .v = &v });
            for (int64_t i = 0; i < m2_tensor_count(&v); i++) {
                const int64_t frame = per_frame ? i / shapes[s][2] % shapes[s][1] : 0;
                const volatile float difference = f32(&cond)[i] - f32(&uncond)[i];
                const volatile float scaled = scales[frame] * difference;
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
            int32_t row = (int32_t)s % N_ROWS;
            const m2_tensor step = m2_tensor_over(&row, M2_I32, 1);
            const float *scales = f32(&scale) + row * scale.shape[1];
            ops.guidance_skim(&ops, &(m2_guidance_skim_args){ .cond = &cond,
                                                              .latent = &latent,
                                                              .scale = &scale,
                                                              .step = &step,
                                                              .skim_scale = 3,
                                                              .uncond = &uncond });
            for (int64_t i = 0; i < m2_tensor_count(&cond); i++) {
                const int64_t frame = per_frame ? i / shapes[s][2] % shapes[s][1] : 0;
                const double g = scales[frame], x = f32(&latent)[i], v = f32(&cond)[i];
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

/* All the steps of `table`, with one velocity, from zeroed buffers in the arena of the test. */
static void unipc_steps(random_case *c, const m2_ops *ops, const m2_tensor *table,
                        m2_tensor *latent, const m2_tensor *velocity)
{
    m2_tensor buffers[4];
    int32_t n_done = 0;
    m2_tensor step = m2_tensor_over(&n_done, M2_I32, 1);
    for (int i = 0; i < 4; i++) {
        buffers[i] = copy_of(c, latent);
        memset(buffers[i].data, 0, m2_tensor_bytes(&buffers[i]));
    }
    while (n_done < table->shape[0]) {
        ops->unipc_step(ops,
                        &(m2_unipc_step_args){ .velocity = velocity,
                                               .table = table,
                                               .step = &step,
                                               .clean = { &buffers[0], &buffers[1], &buffers[2] },
                                               .start = &buffers[3],
                                               .latent = latent });
        ops->advance(ops, &(m2_advance_args){ .counter = &step });
    }
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
    m2_tensor table = m2_tensor_make(&c.arena, M2_F32, 4, M2_UNIPC_COEFFS);
    unipc_fill_table(&c, &table);
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
            unipc_steps(&c, &ops, &table, &v, &u);
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
        cmocka_unit_test(unipc_step_is_the_operations_of_its_formulas),
        cmocka_unit_test(mix_uses_the_scale_of_the_step_and_the_frame),
        cmocka_unit_test(skim_moves_what_its_formulas_say),
        cmocka_unit_test(skim_leaves_a_zero_branch_alone),
        cmocka_unit_test(rescale_scales_every_channel),
        cmocka_unit_test(all_have_the_same_bits_for_any_threads_and_isa),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
