/* `bench stage` on made-up networks of the release's architecture, cut to sizes of a test. */
#include "support/check.h"

#include "pipeline/bench_stage.h"
#include "pipeline/memory.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* The release's kinds of layers and its windows, fewer and narrower, and enlarged less. */
static void cut(m2_stage_configs *configs)
{
    m2_text_config *text = &configs->text;
    m2_text_config_init(text);
    text->n_layers = 6;
    text->hidden_size = 64;
    text->mlp_size = 96;
    text->vocab_size = 300;
    text->n_heads = 4;
    text->n_kv_heads = 2;
    text->head_dim = 32;
    text->n_rot = 8;
    text->n_key_heads = 2;
    text->n_value_heads = 4;
    text->key_dim = text->value_dim = 16;
    m2_turbo_config *video = &configs->video;
    m2_turbo_config_init(video);
    video->n_blocks = 1;
    video->channels[0] = 4;
    for (int b = 0; b <= video->n_blocks; b++) video->n_resnets[b] = 1;
    video->spatial_ratio = 4;
    video->temporal_ratio = 2;
    m2_oobleck_config *audio = &configs->audio;
    m2_oobleck_config_init(audio);
    for (int b = 0; b < audio->n_blocks; b++) {
        audio->c_in[b] /= 64;
        audio->c_out[b] /= 64;
        audio->strides[b] = 2;
    }
}

static m2_status measure(const magi2_stage_bench_request *request, int as_json, char **text_out)
{
    static m2_stage_configs configs;
    magi2_params params = { .backend = "cpu", .n_threads = 2 };
    cut(&configs);
    return m2_bench_stage(&params, request, &configs, as_json, text_out);
}

static double number(const json_t *line, const char *key)
{
    const json_t *value = json_object_get(line, key);
    if (!json_is_number(value)) fail_msg("%s is no number", key);
    return json_number_value(value);
}

typedef struct seen {
    int n_stages, n_parts;
    double parts_ms; /* of the stage whose parts came last */
} seen;

static void see_stage(seen *all, const json_t *line)
{
    /* tokens x channels in bf16; frames of 16 x 28 latents, 4 pixels each way; 2^5 samples a latent */
    static const double bytes[] = { 70 * 64 * 2, 63.0 * 64 * 112 * 3, 250 * 32 * 2 * 4 };
    static const char *const names[] = { "text", "video", "audio" };
    const int i = all->n_stages++;
    assert_true(i < 3);
    assert_string_equal(json_string_value(json_object_get(line, "stage")), names[i]);
    assert_true(number(line, "output_bytes") == bytes[i]);
    assert_true(json_is_true(json_object_get(line, "bits_equal")));
    assert_int_equal(json_array_size(json_object_get(line, "runs_ms")), 2);
    assert_true(number(line, "rms") > 1e-3 && number(line, "rms") < 1e4);
    assert_true(number(line, "ms_min") > 0 && number(line, "ms_min") <= number(line, "ms") &&
                number(line, "ms") <= number(line, "ms_max"));
    assert_true(number(line, "flop") > 0 && number(line, "weights_bytes") >= 0);
    check_near(number(line, "parts_ms") / all->parts_ms, 1, 1e-9, "parts of %s", names[i]);
    all->parts_ms = 0;
}

/* All stages in turn, the output of each of its whole size, the parts its own.  Catches a window of
 * frames that is not counted, a stage that reports another's operators, a network left open. */
