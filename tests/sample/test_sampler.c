#include "support/check.h"
#include "support/dies.h"

#include "backend/cpu/cpu.h"
#include "sample/sampler.h"
#include "sample/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct sampler_env {
    m2_pool *pool;
    m2_ops ops;
    m2_arena arena;
} sampler_env;

static int open_env(void **state)
{
    sampler_env *env = calloc(1, sizeof *env);
    assert_non_null(env);
    check_ok(m2_pool_create(2, &env->pool));
    check_ok(m2_ops_init_cpu(&env->ops, env->pool, M2_ISA_BEST));
    check_ok(m2_arena_create(&env->arena, "request", (size_t)64 << 20));
    *state = env;
    return 0;
}

static int close_env(void **state)
{
    sampler_env *env = *state;
    m2_arena_destroy(&env->arena);
    m2_pool_destroy(env->pool);
    free(env);
    return 0;
}

/* A sampler with the counter of its run, which the loop of a clip keeps otherwise. */
typedef struct run {
    m2_sampler sampler;
    int32_t n_done;
    m2_tensor step; /* over n_done */
} run;

static run *new_run(sampler_env *env, int64_t n, int n_steps, double shift)
{
    run *made = m2_new(&env->arena, run, 1);
    made->n_done = 0;
    made->step = m2_tensor_over(&made->n_done, M2_I32, 1);
    const m2_sampler_params params = {
        .n_elems = n, .n_steps = n_steps, .shift = shift, .step = &made->step
    };
    check_ok(m2_sampler_init(&made->sampler, &env->arena, &env->ops, &params));
    return made;
}

static float sigma_of(const run *r)
{
    return m2_schedule_sigma(r->sampler.params.n_steps, r->sampler.params.shift, r->n_done);
}

static int timestep_of(const run *r)
{
    return m2_schedule_timestep(r->sampler.params.n_steps, r->sampler.params.shift, r->n_done);
}

static void step_of(run *r, m2_tensor *latent, const m2_tensor *velocity)
{
    const m2_ops *ops = r->sampler.ops;
    m2_sampler_step(&r->sampler, latent, velocity);
    ops->advance(ops, &(m2_advance_args){ .counter = &r->step });
}

static m2_tensor random_latent(sampler_env *env, int64_t n, uint64_t seed)
{
    m2_test_random random = { seed };
    const m2_tensor tensor = m2_tensor_make(&env->arena, M2_F32, n);
    for (int64_t i = 0; i < n; i++) ((float *)tensor.data)[i] = m2_test_random_normal(&random);
    return tensor;
}

/* On a straight path the velocity is constant, so any consistent solver must land on `clean`,
 * whatever the number of steps.  Catches a flipped velocity sign, an off-by-one in the schedule,
 * history mixed between steps. */
static void sampler_lands_on_clean_latent_of_a_straight_path(void **state)
{
    sampler_env *env = *state;
    const float noise = 1.5f, clean = 0.25f;
    float v = noise - clean;
    const m2_tensor velocity = m2_tensor_over(&v, M2_F32, 1);
    for (int n_steps = 1; n_steps <= 200; n_steps++) {
        m2_arena_reset(&env->arena);
        run *sampler = new_run(env, 1, n_steps, 7);
        const float sigma = sigma_of(sampler);
        float x = (1.0f - sigma) * clean + sigma * noise;
        m2_tensor latent = m2_tensor_over(&x, M2_F32, 1);
        for (int i = 0; i < n_steps; i++) step_of(sampler, &latent, &velocity);
        check_near(x, clean, 2e-6, "n_steps %d", n_steps); /* measured: 5e-7 */
        assert_true(sigma_of(sampler) == 0);
    }
}

