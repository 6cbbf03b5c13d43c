#include "support/check.h"

#include "clip_run.h"
#include "support/clip_judge.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One whole clip of the demo model with its own defaults, saved and judged. */
typedef struct demo_clip {
    char *dir;
    char *manifest;
    judge_picture picture;
    float *wave;
    int64_t n_samples;
} demo_clip;

static magi2_engine *engine;

static int open_demo(void **state)
{
    (void)state;
    magi2_params params;
    magi2_params_init(&params);
    params.model_dir = M2_DEMO_DIR;
    return magi2_open(&params, &engine) == MAGI2_OK ? 0 : -1;
}

static int close_demo(void **state)
{
    (void)state;
    magi2_close(engine);
    return 0;
}

static void make(demo_clip *clip, const char *prompt)
{
    magi2_request request;
    magi2_result result;
    clip->dir = m2_test_make_dir();
    magi2_request_init(&request);
    request.prompt = prompt;
    request.save_dir = clip->dir;
    if (magi2_generate(engine, &request, &result) != MAGI2_OK) fail_msg("%s", magi2_last_error());
    assert_int_equal(result.n_frames, 125);
    assert_int_equal(result.n_samples, 441000);
    clip->manifest = clip_read_manifest(clip->dir);
    m2_tensor frames = clip_read_array(clip->dir, "frames");
    m2_tensor wave = clip_read_array(clip->dir, "wave");
    judge_frames(frames.data, (int)frames.shape[0], (int)frames.shape[2], (int)frames.shape[1],
                 &clip->picture);
    clip->wave = wave.data;
    clip->n_samples = wave.shape[0];
    free(frames.data);
}

static void done(demo_clip *clip)
{
    m2_test_remove_tree(clip->dir);
    free(clip->manifest);
    free(clip->wave);
}

static void assert_colours(const demo_clip *clip, const char *background, const char *colour)
{
    assert_string_equal(judge_colour_name(clip->picture.background), background);
    assert_string_equal(judge_colour_name(clip->picture.colour), colour);
}

/* The same bits on every CPU, for any threads and instruction set: these digests were the same on
 * AMD with AVX2 and on Intel with AVX2 and AVX-512. Whoever changes an order of sums changes them. */
static void the_demo_clip_has_the_committed_bits_and_shows_its_prompt(void **state)
{
    (void)state;
    static const char *const digests[] = {
        "618c0601d5db64e91d080123976e07203368ad7980baec8065bd63cd5ebb2e39", /* video_latent  */
        "7cb1406652d9c9d6c50b6c58283f360e2345bb66f9e666df4a85f17415f7e185", /* audio_latent  */
        "025c8a0190cca40d9078d71dde6e1acce81e2c6093d90185d35f54d7002e3002", /* text          */
        "70a8d852b8dbdf69facac517118b3dcf462f1f744621af6710c440f64bbad54d", /* negative_text */
        "e5edbe911430e8eda78e2294e4744a693bc563a1eb803963d092bc9efe06e8a2", /* frames        */
        "e630b449771c484148c8fa5c30a5e14ff21b107d1238c8474ed7b1af3a0945d9", /* wave          */
    };
    demo_clip clip;
    make(&clip, "a red ball bouncing on a blue background");
    for (size_t i = 0; i < sizeof digests / sizeof digests[0]; i++) {
        if (!strstr(clip.manifest, digests[i]))
            fail_msg("digest %zu is not in the manifest: %s", i, clip.manifest);
    }
    assert_colours(&clip, "blue", "red");
    double bounces[JUDGE_EVENTS_MAX], onsets[JUDGE_EVENTS_MAX];
    const int n_bounces = judge_bounces(&clip.picture, 12.5, bounces);
    const int n_onsets = judge_onsets(clip.wave, clip.n_samples, 44100, onsets);
    assert_in_range(n_bounces, 4, 40);
    /* The demo model's own figure is 0.04 s; a frame lasts 0.08 s. */
    check_near(judge_nearest_median(bounces, n_bounces, onsets, n_onsets), 0, 0.1,
               "%d bounces, %d onsets", n_bounces, n_onsets);
    done(&clip);
}

/* Catches flipped axes: left for right, x for y. */
static void a_triangle_moves_to_the_right(void **state)
{
    (void)state;
    demo_clip clip;
    double dx, dy;
    make(&clip, "a blue triangle moving to the right on a white background");
    assert_colours(&clip, "white", "blue");
    judge_motion(&clip.picture, &dx, &dy);
    assert_true(dx > 0.3);
    assert_true(fabs(dy) < 0.5 * dx);
    done(&clip);
}

static void a_ball_moves_from_bottom_to_top(void **state)
{
    (void)state;
    demo_clip clip;
    double dx, dy;
    make(&clip, "a large orange ball moving from bottom to top fast on a blue background");
    assert_string_equal(judge_colour_name(clip.picture.background), "blue");
    judge_motion(&clip.picture, &dx, &dy);
    assert_true(dy < -0.3);
    assert_true(fabs(dx) < 0.5 * -dy);
    done(&clip);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_demo_clip_has_the_committed_bits_and_shows_its_prompt),
        cmocka_unit_test(a_triangle_moves_to_the_right),
        cmocka_unit_test(a_ball_moves_from_bottom_to_top),
    };
    return cmocka_run_group_tests(tests, open_demo, close_demo);
}
