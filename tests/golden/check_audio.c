/* check_audio.c - the sound decoder and the resampling after it.
 *
 * <config>/{model_config.json, model.safetensors, decode.safetensors}: LN.latent -> LN.wave ->
 * LN.resampled.  *.safetensors beside the folders: NN.in -> NN.out alone, at awkward lengths. */
#include "golden.h"

#include "media/resample.h"
#include "model/audio/oobleck.h"
#include "recorded_errors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* `in` [n, 2] to [floor(441 n / 512), 2]; data NULL after a recorded failure. */
static m2_tensor resample(golden_run *run, const char *name, const float *in, int64_t n)
{
    const int64_t m = m2_resample_length(n);
    m2_tensor out = m2_tensor_over(NULL, M2_F32, m, 2);
    float *values = golden_alloc(run, m2_tensor_bytes(&out));
    if (m2_resample_stereo(in, n, values, m) == M2_OK)
        out.data = values;
    else
        golden_result(run, 0, name, "%s", m2_last_error());
    return out;
}

/* ---- resampling alone ---- */

static void check_length(golden_run *run, golden_file *file, const char *stem,
                         const char *case_name, const json_t *report)
{
    const m2_tensor in = golden_tensor(file, golden_format(run, "%s.in", stem), M2_F32);
    const char *reference = golden_format(run, "%s.out", stem);
    const char *truth = golden_format(run, "%s.truth", stem);
    const char *name = golden_format(run, "resample %s", stem);
    if (!in.data) return;
    if (in.n_dims != 2 || in.shape[1] != 2) {
        golden_result(run, 0, name, "the input must be [n, 2]");
        return;
    }
    if (m2_resample_length(in.shape[0]) == 0) {
        float nothing[2];
        const m2_status status = m2_resample_stereo(in.data, in.shape[0], nothing, 0);
        golden_result(run, status == M2_ERR_ARG && !golden_has(file, reference), name,
                      "too short for one sample: refused");
        return;
    }
    const char *tensor = golden_format(run, "%lld -> %lld float32", (long long)in.shape[0],
                                       (long long)m2_resample_length(in.shape[0]));
    recorded_errors_check(run, report, file, case_name, tensor, reference, truth);
    const m2_tensor out = resample(run, name, in.data, in.shape[0]);
    if (out.data) golden_judge(file, name, &out, reference, truth, 2);
}

static void check_lengths(golden_run *run, const char *dir, const char *file_name,
                          const json_t *report)
{
    golden_file *file = golden_open(run, golden_format(run, "%s/%s", dir, file_name));
    const char *case_name = golden_format(run, "%.*s", (int)strcspn(file_name, "."), file_name);
    if (!file) return;
    for (int64_t i = 0; i < golden_n_entries(file); i++) {
        const char *name = golden_entry(file, i)->name;
        if (!ends_with(name, ".in")) continue;
        check_length(run, file, golden_format(run, "%.*s", (int)strlen(name) - 3, name), case_name,
                     report);
    }
    golden_close(file);
}

/* ---- the decoder ---- */

typedef struct audio_case {
    golden_run *run;
    golden_file *file;
    const char *folder;
    const m2_oobleck_config *config;
    const m2_checkpoint *checkpoint;
    const json_t *report; /* or NULL */
} audio_case;

