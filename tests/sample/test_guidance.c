#include "support/check.h"

#include "backend/cpu/cpu.h"
#include "sample/guidance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { C = 3, T = 16, H = 2, W = 5, A = 11 };
#define N_VIDEO (C * T * H * W)
#define N_AUDIO (A * C)

typedef struct guidance_case {
    m2_arena arena;
    m2_ops ops;
    m2_tensor latent, cond, uncond, velocity;
} guidance_case;

static void open_case(guidance_case *c, m2_modality_latent modality, uint64_t seed)
{
    m2_test_random random = { seed };
    check_ok(m2_arena_create(&c->arena, "request", 1 << 20));
    check_ok(m2_ops_init_cpu(&c->ops, NULL, M2_ISA_BEST));
    m2_tensor *const all[] = { &c->latent, &c->cond, &c->uncond, &c->velocity };
    for (int i = 0; i < 4; i++) {
        *all[i] = modality == M2_LATENT_VIDEO ? m2_tensor_make(&c->arena, M2_F32, C, T, H, W)
                                              : m2_tensor_make(&c->arena, M2_F32, A, C);
        for (int64_t e = 0; e < m2_tensor_count(all[i]); e++)
            ((float *)all[i]->data)[e] = m2_test_random_normal(&random);
    }
}

static void apply(guidance_case *c, const m2_guidance_params *params, m2_modality_latent modality,
                  int timestep)
{
    /* The step in the middle is the one that counts; those around it have other scales. */
    const int timesteps[] = { timestep < 500 ? 999 : 0, timestep, timestep < 500 ? 998 : 1 };
    int32_t n_done = 1;
    const m2_tensor step = m2_tensor_over(&n_done, M2_I32, 1);
    const m2_guidance_run run = { .modality = modality,
                                  .n_frames = modality == M2_LATENT_VIDEO ? T : A,
                                  .n_steps = 3,
                                  .timesteps = timesteps,
                                  .step = &step };
    m2_guidance guidance;
    check_ok(m2_guidance_init(&guidance, &c->arena, &c->ops, params, &run));
    m2_guidance_apply(&guidance, &c->latent, &c->cond, &c->uncond, &c->velocity);
}

static float at(const m2_tensor *tensor, int64_t i)
{
    return ((const float *)tensor->data)[i];
}

/* What the release runs: 5 for video, 7 for audio, at every step, nothing else. */
static void the_default_is_plain_guidance(void **state)
{
    (void)state;
    m2_guidance_params params;
    m2_guidance_params_init(&params);
    for (int modality = 0; modality < 2; modality++) {
        for (int timestep = 0; timestep <= 999; timestep += 333) {
            guidance_case c;
            open_case(&c, (m2_modality_latent)modality, 1);
            const float s = modality == M2_LATENT_VIDEO ? 5 : 7;
            apply(&c, &params, (m2_modality_latent)modality, timestep);
            for (int64_t i = 0; i < m2_tensor_count(&c.cond); i++) {
                const float scaled = s * (at(&c.cond, i) - at(&c.uncond, i));
                assert_true(at(&c.velocity, i) == at(&c.uncond, i) + scaled);
            }
            m2_arena_destroy(&c.arena);
        }
    }
}

/* A scale of 1 leaves the conditional prediction, up to the rounding of u + (c - u). */
static void a_scale_of_one_is_the_conditional_prediction(void **state)
{
    (void)state;
    m2_guidance_params params;
    guidance_case c;
    m2_guidance_params_init(&params);
    params.video_scale = 1;
    params.use_skimmed = 1; /* does nothing at a scale of 1 */
    open_case(&c, M2_LATENT_VIDEO, 2);
    apply(&c, &params, M2_LATENT_VIDEO, 500);
    for (int64_t i = 0; i < N_VIDEO; i++)
        check_near(at(&c.velocity, i), at(&c.cond, i), 1e-6, "element %d", (int)i);
    m2_arena_destroy(&c.arena);
}

/* Catches an off-by-one at the frame or the timestep, a trick scale that raises, dynamic guidance on
 * audio. */
