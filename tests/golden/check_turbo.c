/* check_turbo.c - TurboVAED: <config>/{config.json, checkpoint.ckpt, decode.safetensors}.
 *
 * TN.latent -> TN.video.f32 and TN.video.bf16, judged against TN.video.truth, each in its own type.
 * Where the f32 video was left out its error is in the metadata `f32_error`. */
#include "golden.h"

#include "model/vae/turbo.h"
#include "recorded_errors.h"

#include <stdio.h>
#include <string.h>

typedef struct turbo_case {
    golden_run *run;
    golden_file *file;
    const char *folder;
    const m2_turbo_config *config;
    const m2_checkpoint *checkpoint;
    const json_t *report; /* or NULL */
    json_t *f32_errors;   /* or NULL */
} turbo_case;

/* Gathers [n, H, W, 3] pieces into [3, F, H, W]. */
typedef struct video_sink {
    golden_run *run;
    m2_tensor video;
    int64_t n_seen;
    int is_in_order;
} video_sink;

static m2_status gather(void *user, int64_t first_frame, const m2_tensor *decoded)
{
    video_sink *sink = user;
    const m2_tensor copy = golden_to_host(sink->run, decoded), *frames = &copy;
    const int64_t n = frames->shape[0], plane = frames->shape[1] * frames->shape[2];
    const int64_t n_frames = sink->video.shape[1];
    const size_t size = m2_dtype_bytes(frames->dtype);
    if (first_frame != sink->n_seen || first_frame + n > n_frames) {
        sink->is_in_order = 0;
        return M2_OK;
    }
    for (int64_t i = 0; i < n * plane; i++)
        for (int64_t c = 0; c < M2_TURBO_COLOURS; c++)
            memcpy((char *)sink->video.data +
                       (size_t)((c * n_frames + first_frame) * plane + i) * size,
                   (const char *)frames->data + (size_t)(i * M2_TURBO_COLOURS + c) * size, size);
    sink->n_seen += n;
    return M2_OK;
}

/* Both arenas are as large as the plan says, to the byte. */
static m2_status decode(const turbo_case *test, const m2_tensor *latent, m2_dtype dtype,
                        video_sink *sink)
{
    m2_ops measure;
    m2_arena weights = { 0 }, step = { 0 }, planned_weights, planned_step;
    m2_turbo *plan = NULL, *turbo = NULL;
    const m2_turbo_sink to = { gather, NULL, sink };
    golden_init_measure(test->run, &measure);
    m2_arena_init_measuring(&planned_weights, "weights");
    m2_arena_init_measuring(&planned_step, "step");
    m2_status status =
        m2_turbo_create(test->config, test->checkpoint, dtype, &measure, &planned_weights, &plan);
    if (status == M2_OK)
        status = m2_turbo_decode(plan, &measure, &planned_step, latent, dtype, &to);
    if (status == M2_OK)
        status = golden_arena(test->run, &weights, "weights", planned_weights.peak);
    if (status == M2_OK) status = golden_arena(test->run, &step, "step", planned_step.peak);
    if (status == M2_OK)
        status = m2_turbo_create(test->config, test->checkpoint, dtype, golden_ops(test->run),
                                 &weights, &turbo);
    const m2_tensor placed = golden_to_device(test->run, latent);
    if (status == M2_OK)
        status = m2_turbo_decode(turbo, golden_ops(test->run), &step, &placed, dtype, &to);
    golden_free_copies(test->run);
    m2_turbo_destroy(plan);
    m2_turbo_destroy(turbo);
    golden_arena_free(test->run, &weights);
    golden_arena_free(test->run, &step);
    return status;
}

static void judge(const turbo_case *test, const char *stem, m2_dtype dtype)
{
    const char *kind = dtype == M2_BF16 ? "bf16" : "f32";
    const char *name = golden_format(test->run, "%s/%s %s", test->folder, stem, kind);
    const char *reference = golden_format(test->run, "%s.video.%s", stem, kind);
    const char *truth = golden_format(test->run, "%s.video.truth", stem);
    m2_tensor latent =
        golden_tensor(test->file, golden_format(test->run, "%s.latent", stem), M2_F32);
    if (!latent.data) return;
    if (latent.n_dims != 5 || latent.shape[0] != 1 || latent.shape[1] != 48) {
        golden_result(test->run, 0, name, "the latent must be [1, 48, T, h, w]");
        return;
    }
    latent = m2_tensor_wrap(latent.data, M2_F32, 4, latent.shape + 1);
    const int64_t ratio = test->config->spatial_ratio;
    video_sink sink = { .run = test->run, .is_in_order = 1 };
    sink.video = m2_tensor_over(NULL, dtype, M2_TURBO_COLOURS,
                                m2_turbo_n_frames(test->config, latent.shape[1]),
                                latent.shape[2] * ratio, latent.shape[3] * ratio);
    sink.video.data = golden_alloc(test->run, m2_tensor_bytes(&sink.video));
    if (decode(test, &latent, dtype, &sink) != M2_OK) {
        golden_result(test->run, 0, name, "%s", m2_last_error());
        return;
    }
    if (!sink.is_in_order || sink.n_seen != sink.video.shape[1]) {
        golden_result(test->run, 0, name, "%lld frames of %lld came in order",
                      (long long)sink.n_seen, (long long)sink.video.shape[1]);
        return;
    }
    recorded_errors_check(test->run, test->report, test->file,
                          golden_format(test->run, "%s/%s", test->folder, stem), kind, reference,
                          truth);
    if (golden_has(test->file, reference)) {
        golden_judge(test->file, name, &sink.video, reference, truth, 2);
        return;
    }
    const json_t *error = json_object_get(test->f32_errors, stem);
    const m2_tensor exact = golden_tensor(test->file, truth, M2_F64);
    if (!exact.data) return;
    if (!json_is_number(error) || m2_tensor_count(&exact) != m2_tensor_count(&sink.video))
        golden_result(test->run, 0, name, "no reference of its error, or another size");
    else
        golden_judge_values(test->run, name, sink.video.data, dtype, json_number_value(error),
                            exact.data, M2_F64, m2_tensor_count(&exact), 2, GOLDEN_FLOOR_F32);
}