/* The same for a whole latent and any shift: x_end = x_0 - sigma_0 v. */
static void a_constant_velocity_is_followed_exactly(void **state)
{
    sampler_env *env = *state;
    static const double shifts[] = { 0.3, 1, 3.3, 5, 12 };
    enum { N = 50001 };
    for (size_t s = 0; s < 5; s++) {
        for (int n_steps = 1; n_steps <= 40; n_steps += 13) {
            m2_arena_reset(&env->arena);
            m2_tensor latent = random_latent(env, N, 1);
            const m2_tensor velocity = random_latent(env, N, 2);
            const m2_tensor start = random_latent(env, N, 1);
            run *sampler = new_run(env, N, n_steps, shifts[s]);
            const double sigma = sigma_of(sampler);
            for (int i = 0; i < n_steps; i++) step_of(sampler, &latent, &velocity);
            for (int i = 0; i < N; i++) {
                const double exact = ((float *)start.data)[i] - sigma * ((float *)velocity.data)[i];
                check_near(((float *)latent.data)[i], exact, 4e-6, "shift %g, %d steps, element %d",
                           shifts[s], n_steps, i);
            }
        }
    }
}

/* One step is one Euler step, x - sigma v, bit for bit. */
static void one_step_is_an_euler_step(void **state)
{
    sampler_env *env = *state;
    enum { N = 1000 };
    m2_arena_reset(&env->arena);
    m2_tensor latent = random_latent(env, N, 3);
    const m2_tensor start = random_latent(env, N, 3), velocity = random_latent(env, N, 4);
    run *sampler = new_run(env, N, 1, 7);
    const float sigma = sigma_of(sampler);
    assert_int_equal(timestep_of(sampler), 999);
    step_of(sampler, &latent, &velocity);
    for (int i = 0; i < N; i++) {
        const float product = sigma * ((float *)velocity.data)[i];
        const float expected = ((float *)start.data)[i] - product;
        assert_true(((float *)latent.data)[i] == expected);
    }
}

/* The last step ends on its own prediction of the clean latent, bit for bit: sigma is 0 there.
 * Catches a corrector that leaks into the result, and a 0 * x that is not 0. */
static void the_last_step_ends_on_its_prediction(void **state)
{
    sampler_env *env = *state;
    enum { N = 1000 };
    m2_arena_reset(&env->arena);
    m2_tensor latent = random_latent(env, N, 5), before = random_latent(env, N, 6);
    run *sampler = new_run(env, N, 7, 7);
    for (int step = 0; step < 7; step++) {
        const m2_tensor velocity = random_latent(env, N, 10 + (uint64_t)step);
        const float sigma = sigma_of(sampler);
        memcpy(before.data, latent.data, N * sizeof(float));
        step_of(sampler, &latent, &velocity);
        if (step < 6) continue;
        for (int i = 0; i < N; i++) {
            const float product = sigma * ((float *)velocity.data)[i];
            assert_true(((float *)latent.data)[i] == ((float *)before.data)[i] - product);
        }
    }
}

/* ---- the definition, once more ---- */

static double lambda(double sigma)
{
    return log(1 - sigma) - log(sigma);
}

/* One scalar through all steps in f64, written from the formulas of the method and not from ours:
 * corrector with a solved 2 x 2 system, predictor with 0.5. */
static double solve_in_f64(int n, double shift, double x, double (*field)(double x, int timestep))
{
    double m1 = 0, m2 = 0, x_last = 0;
    for (int k = 0; k < n; k++) {
        const double sigma = m2_schedule_sigma(n, shift, k);
        const double m0 = x - sigma * field(x, m2_schedule_timestep(n, shift, k));
        if (k > 0) {
            const double from = m2_schedule_sigma(n, shift, k - 1);
            const double h = lambda(sigma) - lambda(from), e = expm1(-h);
            double slopes = 0.5 * (m0 - m1);
            if (k > 1) {
                const double r = (lambda(m2_schedule_sigma(n, shift, k - 2)) - lambda(from)) / h;
                const double u = -h, phi = e / u - 1, b1 = phi / e, b2 = 2 * (phi / u - 0.5) / e;
                const double determinant = 1 - r; /* of [1 1; r 1] */
                slopes = (b1 - b2) / determinant * (m2 - m1) / r +
                         (b2 - r * b1) / determinant * (m0 - m1);
            }
            x = sigma / from * x_last - (1 - sigma) * e * m1 - (1 - sigma) * e * slopes;
        }
        x_last = x;
        if (k == n - 1) return m0;
        const double to = m2_schedule_sigma(n, shift, k + 1);
        const double h = lambda(to) - lambda(sigma), e = expm1(-h);
        double slopes = 0;
        if (k > 0) {
            const double r = (lambda(m2_schedule_sigma(n, shift, k - 1)) - lambda(sigma)) / h;
            slopes = 0.5 * (m1 - m0) / r;
        }
        x = to / sigma * x - (1 - to) * e * m0 - (1 - to) * e * slopes;
        m2 = m1;
        m1 = m0;
    }
    return x;
}

