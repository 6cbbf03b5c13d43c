#include "support/check.h"

#include "core/hash.h"
#include "pipeline/negative_prompt.h"
#include "pipeline/settings.h"
#include "pipeline/state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static m2_settings resolve(const char *tier)
{
    m2_model_config config;
    m2_settings settings;
    magi2_request request;
    m2_model_config_init(&config);
    magi2_request_init(&request);
    request.tier = tier;
    check_ok(m2_settings_resolve(&config, &request, &settings));
    m2_model_config_free(&config);
    return settings;
}

/* The release's sizes: catches a wrong stride, rounding or frame count. */
static void the_released_tiers_have_the_released_sizes(void **state)
{
    (void)state;
    const m2_settings small = resolve("272p"), large = resolve("540p");
    assert_int_equal(small.width, 448);
    assert_int_equal(small.height, 256);
    assert_int_equal(small.latent_frames, 32);
    assert_int_equal(small.latent_height, 16);
    assert_int_equal(small.latent_width, 28);
    assert_int_equal(small.n_audio, 250);
    assert_int_equal(small.n_frames, 125);
    assert_int_equal(small.fps_num, 25);
    assert_int_equal(small.fps_den, 2);
    assert_int_equal(small.n_steps, 100);
    assert_int_equal(small.seed, 42);
    check_near(small.shift, 7, 0, "shift");
    check_near(small.guidance_video, 5, 0, "video");
    check_near(small.guidance_audio, 7, 0, "audio");
    assert_int_equal(large.latent_height, 32);
    assert_int_equal(large.latent_width, 56);
}

static void requests_out_of_range_are_refused(void **state)
{
    (void)state;
    m2_model_config config;
    m2_settings settings;
    magi2_request request;
    m2_model_config_init(&config);
    magi2_request_init(&request);
    request.tier = "1080p";
    check_fails(m2_settings_resolve(&config, &request, &settings), M2_ERR_UNSUPPORTED, "refiner");
    request.tier = "9p";
    check_fails(m2_settings_resolve(&config, &request, &settings), M2_ERR_ARG, "9p");
    request.tier = "272p";
    request.n_steps = 0;
    check_fails(m2_settings_resolve(&config, &request, &settings), M2_ERR_ARG, "0 steps");
    request.n_steps = MAGI2_DEFAULT;
    request.seed = -7;
    check_fails(m2_settings_resolve(&config, &request, &settings), M2_ERR_ARG, "seed -7");
    request.seed = 0;
    request.output_width = 100;
    check_fails(m2_settings_resolve(&config, &request, &settings), M2_ERR_ARG, "both numbers");
    request.output_height = 101;
    check_fails(m2_settings_resolve(&config, &request, &settings), M2_ERR_ARG, "even");
    request.output_height = 100;
    check_ok(m2_settings_resolve(&config, &request, &settings));
    assert_int_equal(settings.seed, 0);
    m2_model_config_free(&config);
}

/* The uncond branch was conditioned on these very bytes. */
static void the_released_negative_prompt_has_the_released_bytes(void **state)
{
    (void)state;
    char digest[M2_SHA256_HEX_BYTES];
    assert_int_equal(strlen(m2_released_negative_prompt), 1721);
    check_ok(m2_sha256_of(m2_released_negative_prompt, 1721, digest));
    assert_string_equal(digest, "5ac0746de6c7e0388a16122d9c7e751b1cb067242218bf6f41ec1e88271cdcb9");
}

/* ---- the state file ---- */

static m2_clip_state make_state(int n_done)
{
    static char prompt[] = "a \"quoted\"\nprompt \xc3\xa9";
    m2_clip_state state = { .prompt = prompt, .n_done = n_done };
    state.settings = resolve("272p");
    m2_settings *s = &state.settings;
    s->latent_frames = 2;
    s->latent_height = 2;
    s->latent_width = 3;
    s->height = 32;
    s->width = 48;
    s->n_frames = 5;
    s->n_audio = 4;
    s->seed = INT64_MAX;
    s->shift = 0.1;
    const int64_t n_video = 48 * 2 * 2 * 3, n_audio = 4 * 64;
    float *values = malloc((size_t)(4 * (n_video + n_audio)) * sizeof *values);
    for (int64_t i = 0; i < 4 * (n_video + n_audio); i++) values[i] = (float)i * 0.37f;
    state.memory = values;
    for (int i = 0; i < 4; i++) {
        m2_tensor *video = i ? &state.video_history[i - 1] : &state.video;
        m2_tensor *audio = i ? &state.audio_history[i - 1] : &state.audio;
        *video = m2_tensor_over(values, M2_F32, 48, 2, 2, 3);
        values += n_video;
        *audio = m2_tensor_over(values, M2_F32, 4, 64);
        values += n_audio;
    }
    return state;
}

