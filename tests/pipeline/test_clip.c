#include "support/check.h"
#include "support/files.h"
#include "support/media_file.h"

#include "clip_run.h"
#include "io/safetensors_write.h"
#include "media/resize.h"
#include "pipeline/state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct clip_env {
    char *dir;
    char model[4096];
} clip_env;

static int setup(void **state)
{
    clip_env *env = calloc(1, sizeof *env);
    env->dir = m2_test_make_dir();
    clip_make_tiny_model(env->dir, env->model);
    *state = env;
    return 0;
}

static int teardown(void **state)
{
    clip_env *env = *state;
    m2_test_remove_tree(env->dir);
    free(env);
    return 0;
}

static magi2_engine *open_engine_on(const char *backend, const clip_env *env, const char *isa,
                                    int n_threads)
{
    magi2_params params;
    magi2_params_init(&params);
    params.backend = backend;
    params.model_dir = env->model;
    params.isa = isa;
    params.n_threads = n_threads;
    magi2_engine *engine = NULL;
    if (magi2_open(&params, &engine) != MAGI2_OK) fail_msg("%s", magi2_last_error());
    return engine;
}

static magi2_engine *open_engine(const clip_env *env, const char *isa, int n_threads)
{
    return open_engine_on("auto", env, isa, n_threads);
}

static magi2_request tiny_request(const char *save_dir, int n_steps)
{
    magi2_request request;
    magi2_request_init(&request);
    request.prompt = "a red ball bouncing on a blue background";
    request.tier = "tiny";
    request.n_steps = n_steps;
    request.save_dir = save_dir;
    return request;
}

/* Runs once, into its own directory; gives back the manifest. */
static char *run(const clip_env *env, magi2_engine *engine, const char *name, int n_steps)
{
    char dir[4096];
    snprintf(dir, sizeof dir, "%s/%s", env->dir, name);
    magi2_request request = tiny_request(dir, n_steps);
    if (magi2_generate(engine, &request, NULL) != MAGI2_OK) fail_msg("%s", magi2_last_error());
    return clip_read_manifest(dir);
}

/* Catches a sum whose order depends on how loops are shared out, state left over from the run
 * before, and engines that share something. */
static void bits_do_not_depend_on_threads_or_earlier_runs(void **state)
{
    clip_env *env = *state;
#ifdef __SANITIZE_ADDRESS__
    static const int threads[] = { 5 }; /* a run takes half a minute there */
#else
    static const int threads[] = { 1, 2, 5 };
#endif
    char *first = NULL;
    for (size_t i = 0; i < sizeof threads / sizeof threads[0]; i++) {
        char name[32];
        magi2_engine *engine = open_engine(env, NULL, threads[i]);
        snprintf(name, sizeof name, "t%d", threads[i]);
        char *manifest = run(env, engine, name, 2);
        snprintf(name, sizeof name, "t%d_again", threads[i]);
        char *again = run(env, engine, name, 2);
        assert_string_equal(manifest, again);
        if (first) assert_string_equal(manifest, first);
        if (!first)
            first = manifest;
        else
            free(manifest);
        free(again);
        magi2_close(engine);
    }
    free(first);
}

static void cancel_after_a_step(void *user, const magi2_progress *progress)
{
    if (progress->stage == MAGI2_STAGE_PREVIEW && progress->step == 1) *(volatile int *)user = 1;
}

/* One whole step, scalar and fast: the latents and the samplers' history, as the state file of a run
 * that is stopped behind it holds them.  Decoding is left out: the scalar convolutions take minutes,
 * and tests/backend compares them operator by operator. */