static double curved_field(double x, int timestep)
{
    return 0.6 * x + 0.8 * sin(timestep / 200.0) - 0.1;
}

/* On a curved field every coefficient of both orders counts.  Catches a swapped weight, a wrong
 * order on the first steps, a history that is one step late. */
static void a_curved_field_is_followed_as_the_method_says(void **state)
{
    sampler_env *env = *state;
    enum { N = 64 };
    static const int counts[] = { 1, 2, 3, 4, 5, 20, 100, 200, 1000 };
    static const double shifts[] = { 1, 5, 7 };
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        for (size_t s = 0; s < 3; s++) {
            m2_arena_reset(&env->arena);
            m2_tensor latent = random_latent(env, N, 8);
            m2_tensor velocity = random_latent(env, N, 9);
            double truth[N];
            for (int i = 0; i < N; i++)
                truth[i] =
                    solve_in_f64(counts[c], shifts[s], ((float *)latent.data)[i], curved_field);
            run *sampler = new_run(env, N, counts[c], shifts[s]);
            for (int step = 0; step < counts[c]; step++) {
                for (int i = 0; i < N; i++)
                    ((float *)velocity.data)[i] =
                        (float)curved_field(((float *)latent.data)[i], timestep_of(sampler));
                step_of(sampler, &latent, &velocity);
            }
            const double error = m2_test_relative_error(latent.data, M2_F32, truth, M2_F64, N);
            /* Roundings of every step add up: measured 1e-7 for 5 steps, 2.6e-6 for 1000. */
            const double limit = 3e-7 + 6e-9 * counts[c];
            if (error > limit)
                fail_msg("%d steps, shift %g: error %.2e, limit %.2e", counts[c], shifts[s], error,
                         limit);
        }
    }
}

/* Twice the steps, a quarter of the distance to the exact solution: the method is of order 2.
 * Catches a term that is consistent but wrong, which a constant velocity cannot show. */
static double smooth_clean(double sigma)
{
    return 0.5 + 0.3 * sin(2 * sigma); /* the clean latent that the model sees at sigma */
}

static void the_method_is_of_second_order(void **state)
{
    (void)state;
    sampler_env *env = *state;
    double errors[2];
    for (int pass = 0; pass < 2; pass++) {
        /* d x / d sigma = v, v = (x - clean(sigma)) / sigma, by a fine midpoint rule in f64. */
        const int n = pass == 0 ? 16 : 32;
        m2_arena_reset(&env->arena);
        run *sampler = new_run(env, 1, n, 1);
        float x = 1.25f, v;
        m2_tensor latent = m2_tensor_over(&x, M2_F32, 1);
        const m2_tensor velocity = m2_tensor_over(&v, M2_F32, 1);
        const double begin = sigma_of(sampler);
        double end = begin;
        for (int step = 0; step < n - 1; step++) {
            v = (float)((x - smooth_clean(sigma_of(sampler))) / sigma_of(sampler));
            step_of(sampler, &latent, &velocity);
            end = sigma_of(sampler);
            if (end <= begin / 4 + 1e-3) break;
        }
        double exact = 1.25;
        const int n_fine = 200000;
        for (int i = 0; i < n_fine; i++) {
            const double h = (end - begin) / n_fine, s = begin + i * h;
            const double half = exact + 0.5 * h * (exact - smooth_clean(s)) / s;
            exact += h * (half - smooth_clean(s + 0.5 * h)) / (s + 0.5 * h);
        }
        errors[pass] = fabs(x - exact);
    }
    print_message("errors %.2e and %.2e, ratio %.2f\n", errors[0], errors[1],
                  errors[0] / errors[1]);
    assert_true(errors[0] / errors[1] > 2.8); /* first order gives 2 */
}