/* Catches a setting that is lost or rounded on the way through the file. */
static void a_state_comes_back_as_it_was_written(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir();
    char path[300];
    snprintf(path, sizeof path, "%s/a.state", dir);
    for (int n_done = 3; n_done <= 100; n_done += 97) {
        const m2_clip_state wrote = make_state(n_done);
        m2_clip_state read;
        check_ok(m2_state_write(path, &wrote, NULL));
        check_ok(m2_state_read(path, &read));
        assert_memory_equal(&read.settings, &wrote.settings, sizeof read.settings);
        assert_string_equal(read.prompt, wrote.prompt);
        assert_null(read.negative);
        assert_int_equal(read.n_done, n_done);
        assert_memory_equal(read.video.data, wrote.video.data, m2_tensor_bytes(&wrote.video));
        assert_memory_equal(read.audio.data, wrote.audio.data, m2_tensor_bytes(&wrote.audio));
        if (n_done < 100)
            assert_memory_equal(read.audio_history[2].data, wrote.audio_history[2].data,
                                m2_tensor_bytes(&wrote.audio));
        m2_state_free(&read);
        free(wrote.memory);
    }
    m2_test_remove_tree(dir);
}

/* Other files, and states whose numbers do not fit together, are refused by name. */
static void files_that_are_no_state_are_refused(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir();
    char path[300];
    m2_clip_state read;
    check_fails(m2_state_read(M2_DEMO_DIR "/preview/model.safetensors", &read), M2_ERR_FORMAT,
                "not a state file");
    snprintf(path, sizeof path, "%s/a.state", dir);
    m2_clip_state bad = make_state(3);
    bad.settings.latent_width = 4;
    check_ok(m2_state_write(path, &bad, NULL));
    check_fails(m2_state_read(path, &read), M2_ERR_FORMAT, "a.state");
    bad.settings.latent_width = 3;
    bad.settings.n_steps = 2000;
    check_ok(m2_state_write(path, &bad, NULL));
    check_fails(m2_state_read(path, &read), M2_ERR_FORMAT, "out of range");
    free(bad.memory);
    m2_test_remove_tree(dir);
}

/* Whose state it is cannot be known of a file that may not be opened, and the reason is to be told.
 * Catches "no state file" said of one. */
static void a_file_that_may_not_be_read_is_not_taken_for_another_kind(void **state)
{
    enum { NOBODY = 65534 };
    (void)state;
    char *dir = m2_test_make_dir();
    char path[4096];
    int n_done, n_steps;
    snprintf(path, sizeof path, "%s/a.state", dir);
    m2_clip_state wrote = make_state(3);
    check_ok(m2_state_write(path, &wrote, NULL));
    free(wrote.memory);
    assert_int_equal(m2_state_look(path, &n_done, &n_steps), M2_STATE_KEPT);
    assert_int_equal(chmod(path, 0), 0);
    assert_int_equal(chmod(dir, 0755), 0);
    /* Root may read anything. */
    const uid_t user = geteuid();
    if (user == 0 && seteuid(NOBODY) != 0) {
        m2_test_remove_tree(dir);
        skip();
    }
    errno = 0;
    const m2_state_kind kind = m2_state_look(path, &n_done, &n_steps);
    const int why = errno;
    if (user == 0) assert_int_equal(seteuid(0), 0);
    assert_int_equal(kind, M2_STATE_CLOSED);
    assert_int_equal(why, EACCES);
    m2_test_remove_tree(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_released_tiers_have_the_released_sizes),
        cmocka_unit_test(requests_out_of_range_are_refused),
        cmocka_unit_test(the_released_negative_prompt_has_the_released_bytes),
        cmocka_unit_test(a_state_comes_back_as_it_was_written),
        cmocka_unit_test(files_that_are_no_state_are_refused),
        cmocka_unit_test(a_file_that_may_not_be_read_is_not_taken_for_another_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