static void scales_follow_frame_and_timestep(void **state)
{
    (void)state;
    float scale[T];
    m2_guidance_params params;
    m2_guidance_params_init(&params);
    assert_int_equal(m2_guidance_scales(&params, M2_LATENT_VIDEO, 0, T, scale), 1);
    assert_true(scale[0] == 5);

    params.use_trick = 1;
    assert_int_equal(m2_guidance_scales(&params, M2_LATENT_VIDEO, 999, T, scale), T);
    for (int frame = 0; frame < T; frame++) assert_true(scale[frame] == (frame < 13 ? 2 : 5));
    params.trick_scale = 9; /* above the scale: no change */
    m2_guidance_scales(&params, M2_LATENT_VIDEO, 999, T, scale);
    for (int frame = 0; frame < T; frame++) assert_true(scale[frame] == 5);

    params.use_dynamic = 1;
    params.trick_scale = 1.5f;
    params.trick_n_frames = 4;
    m2_guidance_scales(&params, M2_LATENT_VIDEO, 500, T, scale);
    assert_true(scale[3] == 1.5f && scale[4] == 5);
    m2_guidance_scales(&params, M2_LATENT_VIDEO, 499, T, scale);
    assert_true(scale[3] == 1.5f && scale[4] == 2);
    assert_int_equal(m2_guidance_scales(&params, M2_LATENT_AUDIO, 499, T, scale), 1);
    assert_true(scale[0] == 7);
}

/* The scales must be those of the step's timestep, and of the frame, not the row.  Catches a counter
 * that is not looked at, and a row of another length. */
static void each_frame_gets_its_own_scale(void **state)
{
    (void)state;
    m2_guidance_params params;
    m2_guidance_params_init(&params);
    params.use_trick = params.use_dynamic = 1;
    params.trick_n_frames = 5;
    params.trick_scale = 1.25f;
    for (int timestep = 499; timestep <= 500; timestep++) {
        guidance_case c;
        open_case(&c, M2_LATENT_VIDEO, 3);
        apply(&c, &params, M2_LATENT_VIDEO, timestep);
        for (int64_t i = 0; i < N_VIDEO; i++) {
            const int64_t frame = i / (H * W) % T;
            const float s = frame < 5 ? 1.25f : timestep < 500 ? 2.0f : 5.0f;
            const float scaled = s * (at(&c.cond, i) - at(&c.uncond, i));
            assert_true(at(&c.velocity, i) == at(&c.uncond, i) + scaled);
        }
        m2_arena_destroy(&c.arena);
    }
}

static double deviation(const m2_tensor *x, int64_t begin, int64_t n, int64_t stride)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) sum += at(x, begin + i * stride);
    for (int64_t i = 0; i < n; i++) squares += pow(at(x, begin + i * stride) - sum / (double)n, 2);
    return sqrt(squares / (double)n);
}

/* Fully rescaled, every channel has the spread of `cond`; half, half way.  Catches a deviation over
 * the wrong dimensions, of a sample instead of a population, or of the wrong tensor. */
static void rescale_gives_the_spread_of_the_conditional_prediction(void **state)
{
    (void)state;
    for (int modality = 0; modality < 2; modality++) {
        const int is_audio = modality == M2_LATENT_AUDIO;
        const int64_t n = is_audio ? A : T * H * W, stride = is_audio ? C : 1;
        double plain[C];
        for (int pass = 0; pass < 3; pass++) {
            m2_guidance_params params;
            guidance_case c;
            m2_guidance_params_init(&params);
            params.rescale = 0.5f * (float)pass;
            open_case(&c, (m2_modality_latent)modality, 4);
            for (int64_t i = 0; i < m2_tensor_count(&c.cond); i++) /* channels unlike each other */
                ((float *)c.cond.data)[i] *= 1.0f + (float)(is_audio ? i % C : i / n);
            apply(&c, &params, (m2_modality_latent)modality, 500);
            for (int channel = 0; channel < C; channel++) {
                const int64_t begin = is_audio ? channel : channel * n;
                const double of_cond = deviation(&c.cond, begin, n, stride);
                const double got = deviation(&c.velocity, begin, n, stride);
                if (pass == 0) plain[channel] = got;
                const double r = params.rescale;
                check_near(got, r * of_cond + (1 - r) * plain[channel], 1e-5,
                           "modality %d, channel %d", modality, channel);
            }
            m2_arena_destroy(&c.arena);
        }
    }
}