/* ---- bits, state, misuse ---- */

static void run_all(run *sampler, m2_tensor *latent, m2_tensor *velocity, int n_steps)
{
    for (int i = 0; i < n_steps; i++) {
        for (int64_t e = 0; e < m2_tensor_count(latent); e++)
            ((float *)velocity->data)[e] =
                0.7f * ((float *)latent->data)[e] + 1e-3f * (float)timestep_of(sampler);
        step_of(sampler, latent, velocity);
    }
}

/* Video and audio each have their own sampler.  Catches state outside the object. */
static void two_samplers_share_nothing(void **state)
{
    sampler_env *env = *state;
    enum { N = 3000 };
    m2_arena_reset(&env->arena);
    m2_tensor alone = random_latent(env, N, 1), a = random_latent(env, N, 1);
    m2_tensor b = random_latent(env, 77, 2), v = random_latent(env, N, 3);
    m2_tensor v_b = random_latent(env, 77, 3);
    run_all(new_run(env, N, 6, 7), &alone, &v, 6);
    run *first = new_run(env, N, 6, 7), *second = new_run(env, 77, 9, 3);
    for (int i = 0; i < 6; i++) {
        run_all(first, &a, &v, 1);
        run_all(second, &b, &v_b, 1);
    }
    assert_memory_equal(alone.data, a.data, N * sizeof(float));
    assert_int_equal(second->n_done, 6);
}

/* A run that is saved and taken up by a new process has the bits of an unbroken one, from any step.
 * Catches a history array that is not saved, or saved in the wrong place. */
static void a_resumed_run_has_the_same_bits(void **state)
{
    sampler_env *env = *state;
    enum { N = 500, STEPS = 9 };
    for (int stop = 0; stop <= STEPS; stop++) {
        m2_arena_reset(&env->arena);
        m2_tensor whole = random_latent(env, N, 1), latent = random_latent(env, N, 1);
        m2_tensor v = random_latent(env, N, 2);
        float saved[M2_SAMPLER_N_HISTORY][N];
        m2_tensor history[M2_SAMPLER_N_HISTORY];
        run_all(new_run(env, N, STEPS, 7), &whole, &v, STEPS);

        run *sampler = new_run(env, N, STEPS, 7);
        run_all(sampler, &latent, &v, stop);
        m2_sampler_history(&sampler->sampler, stop, history);
        for (int i = 0; i < M2_SAMPLER_N_HISTORY; i++)
            memcpy(saved[i], history[i].data, N * sizeof(float));

        run *later = new_run(env, N, STEPS, 7);
        later->n_done = stop;
        m2_sampler_history(&later->sampler, stop, history);
        for (int i = 0; i < M2_SAMPLER_N_HISTORY; i++)
            memcpy(history[i].data, saved[i], N * sizeof(float));
        run_all(later, &latent, &v, STEPS - stop);
        assert_memory_equal(latent.data, whole.data, N * sizeof(float));
    }
}

/* Bits do not depend on the threads or the instruction set. */
static void any_backend_has_the_same_bits(void **state)
{
    sampler_env *env = *state;
    enum { N = 100003 };
    float *expected = malloc(N * sizeof *expected);
    assert_non_null(expected);
    for (int isa = M2_ISA_REF; isa <= (int)m2_isa_detect(); isa++) {
        for (int n_threads = 1; n_threads <= 4; n_threads++) {
            sampler_env other = { .arena = env->arena };
            check_ok(m2_pool_create(n_threads, &other.pool));
            check_ok(m2_ops_init_cpu(&other.ops, other.pool, (m2_isa)isa));
            m2_arena_reset(&other.arena);
            m2_tensor latent = random_latent(&other, N, 1), v = random_latent(&other, N, 2);
            run_all(new_run(&other, N, 5, 7), &latent, &v, 5);
            if (isa == M2_ISA_REF && n_threads == 1)
                memcpy(expected, latent.data, N * sizeof *expected);
            assert_memory_equal(expected, latent.data, N * sizeof *expected);
            m2_arena_reset(&other.arena);
            m2_pool_destroy(other.pool);
        }
    }
    m2_arena_reset(&env->arena);
    free(expected);
}