/* A recorded f32 video must be as far from its truth as its metadata says. */
static void check_recorded_error(const turbo_case *test, const char *stem)
{
    const json_t *recorded = json_object_get(test->f32_errors, stem);
    const char *reference = golden_format(test->run, "%s.video.f32", stem);
    if (!json_is_number(recorded) || !golden_has(test->file, reference)) return;
    const m2_tensor x = golden_tensor(test->file, reference, M2_F64);
    const m2_tensor truth =
        golden_tensor(test->file, golden_format(test->run, "%s.video.truth", stem), M2_F64);
    if (!x.data || !truth.data || m2_tensor_count(&x) != m2_tensor_count(&truth)) return;
    const double error =
        golden_relative_error(x.data, M2_F64, truth.data, M2_F64, m2_tensor_count(&x));
    const double wanted = json_number_value(recorded);
    golden_result(test->run, error > 0.9 * wanted && error < 1.1 * wanted,
                  golden_format(test->run, "%s/%s f32_error", test->folder, stem),
                  "recorded %.3e, found %.3e", wanted, error);
}

static void check_entries(turbo_case *test)
{
    const char *errors = golden_metadata(test->file, "f32_error");
    test->f32_errors = errors ? json_loads(errors, 0, NULL) : NULL;
    for (int64_t i = 0; i < golden_n_entries(test->file); i++) {
        const char *name = golden_entry(test->file, i)->name;
        const char *dot = strchr(name, '.');
        if (!dot || strcmp(dot, ".latent") != 0) continue;
        const char *stem = golden_format(test->run, "%.*s", (int)(dot - name), name);
        judge(test, stem, M2_F32);
        check_recorded_error(test, stem);
        if (golden_has(test->file, golden_format(test->run, "%s.video.bf16", stem)))
            judge(test, stem, M2_BF16);
    }
    json_decref(test->f32_errors);
}

static void check_files(golden_run *run, const char *base)
{
    for (char **file = golden_list(run, base, 0); *file; file++)
        if (strcmp(*file, "config.json") != 0 && strcmp(*file, "checkpoint.ckpt") != 0 &&
            strcmp(*file, "decode.safetensors") != 0 && strcmp(*file, "report.json") != 0)
            golden_result(run, 0, golden_format(run, "%s/%s", base, *file), "not understood");
}

static int check_folder(golden_run *run, const char *dir, const char *folder, const json_t *report)
{
    const char *base = golden_format(run, "%s%s%s", dir, folder[0] ? "/" : "", folder);
    const char *data = golden_format(run, "%s/decode.safetensors", base);
    const char *config_path = golden_format(run, "%s/config.json", base);
    if (!golden_is_file(data) && !golden_is_file(config_path)) return 0;
    m2_turbo_config config;
    m2_checkpoint *checkpoint = NULL;
    check_files(run, base);
    if (m2_turbo_config_load(config_path, &config) != M2_OK ||
        m2_checkpoint_open(golden_format(run, "%s/checkpoint.ckpt", base), &checkpoint) != M2_OK) {
        golden_result(run, 0, folder, "%s", m2_last_error());
        return 1;
    }
    turbo_case test = { run, golden_open(run, data), folder, &config, checkpoint, report, NULL };
    if (test.file) check_entries(&test);
    golden_close(test.file);
    m2_checkpoint_close(checkpoint);
    return 1;
}

void golden_check_turbo(golden_run *run, const char *dir)
{
    json_t *report = recorded_errors_load(run, dir);
    int n = check_folder(run, dir, "", report);
    if (n == 0) {
        for (char **file = golden_list(run, dir, 0); *file; file++)
            if (strcmp(*file, "report.json") != 0) golden_result(run, 0, *file, "not understood");
    }
    for (char **folder = golden_list(run, dir, 1); *folder; folder++) {
        if (check_folder(run, dir, *folder, report))
            n++;
        else
            golden_result(run, 0, *folder, "a folder without a case");
    }
    if (n == 0) golden_result(run, 0, dir, "no cases");
    json_decref(report);
}