/* Skimming pulls the unconditional prediction towards the other where the sum overshoots: never
 * beyond it, never where nothing overshoots, and not at all without an unconditional branch. */
static void skimming_only_weakens(void **state)
{
    (void)state;
    m2_guidance_params params;
    m2_guidance_params_init(&params);
    params.use_skimmed = 1;
    guidance_case plain, skimmed;
    open_case(&plain, M2_LATENT_VIDEO, 5);
    open_case(&skimmed, M2_LATENT_VIDEO, 5);
    apply(&skimmed, &params, M2_LATENT_VIDEO, 500);
    int n_changed = 0;
    for (int64_t i = 0; i < N_VIDEO; i++) {
        const float before = at(&plain.uncond, i), after = at(&skimmed.uncond, i);
        const float gap = fabsf(at(&plain.cond, i) - before);
        assert_true(fabsf(at(&plain.cond, i) - after) <= gap * 1.00001f + 1e-6f);
        n_changed += before != after;
    }
    assert_in_range(n_changed, N_VIDEO / 20, N_VIDEO - 1);

    memset(plain.uncond.data, 0, N_VIDEO * sizeof(float));
    apply(&plain, &params, M2_LATENT_VIDEO, 500);
    for (int64_t i = 0; i < N_VIDEO; i++) {
        assert_true(at(&plain.uncond, i) == 0);
        assert_true(at(&plain.velocity, i) == 5.0f * at(&plain.cond, i));
    }
    m2_arena_destroy(&plain.arena);
    m2_arena_destroy(&skimmed.arena);
}

/* velocity may be uncond itself: a step needs no third buffer. */
static void the_result_may_take_the_place_of_uncond(void **state)
{
    (void)state;
    m2_guidance_params params;
    m2_guidance_params_init(&params);
    params.use_trick = params.use_dynamic = params.use_skimmed = 1;
    params.rescale = 0.7f;
    guidance_case apart, shared;
    open_case(&apart, M2_LATENT_VIDEO, 6);
    open_case(&shared, M2_LATENT_VIDEO, 6);
    shared.velocity = shared.uncond;
    apply(&apart, &params, M2_LATENT_VIDEO, 300);
    apply(&shared, &params, M2_LATENT_VIDEO, 300);
    assert_memory_equal(apart.velocity.data, shared.uncond.data, N_VIDEO * sizeof(float));
    m2_arena_destroy(&apart.arena);
    m2_arena_destroy(&shared.arena);
}

/* Catches a check that stops at the first fault, and NaN that passes a comparison. */
static void all_faults_are_named_at_once(void **state)
{
    (void)state;
    m2_guidance_params params;
    m2_guidance_params_init(&params);
    check_ok(m2_guidance_params_check(&params));
    params.video_scale = NAN;
    params.rescale = 1.5f;
    params.dynamic_timestep = -4;
    check_fails(m2_guidance_params_check(&params), M2_ERR_ARG, "video scale is nan");
    check_fails(m2_guidance_params_check(&params), M2_ERR_ARG, "rescale is 1.5");
    check_fails(m2_guidance_params_check(&params), M2_ERR_ARG, "dynamic timestep is -4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_default_is_plain_guidance),
        cmocka_unit_test(a_scale_of_one_is_the_conditional_prediction),
        cmocka_unit_test(scales_follow_frame_and_timestep),
        cmocka_unit_test(each_frame_gets_its_own_scale),
        cmocka_unit_test(rescale_gives_the_spread_of_the_conditional_prediction),
        cmocka_unit_test(skimming_only_weakens),
        cmocka_unit_test(the_result_may_take_the_place_of_uncond),
        cmocka_unit_test(all_faults_are_named_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