/* The plan runs the same code: a measuring arena counts what a real one needs, exactly. */
static void a_measured_sampler_needs_what_it_measured(void **state)
{
    sampler_env *env = *state;
    int32_t n_done = 0;
    const m2_tensor step = m2_tensor_over(&n_done, M2_I32, 1);
    const m2_sampler_params params = { .n_elems = 12345, .n_steps = 10, .shift = 7, .step = &step };
    m2_sampler sampler;
    m2_arena measure, exact;
    m2_ops ops;
    m2_ops_init_measure(&ops);
    m2_arena_init_measuring(&measure, "plan");
    check_ok(m2_sampler_init(&sampler, &measure, &ops, &params));
    m2_tensor latent = m2_tensor_make(&measure, M2_F32, 12345);
    m2_tensor velocity = m2_tensor_make(&measure, M2_F32, 12345);
    const size_t needed = m2_arena_save(&measure);
    m2_sampler_step(&sampler, &latent, &velocity);
    assert_int_equal(measure.peak, needed);
    /* Real operators, as a test of a file's trajectory has them: nothing is written either. */
    m2_arena_reset(&measure);
    check_ok(m2_sampler_init(&sampler, &measure, &env->ops, &params));
    check_ok(m2_arena_create(&exact, "exact", needed));
    check_ok(m2_sampler_init(&sampler, &exact, &env->ops, &params));
    m2_tensor_make(&exact, M2_F32, 12345);
    m2_tensor_make(&exact, M2_F32, 12345);
    assert_int_equal(exact.used, needed);
    m2_arena_destroy(&exact);
}

static void bad_parameters_are_errors(void **state)
{
    sampler_env *env = *state;
    m2_sampler sampler = { .ops = NULL };
    const m2_sampler_params bad[] = {
        { 0, 10, 7, NULL }, { 10, 0, 7, NULL }, { 10, 10, 0, NULL }, { -1, 10, 7, NULL }
    };
    const char *words[] = { "0 elements", "0 steps", "shift is 0", "-1 elements" };
    for (int i = 0; i < 4; i++)
        check_fails(m2_sampler_init(&sampler, &env->arena, &env->ops, &bad[i]), M2_ERR_ARG,
                    words[i]);
    assert_null(sampler.ops);
}

typedef struct step_case {
    run *sampler;
    m2_tensor *latent, *velocity;
} step_case;

static void step_once(void *argument)
{
    step_case *c = argument;
    step_of(c->sampler, c->latent, c->velocity);
}

/* One step more than there are, or a latent of another size, is a bug. */
static void a_wrong_step_aborts(void **state)
{
    sampler_env *env = *state;
    m2_arena_reset(&env->arena);
    m2_tensor latent = random_latent(env, 8, 1), velocity = random_latent(env, 8, 2);
    m2_tensor shorter = random_latent(env, 7, 3);
    run *sampler = new_run(env, 8, 1, 7);
    assert_true(m2_test_aborts(step_once, &(step_case){ sampler, &shorter, &velocity }));
    assert_true(m2_test_aborts(step_once, &(step_case){ sampler, &latent, &latent }));
    step_of(sampler, &latent, &velocity);
    assert_true(m2_test_aborts(step_once, &(step_case){ sampler, &latent, &velocity }));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sampler_lands_on_clean_latent_of_a_straight_path),
        cmocka_unit_test(a_constant_velocity_is_followed_exactly),
        cmocka_unit_test(one_step_is_an_euler_step),
        cmocka_unit_test(the_last_step_ends_on_its_prediction),
        cmocka_unit_test(a_curved_field_is_followed_as_the_method_says),
        cmocka_unit_test(the_method_is_of_second_order),
        cmocka_unit_test(two_samplers_share_nothing),
        cmocka_unit_test(a_resumed_run_has_the_same_bits),
        cmocka_unit_test(any_backend_has_the_same_bits),
        cmocka_unit_test(a_measured_sampler_needs_what_it_measured),
        cmocka_unit_test(bad_parameters_are_errors),
        cmocka_unit_test(a_wrong_step_aborts),
    };
    return cmocka_run_group_tests(tests, open_env, close_env);
}