static void one_step_has_the_same_bits_scalar_and_fast(void **state)
{
    clip_env *env = *state;
#ifdef __SANITIZE_ADDRESS__
    (void)env;
    skip(); /* the scalar step takes minutes there */
#endif
    static const char *const isas[] = { "ref", NULL };
    m2_tensor latents[2][2];
    for (int i = 0; i < 2; i++) {
        volatile int cancel = 0;
        char dir[4200], path[4300];
        snprintf(dir, sizeof dir, "%s/step%d", env->dir, i);
        magi2_engine *engine = open_engine(env, isas[i], 0);
        magi2_request request = tiny_request(dir, 2);
        request.cancel = &cancel;
        request.progress = cancel_after_a_step;
        request.progress_user = (void *)&cancel;
        assert_int_equal(magi2_generate(engine, &request, NULL), MAGI2_ERR_INTERRUPTED);
        magi2_close(engine);
        m2_clip_state kept;
        snprintf(path, sizeof path, "%s/clip.state", dir);
        check_ok(m2_state_read(path, &kept));
        assert_int_equal(kept.n_done, 1);
        const m2_tensor *const from[2] = { &kept.video, &kept.audio };
        for (int k = 0; k < 2; k++) {
            latents[i][k] = *from[k];
            latents[i][k].data = malloc(m2_tensor_bytes(from[k]));
            memcpy(latents[i][k].data, from[k]->data, m2_tensor_bytes(from[k]));
        }
        m2_state_free(&kept);
    }
    for (int k = 0; k < 2; k++) {
        assert_memory_equal(latents[0][k].data, latents[1][k].data,
                            m2_tensor_bytes(&latents[0][k]));
        free(latents[0][k].data);
        free(latents[1][k].data);
    }
}

/* The preview's own directory in the place of the link: the index is copied by a link. */
static void own_preview(const clip_env *env, char shard_path[5100])
{
    char link[5000], from[5100];
    snprintf(link, sizeof link, "%s/preview", env->model);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(mkdir(link, 0777), 0);
    snprintf(from, sizeof from, "%s/model.safetensors.index.json", link);
    assert_int_equal(symlink(M2_DEMO_DIR "/preview/model.safetensors.index.json", from), 0);
    snprintf(shard_path, 5100, "%s/model.safetensors", link);
}

/* Where a value of a tensor stands in the demo's shard. */
static size_t place_of_value(const char *shard, const char *tensor)
{
    uint64_t header;
    memcpy(&header, shard, 8);
    const char *entry = strstr(shard + 8, tensor);
    const char *offsets = entry ? strstr(entry, "\"data_offsets\":[") : NULL;
    assert_non_null(offsets);
    return 8 + header + strtoull(offsets + strlen("\"data_offsets\":["), NULL, 10) + 40000;
}

/* The demo's shard with one value of a tensor changed. */
static void write_nan_shard(const char *path, const char *tensor)
{
    size_t bytes;
    char *shard = m2_test_read_file(M2_DEMO_DIR "/preview/model.safetensors", &bytes);
    const float nan_value = NAN;
    memcpy(shard + place_of_value(shard, tensor), &nan_value, 4);
    m2_test_write_file(path, shard, bytes);
    free(shard);
}

/* A value that is not finite ends the run at once, whichever velocity it reaches; nothing is written.
 * The last layers' weights reach one of the two alone: catches a look at the video's only. */
static void one_nan_weight_fails_within_a_step_and_writes_nothing(void **state)
{
    static const struct {
        const char *tensor, *velocity;
    } cases[] = {
        { "\"pre_adapter.video_embedder.weight\"", "velocity of the video" },
        { "\"post_adapter.final_linear_video.weight\"", "velocity of the video" },
        { "\"post_adapter.final_linear_audio.weight\"", "velocity of the sound" },
    };
    clip_env *env = *state;
    char shard[5100], output[5000];
    own_preview(env, shard);
    snprintf(output, sizeof output, "%s/nan.mp4", env->dir);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_nan_shard(shard, cases[i].tensor);
        magi2_engine *engine = open_engine(env, NULL, 0);
        magi2_request request = tiny_request(NULL, 5);
        request.output = output;
        assert_int_equal(magi2_generate(engine, &request, NULL), MAGI2_ERR_NUMERIC);
        if (!strstr(magi2_last_error(), "step 1 of 5") ||
            !strstr(magi2_last_error(), cases[i].velocity))
            fail_msg("%s: %s", cases[i].tensor, magi2_last_error());
        assert_int_not_equal(access(output, F_OK), 0);
        magi2_close(engine);
    }
}