/* Both arenas are as large as the plan says, to the byte.  `wave` [samples, 2]. */
static m2_status decode(const audio_case *test, const m2_tensor *latent, float *wave)
{
    m2_ops measure;
    const m2_ops *ops = golden_ops(test->run);
    m2_arena weights = { 0 }, step = { 0 }, planned_weights, planned_step;
    m2_oobleck *plan = NULL, *oobleck = NULL;
    m2_tensor out;
    golden_init_measure(test->run, &measure);
    m2_arena_init_measuring(&planned_weights, "weights");
    m2_arena_init_measuring(&planned_step, "step");
    m2_status status =
        m2_oobleck_create(test->config, test->checkpoint, &measure, &planned_weights, &plan);
    if (status == M2_OK)
        status = m2_oobleck_decode(plan, &measure, &planned_step, latent, NULL, NULL, &out);
    if (status == M2_OK)
        status = golden_arena(test->run, &weights, "weights", planned_weights.peak);
    if (status == M2_OK) status = golden_arena(test->run, &step, "step", planned_step.peak);
    if (status == M2_OK)
        status = m2_oobleck_create(test->config, test->checkpoint, ops, &weights, &oobleck);
    const m2_tensor placed = golden_to_device(test->run, latent);
    if (status == M2_OK) status = m2_oobleck_decode(oobleck, ops, &step, &placed, NULL, NULL, &out);
    if (status == M2_OK) ops->download(ops, wave, &out);
    m2_oobleck_destroy(plan);
    m2_oobleck_destroy(oobleck);
    golden_free_copies(test->run);
    golden_arena_free(test->run, &weights);
    golden_arena_free(test->run, &step);
    return status;
}

/* [1, 2, n] to [n, 2] */
static float *interleave(golden_run *run, const m2_tensor *wave)
{
    const int64_t n = wave->shape[wave->n_dims - 1];
    const float *from = wave->data;
    float *to = golden_alloc(run, (size_t)n * 2 * sizeof *to);
    for (int64_t i = 0; i < n; i++) {
        to[2 * i] = from[i];
        to[2 * i + 1] = from[n + i];
    }
    return to;
}

/* The resampled sound was made from the recorded wave; the truth of that step alone is there too,
 * and the sound of our own wave must come out as well as the reference's whole chain. */
static void check_resampled(const audio_case *test, const char *stem, const float *wave, int64_t n)
{
    golden_run *run = test->run;
    const char *name = golden_format(run, "%s/%s resampled", test->folder, stem);
    const char *reference = golden_format(run, "%s.resampled", stem);
    const char *truth = golden_format(run, "%s.resampled.truth_of_f32_wave", stem);
    const m2_tensor recorded =
        golden_tensor(test->file, golden_format(run, "%s.wave.f32", stem), M2_F32);
    const m2_tensor exact_wave =
        golden_tensor(test->file, golden_format(run, "%s.wave.truth", stem), M2_F32);
    const m2_tensor theirs = golden_tensor(test->file, reference, M2_F32);
    if (!recorded.data || !exact_wave.data || !theirs.data) return;
    recorded_errors_check(run, test->report, test->file,
                          golden_format(run, "%s/%s", test->folder, stem), "resampled float32",
                          reference, truth);
    const m2_tensor alone = resample(run, name, interleave(run, &recorded), n);
    if (alone.data) golden_judge(test->file, name, &alone, reference, truth, 2);

    const char *chain = golden_format(run, "%s/%s resampled, whole chain", test->folder, stem);
    const m2_tensor ours = resample(run, chain, wave, n);
    const m2_tensor exact = resample(run, chain, interleave(run, &exact_wave), n);
    if (!ours.data || !exact.data) return;
    const int64_t count = m2_tensor_count(&exact);
    if (m2_tensor_count(&theirs) != count) {
        golden_result(run, 0, chain, "another length than the reference's");
        return;
    }
    const double error = golden_relative_error(theirs.data, M2_F32, exact.data, M2_F32, count);
    golden_judge_values(run, chain, ours.data, M2_F32, error, exact.data, M2_F32, count, 2,
                        GOLDEN_FLOOR_F32);
}