static void each_stage_is_measured_with_its_own_parts(void **state)
{
    (void)state;
    const magi2_stage_bench_request request = { .n_runs = 2, .n_tokens = 70 };
    char *text = NULL;
    seen all = { 0 };
    check_ok(measure(&request, 1, &text));
    for (char *save = NULL, *row = strtok_r(text, "\n", &save); row;
         row = strtok_r(NULL, "\n", &save)) {
        json_t *line = json_loads(row, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(line);
        const char *event = json_string_value(json_object_get(line, "event"));
        if (strcmp(event, "part") == 0) {
            all.n_parts++;
            all.parts_ms += number(line, "ms");
        }
        if (strcmp(event, "stage") == 0) see_stage(&all, line);
        if (strcmp(event, "bench") == 0)
            assert_true(json_is_true(json_object_get(line, "synthetic")));
        json_decref(line);
    }
    assert_int_equal(all.n_stages, 3);
    assert_true(all.n_parts > 30);
    free(text);
}

/* The page shows the one stage that is asked for; with a single run nothing is called equal. */
static void one_stage_alone_and_one_run_alone(void **state)
{
    (void)state;
    const magi2_stage_bench_request request = { .stage = "video", .n_runs = 1 };
    char *text = NULL;
    check_ok(measure(&request, 0, &text));
    static const char *const parts[] = { "made-up weights, tier 272p, backend cpu",
                                         "32 latents to 63 frames of 112x64 in 5 windows",
                                         "one run alone", "one more run (video), call by call",
                                         "frames_u8" };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (!strstr(text, parts[i])) fail_msg("no \"%s\" in:\n%s", parts[i], text);
    assert_null(strstr(text, "gated_delta_rule"));
    assert_null(strstr(text, "snake"));
    free(text);
}

/* The signal, within the last operator but two of a layer. */
static volatile int *cancelled;
static int n_silu, cancel_after;

static void cancel_later(const m2_ops *ops, const m2_silu_mul_args *args)
{
    (void)ops;
    (void)args;
    if (++n_silu == cancel_after) *cancelled = 1;
}

/* The release's text encoder is made up of 2.5 GB.  Catches values that are made before they are counted,
 * or not counted at all: this would take them, and pass. */
static void made_up_weights_are_counted_before_they_are_made(void **state)
{
    (void)state;
    const magi2_params params = { .backend = "cpu", .n_threads = 2, .ram_limit = 600u << 20 };
    const magi2_stage_bench_request request = { .tier = "272p", .stage = "text", .n_runs = 1 };
    char *text = NULL;
    check_fails(m2_bench_stage(&params, &request, NULL, 0, &text), M2_ERR_MEMORY,
                "--ram-limit allows 600 MiB");
    assert_null(text);
    assert_true(m2_memory_peak() < (size_t)1 << 30);
}

/* A signal that comes while the encoder runs ends it behind the layer that it fell into.  Catches a run
 * that is only ended before it begins. */
static void an_interrupt_ends_the_encoder_between_its_layers(void **state)
{
    (void)state;
    static m2_stage_bench bench; /* zeros */
    static m2_stage_configs configs;
    volatile int cancel = 0;
    const magi2_stage_bench_request request = { .tier = "272p", .cancel = &cancel };
    const magi2_params params = { .backend = "cpu", .n_threads = 1 };
    m2_ops measure;
    m2_arena weights, rows, step;
    cut(&configs);
    bench.request = &request;
    bench.given = &configs;
    bench.stage = M2_BENCH_TEXT;
    bench.n_tokens = 5;
    check_ok(m2_stage_open_engine(&bench, &params));
    check_ok(m2_stage_open_checkpoint(&bench));
    m2_ops_init_measure(&measure);
    m2_arena_init_measuring(&weights, "weights");
    m2_arena_init_measuring(&rows, "request");
    m2_arena_init_measuring(&step, "step");
    check_ok(m2_stage_open_network(&bench, &measure, &weights));
    check_ok(m2_stage_make_input(&bench, &measure, &rows));
    check_ok(m2_stage_run(&bench, &measure, &step));

    cancelled = &cancel;
    for (int n_layers = 1; n_layers <= 4; n_layers++) {
        n_silu = 0;
        cancel = 0;
        cancel_after = n_layers;
        measure.silu_mul = cancel_later;
        check_fails(m2_stage_run(&bench, &measure, &step), M2_ERR_INTERRUPTED, "interrupted");
        assert_int_equal(n_silu, n_layers);
    }
    m2_stage_close_network(&bench);
    m2_checkpoint_close(bench.checkpoint);
    free(bench.ids);
    m2_engine_close(bench.engine);
}

static void wrong_names_and_interrupts_end_it(void **state)
{
    (void)state;
    const volatile int stop = 1;
    char *text = NULL;
    magi2_stage_bench_request request = { .stage = "sound" };
    check_fails(measure(&request, 0, &text), M2_ERR_ARG, "text, video, audio or all");
    request = (magi2_stage_bench_request){ .n_runs = 1, .n_tokens = 1, .cancel = &stop };
    check_fails(measure(&request, 0, &text), M2_ERR_INTERRUPTED, "interrupted");
    request = (magi2_stage_bench_request){ .tier = "9p" };
    check_fails(measure(&request, 0, &text), M2_ERR_ARG, "9p");
    assert_null(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_stage_is_measured_with_its_own_parts),
        cmocka_unit_test(one_stage_alone_and_one_run_alone),
        cmocka_unit_test(made_up_weights_are_counted_before_they_are_made),
        cmocka_unit_test(an_interrupt_ends_the_encoder_between_its_layers),
        cmocka_unit_test(wrong_names_and_interrupts_end_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