/* A file that goes bad while it is read: its weights are mapped. */
typedef struct file_damage {
    char path[5100];
    size_t place;
} file_damage;

static void damage_after_step_3(void *user, const magi2_progress *progress)
{
    const file_damage *damage = user;
    if (progress->stage != MAGI2_STAGE_PREVIEW || progress->step != 3) return;
    const float nan_value = NAN;
    FILE *file = fopen(damage->path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)damage->place, SEEK_SET), 0);
    assert_int_equal(fwrite(&nan_value, sizeof nan_value, 1, file), 1);
    assert_int_equal(fclose(file), 0);
}

/* A state from before the values went bad is left by the run, and the message says so: a state that
 * nobody speaks of would make the next run refuse.  Catches advice to go on from it, too. */
static void a_run_that_goes_bad_between_states_says_which_it_leaves(void **state)
{
    clip_env *env = *state;
    file_damage damage;
    char output[5000], part[5200];
    size_t bytes;
    own_preview(env, damage.path);
    char *shard = m2_test_read_file(M2_DEMO_DIR "/preview/model.safetensors", &bytes);
    m2_test_write_file(damage.path, shard, bytes);
    damage.place = place_of_value(shard, "\"post_adapter.final_linear_video.weight\"");
    free(shard);
    /* On a GPU the weights are a copy. */
    magi2_engine *engine = open_engine_on("cpu", env, NULL, 0);
    magi2_request request = tiny_request(NULL, 5);
    snprintf(output, sizeof output, "%s/bad.mp4", env->dir);
    request.output = output;
    request.checkpoint_every = 2;
    request.progress = damage_after_step_3;
    request.progress_user = &damage;
    assert_int_equal(magi2_generate(engine, &request, NULL), MAGI2_ERR_NUMERIC);
    magi2_close(engine);
    snprintf(part, sizeof part, "its state of 2 of 5 steps is left in %s.state, ", output);
    if (!strstr(magi2_last_error(), part) || !strstr(magi2_last_error(), "it may be removed") ||
        strstr(magi2_last_error(), "go on with"))
        fail_msg("%s", magi2_last_error());
}

/* The steps that the state file on the disk has behind it, as each step is reported. */
typedef struct state_watch {
    char path[4300];
    int n_seen, done[8];
    volatile int cancel;
} state_watch;

static void watch_state(void *user, const magi2_progress *progress)
{
    state_watch *watch = user;
    if (progress->stage != MAGI2_STAGE_PREVIEW || progress->step == 0) return;
    m2_clip_state kept = { 0 };
    if (access(watch->path, F_OK) == 0) check_ok(m2_state_read(watch->path, &kept));
    watch->done[watch->n_seen++] = kept.n_done;
    m2_state_free(&kept);
    /* Without the decoders' time. */
    if (progress->step == progress->n_steps) watch->cancel = 1;
}

/* A power cut must cost no more than the steps since the last of them.  Catches a state that is kept
 * once, at another step, or never. */
static void a_state_is_kept_every_so_many_steps(void **state)
{
    clip_env *env = *state;
    static const int expected[2][5] = { { 0, 0, 2, 2, 4 }, { 0, 0, 0, 0, 0 } };
    magi2_engine *engine = open_engine(env, NULL, 0);
    for (int i = 0; i < 2; i++) {
        char dir[4200];
        state_watch watch = { .n_seen = 0 };
        snprintf(dir, sizeof dir, "%s/every%d", env->dir, i);
        snprintf(watch.path, sizeof watch.path, "%s/clip.state", dir);
        magi2_request request = tiny_request(dir, 5);
        request.checkpoint_every = i == 0 ? 2 : 0;
        request.progress = watch_state;
        request.progress_user = &watch;
        request.cancel = &watch.cancel;
        assert_int_equal(magi2_generate(engine, &request, NULL), MAGI2_ERR_INTERRUPTED);
        assert_int_equal(watch.n_seen, 5);
        for (int k = 0; k < 5; k++) assert_int_equal(watch.done[k], expected[i][k]);
    }
    magi2_close(engine);
}