static void check_clip(const audio_case *test, const char *stem)
{
    golden_run *run = test->run;
    const char *name = golden_format(run, "%s/%s wave", test->folder, stem);
    const m2_tensor latent =
        golden_tensor(test->file, golden_format(run, "%s.latent", stem), M2_F32);
    if (!latent.data) return;
    if (latent.n_dims != 2 || latent.shape[1] != test->config->latent_dim) {
        golden_result(run, 0, name, "the latent must be [frames, %d]", test->config->latent_dim);
        return;
    }
    const int64_t n = m2_oobleck_n_samples(test->config, latent.shape[0]);
    float *wave = golden_alloc(run, (size_t)n * 2 * sizeof *wave);
    if (decode(test, &latent, wave) != M2_OK) {
        golden_result(run, 0, name, "%s", m2_last_error());
        return;
    }
    m2_tensor planar = m2_tensor_over(NULL, M2_F32, 1, 2, n);
    float *values = golden_alloc(run, m2_tensor_bytes(&planar));
    for (int64_t i = 0; i < n; i++) {
        values[i] = wave[2 * i];
        values[n + i] = wave[2 * i + 1];
    }
    planar.data = values;
    recorded_errors_check(
        run, test->report, test->file, golden_format(run, "%s/%s", test->folder, stem), "f32",
        golden_format(run, "%s.wave.f32", stem), golden_format(run, "%s.wave.truth", stem));
    golden_judge(test->file, name, &planar, golden_format(run, "%s.wave.f32", stem),
                 golden_format(run, "%s.wave.truth", stem), 2);
    check_resampled(test, stem, wave, n);
}

static void check_files(golden_run *run, const char *base)
{
    for (char **file = golden_list(run, base, 0); *file; file++)
        if (strcmp(*file, "model_config.json") != 0 && strcmp(*file, "model.safetensors") != 0 &&
            strcmp(*file, "decode.safetensors") != 0 && strcmp(*file, "report.json") != 0)
            golden_result(run, 0, golden_format(run, "%s/%s", base, *file), "not understood");
}

static int check_folder(golden_run *run, const char *dir, const char *folder, const json_t *report)
{
    const char *base = golden_format(run, "%s%s%s", dir, folder[0] ? "/" : "", folder);
    const char *data = golden_format(run, "%s/decode.safetensors", base);
    const char *config_path = golden_format(run, "%s/model_config.json", base);
    if (!golden_is_file(data) && !golden_is_file(config_path)) return 0;
    m2_oobleck_config config;
    m2_checkpoint *checkpoint = NULL;
    check_files(run, base);
    if (m2_oobleck_config_load(config_path, &config) != M2_OK ||
        m2_checkpoint_open(golden_format(run, "%s/model.safetensors", base), &checkpoint) !=
            M2_OK) {
        golden_result(run, 0, folder, "%s", m2_last_error());
        return 1;
    }
    const audio_case test = { run, golden_open(run, data), folder, &config, checkpoint, report };
    for (int64_t i = 0; test.file && i < golden_n_entries(test.file); i++) {
        const char *name = golden_entry(test.file, i)->name;
        if (!ends_with(name, ".latent")) continue;
        check_clip(&test, golden_format(run, "%.*s", (int)strlen(name) - 7, name));
    }
    golden_close(test.file);
    m2_checkpoint_close(checkpoint);
    return 1;
}

void golden_check_audio(golden_run *run, const char *dir)
{
    json_t *report = recorded_errors_load(run, dir);
    int n = check_folder(run, dir, "", report);
    const int is_one_case = n > 0;
    for (char **folder = golden_list(run, dir, 1); *folder; folder++) {
        if (check_folder(run, dir, *folder, report))
            n++;
        else
            golden_result(run, 0, *folder, "a folder without a case");
    }
    for (char **file = golden_list(run, dir, 0); !is_one_case && *file; file++) {
        if (strcmp(*file, "report.json") == 0) continue;
        if (ends_with(*file, ".safetensors")) {
            check_lengths(run, dir, *file, report);
            n++;
        } else {
            golden_result(run, 0, *file, "not understood");
        }
    }
    if (n == 0) golden_result(run, 0, dir, "no cases");
    json_decref(report);
}