static void remove_folder(void *user, const magi2_progress *progress)
{
    if (progress->stage == MAGI2_STAGE_PREVIEW && progress->step == 1)
        assert_int_equal(rmdir(user), 0);
}

/* A place for the latents that is gone by then must not cost the steps.  Catches latents that are kept
 * there before the state is. */
static void latents_that_cannot_be_kept_leave_the_state(void **state)
{
    clip_env *env = *state;
    char dir[4200], latent[4300], kept_path[4300];
    snprintf(dir, sizeof dir, "%s/gone", env->dir);
    snprintf(latent, sizeof latent, "%s/latent", dir);
    snprintf(kept_path, sizeof kept_path, "%s/out.mp4.state", env->dir);
    assert_int_equal(mkdir(dir, 0777), 0);
    magi2_engine *engine = open_engine(env, NULL, 0);
    magi2_request request = tiny_request(NULL, 2);
    char output[4300];
    snprintf(output, sizeof output, "%s/out.mp4", env->dir);
    request.output = output;
    request.save_latent = latent;
    request.progress = remove_folder;
    request.progress_user = dir;
    assert_int_equal(magi2_generate(engine, &request, NULL), MAGI2_ERR_IO);
    magi2_close(engine);
    const char *said = magi2_last_error();
    if (!strstr(said, latent) || !strstr(said, "its state is kept, 2 of 2 steps are done") ||
        !strstr(said, "`magi2 decode "))
        fail_msg("%s", said);
    m2_clip_state kept;
    check_ok(m2_state_read(kept_path, &kept));
    assert_int_equal(kept.n_done, 2);
    m2_state_free(&kept);
}

/* Noise so strong that one step leaves a picture full of edges.  Its latents are the tiny tier's. */
static void write_strong_noise(const char *path)
{
    enum { VIDEO = 48 * 32 * 2 * 2, AUDIO = 250 * 64 };
    m2_test_random random = { 7 };
    float *values = malloc((VIDEO + AUDIO) * sizeof *values);
    for (int i = 0; i < VIDEO + AUDIO; i++)
        values[i] = (i < VIDEO ? 3.0f : 1.0f) * m2_test_random_normal(&random);
    const m2_named_tensor tensors[2] = {
        { .name = "noise.video", .tensor = m2_tensor_over(values, M2_F32, 1, 48, 32, 2, 2) },
        { .name = "noise.audio", .tensor = m2_tensor_over(values + VIDEO, M2_F32, 1, 250, 64) },
    };
    check_ok(m2_safetensors_write(path, tensors, 2, NULL, 0));
    free(values);
}

static double least_psnr(const m2_test_clip *clip, const uint8_t *frames, int64_t stride)
{
    const int64_t bytes = (int64_t)clip->video->width * clip->video->height * 3;
    double least = 999;
    for (int64_t i = 0; i < clip->n_frames; i++)
        least = fmin(least, m2_test_psnr(clip->rgb + i * bytes, frames + i * stride, bytes));
    return least;
}

/* Frames of another size than the decoder's, lower and wider: the file's pictures are the saved ones
 * resized.  Catches frames that go to the encoder as they are: it would read the first rows of each, as
 * it is of fewer bytes, and nothing else would show it. */
static void frames_of_the_file_have_the_size_that_was_asked_for(void **state)
{
    enum { WIDTH = 48, HEIGHT = 16, BYTES = WIDTH * HEIGHT * 3 };
    clip_env *env = *state;
    char dir[4200], output[4300], noise[4300];
    snprintf(dir, sizeof dir, "%s/size", env->dir);
    snprintf(output, sizeof output, "%s/size.mp4", env->dir);
    snprintf(noise, sizeof noise, "%s/noise.safetensors", env->dir);
    write_strong_noise(noise);
    magi2_engine *engine = open_engine(env, NULL, 0);
    magi2_request request = tiny_request(dir, 1);
    request.noise = noise;
    request.output = output;
    request.output_width = WIDTH;
    request.output_height = HEIGHT;
    magi2_result result;
    if (magi2_generate(engine, &request, &result) != MAGI2_OK) fail_msg("%s", magi2_last_error());
    magi2_close(engine);
    assert_int_equal(result.width, WIDTH);
    assert_int_equal(result.height, HEIGHT);

    const m2_tensor frames = clip_read_array(dir, "frames");
    const int64_t n = frames.shape[0];
    assert_int_equal(frames.shape[1], 32);
    assert_int_equal(frames.shape[2], 32);
    uint8_t *resized = malloc((size_t)n * BYTES);
    check_ok(m2_resize_frames(NULL, frames.data, n, 32, 32, resized, WIDTH, HEIGHT));
    m2_test_clip clip = m2_test_clip_read(output);
    assert_int_equal(clip.video->width, WIDTH);
    assert_int_equal(clip.video->height, HEIGHT);
    assert_int_equal(clip.n_frames, n);
    const double as_resized = least_psnr(&clip, resized, BYTES);
    const double as_decoded = least_psnr(&clip, frames.data, 32 * 32 * 3);
    /* Twice as near, whatever the encoder leaves of it: 31.6 and 16.1 dB by libx264; unresized, 17.6
     * and 21.6. */
    if (!(as_resized > as_decoded + 6))
        fail_msg("PSNR with frames resized %.1f dB, as decoded %.1f", as_resized, as_decoded);
    m2_test_clip_free(&clip);
    free(resized);
    free(frames.data);
}

/* The video decoder's weights too: its black frames would be a clip like any other. */
static void nan_weights_of_the_video_decoder_fail_the_run(void **state)
{
    clip_env *env = *state;
    char link[5000], path[5100], output[5000];
    snprintf(link, sizeof link, "%s/turbo_vae", env->model);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(mkdir(link, 0777), 0);
    snprintf(path, sizeof path, "%s/TurboV3-Wan22-TinyShallow_7_7.json", link);
    assert_int_equal(symlink(M2_DEMO_DIR "/turbo_vae/TurboV3-Wan22-TinyShallow_7_7.json", path), 0);
    size_t bytes;
    char *file = m2_test_read_file(M2_DEMO_DIR "/turbo_vae/checkpoint.ckpt", &bytes);
    /* Storages are aligned to 64 bytes; the middle of the file is nothing but storages. */
    const float nan_value = NAN;
    for (size_t at = bytes / 3 / 64 * 64; at < bytes * 2 / 3; at += 32768)
        memcpy(file + at, &nan_value, sizeof nan_value);
    m2_test_zip_forget_sums(file, bytes);
    snprintf(path, sizeof path, "%s/checkpoint.ckpt", link);
    m2_test_write_file(path, file, bytes);
    free(file);
    magi2_engine *engine = open_engine(env, NULL, 0);
    magi2_request request = tiny_request(NULL, 1);
    snprintf(output, sizeof output, "%s/black.mp4", env->dir);
    request.output = output;
    assert_int_equal(magi2_generate(engine, &request, NULL), MAGI2_ERR_NUMERIC);
    assert_non_null(strstr(magi2_last_error(), "video decoder"));
    assert_int_not_equal(access(output, F_OK), 0);
    magi2_close(engine);
    /* The latents are good, and are not to be computed again with a decoder that is whole. */
    m2_clip_state kept;
    if (!strstr(magi2_last_error(), "; its state is kept, 1 of 1 steps are done: ") ||
        !strstr(magi2_last_error(), "`magi2 decode "))
        fail_msg("%s", magi2_last_error());
    snprintf(path, sizeof path, "%s.state", output);
    check_ok(m2_state_read(path, &kept));
    m2_state_free(&kept);
}

/* Noise of another shape, with a value that is not finite, or without one of its two arrays. */
static void noise_is_checked_where_it_comes_in(void **state)
{
    clip_env *env = *state;
    char path[4200];
    snprintf(path, sizeof path, "%s/noise.safetensors", env->dir);
    float *video = calloc(48 * 32 * 2 * 2, sizeof *video), *audio = calloc(250 * 64, sizeof *audio);
    m2_named_tensor tensors[2] = {
        { .name = "noise.video", .tensor = m2_tensor_over(video, M2_F32, 1, 48, 32, 2, 2) },
        { .name = "noise.audio", .tensor = m2_tensor_over(audio, M2_F32, 1, 250, 64) },
    };
    magi2_engine *engine = open_engine(env, NULL, 0);
    char save[4200];
    snprintf(save, sizeof save, "%s/noise", env->dir);
    magi2_request request = tiny_request(save, 1);
    request.noise = path;
    check_ok(m2_safetensors_write(path, tensors, 2, NULL, 0));
    assert_int_equal(magi2_generate(engine, &request, NULL), MAGI2_OK);

    audio[77] = INFINITY;
    check_ok(m2_safetensors_write(path, tensors, 2, NULL, 0));
    assert_int_equal(magi2_generate(engine, &request, NULL), MAGI2_ERR_NUMERIC);
    assert_non_null(strstr(magi2_last_error(), "noise.audio"));
    tensors[0].tensor.shape[2] = 16;
    check_ok(m2_safetensors_write(path, tensors, 2, NULL, 0));
    assert_int_equal(magi2_generate(engine, &request, NULL), MAGI2_ERR_FORMAT);
    assert_non_null(strstr(magi2_last_error(), "noise.video"));
    check_ok(m2_safetensors_write(path, tensors + 1, 1, NULL, 0));
    assert_int_equal(magi2_generate(engine, &request, NULL), MAGI2_ERR_FORMAT);
    free(video);
    free(audio);
    magi2_close(engine);
}

/* A prompt of more than 7,000 tokens is cut, and both counts are said. */
static void a_long_prompt_is_cut_with_both_counts_said(void **state)
{
    clip_env *env = *state;
    char *prompt = malloc(8001 * 2 + 1);
    for (int i = 0; i < 8001; i++) memcpy(prompt + 2 * i, "7 ", 2);
    prompt[8001 * 2] = '\0';
    char *text = NULL;
    assert_int_equal(magi2_tokenize(env->model, prompt, 1, &text), MAGI2_OK);
    assert_non_null(strstr(text, "\"n_tokens\": 7000"));
    assert_non_null(strstr(text, "\"is_truncated\": true"));
    magi2_free(text);
    free(prompt);
}

static void a_request_without_a_prompt_is_refused(void **state)
{
    clip_env *env = *state;
    magi2_engine *engine = open_engine(env, NULL, 1);
    magi2_request request = tiny_request(NULL, 1);
    assert_int_equal(magi2_generate(engine, &request, NULL), MAGI2_ERR_ARG);
    assert_non_null(strstr(magi2_last_error(), "nowhere to write"));
    assert_int_equal(magi2_generate(engine, NULL, NULL), MAGI2_ERR_ARG);
    assert_int_equal(magi2_open(NULL, &engine), MAGI2_ERR_ARG);
    request.save_dir = env->dir;
    request.prompt = "";
    assert_int_equal(magi2_generate(engine, &request, NULL), MAGI2_ERR_ARG);
    request.prompt = "broken \xe9 text";
    assert_int_equal(magi2_generate(engine, &request, NULL), MAGI2_ERR_ARG);
    assert_non_null(strstr(magi2_last_error(), "UTF-8"));
    magi2_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bits_do_not_depend_on_threads_or_earlier_runs, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(one_step_has_the_same_bits_scalar_and_fast, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(one_nan_weight_fails_within_a_step_and_writes_nothing,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(a_run_that_goes_bad_between_states_says_which_it_leaves,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(a_state_is_kept_every_so_many_steps, setup, teardown),
        cmocka_unit_test_setup_teardown(latents_that_cannot_be_kept_leave_the_state, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(frames_of_the_file_have_the_size_that_was_asked_for, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(nan_weights_of_the_video_decoder_fail_the_run, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(noise_is_checked_where_it_comes_in, setup, teardown),
        cmocka_unit_test_setup_teardown(a_long_prompt_is_cut_with_both_counts_said, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_request_without_a_prompt_is_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
