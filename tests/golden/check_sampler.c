/* check_sampler.c - golden/sampler: tables of sigmas, whole trajectories, guidance variants. */
#include "golden.h"

#include "sample/guidance.h"
#include "sample/sampler.h"
#include "sample/schedule.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

/* "steps20.shift7.<rest>": gives where rest begins, NULL for another name. */
static const char *parse_schedule(const char *name, int *n_steps_out, double *shift_out)
{
    char *end;
    if (strncmp(name, "steps", 5) != 0 || !isdigit((unsigned char)name[5])) return NULL;
    *n_steps_out = (int)strtol(name + 5, &end, 10);
    if (strncmp(end, ".shift", 6) != 0) return NULL;
    /* A shift may hold a point of its own: the rest begins at the last one. */
    const char *digits = end + 6, *rest = strrchr(digits, '.');
    char shift[32];
    if (!rest || rest == digits || (size_t)(rest - digits) >= sizeof shift) return NULL;
    snprintf(shift, sizeof shift, "%.*s", (int)(rest - digits), digits);
    *shift_out = strtod(shift, &end);
    return *end == '\0' ? rest + 1 : NULL;
}

/* ---- tables ---- */

static void check_tables(golden_run *run, const char *path)
{
    golden_file *file = golden_open(run, path);
    for (int64_t i = 0; file && i < golden_n_entries(file); i++) {
        const m2_ckpt_tensor *entry = golden_entry(file, i);
        int n_steps;
        double shift;
        const char *rest = parse_schedule(entry->name, &n_steps, &shift);
        if (!rest) continue; /* golden_close says so */
        if (m2_schedule_check(n_steps, shift) != M2_OK) {
            golden_result(run, 0, entry->name, "%s", m2_last_error());
            continue;
        }
        const int is_sigmas = strcmp(rest, "sigmas") == 0;
        if (!is_sigmas && strcmp(rest, "timesteps") != 0) continue;
        const int64_t n = n_steps + is_sigmas;
        if (entry->count != n || entry->dtype != (is_sigmas ? M2_F32 : M2_I64)) {
            golden_result(run, 0, entry->name, "not a table of %lld entries", (long long)n);
            continue;
        }
        const m2_tensor expected = golden_tensor(file, entry->name, entry->dtype);
        if (!expected.data) continue;
        float *sigmas = golden_alloc(run, (size_t)n * sizeof *sigmas);
        int64_t *timesteps = golden_alloc(run, (size_t)n * sizeof *timesteps);
        for (int step = 0; step < n; step++) {
            sigmas[step] = m2_schedule_sigma(n_steps, shift, step);
            if (step < n_steps) timesteps[step] = m2_schedule_timestep(n_steps, shift, step);
        }
        golden_exact(run, entry->name, is_sigmas ? (void *)sigmas : (void *)timesteps,
                     expected.data, m2_tensor_bytes(&expected));
    }
    golden_close(file);
}

/* Judge `ours` against entry `name`, the reference, and `name`.truth.  Far from 1e-5 the recorded
 * reference is no f32 result and was damaged: it may not loosen the limit. */
static void judge(golden_run *run, golden_file *file, const char *name, const m2_tensor *ours)
{
    const char *truth_name = golden_format(run, "%s.truth", name);
    const m2_tensor reference = golden_tensor(file, name, M2_F64);
    const m2_tensor truth = golden_tensor(file, truth_name, M2_F64);
    if (!reference.data || !truth.data) return;
    const int64_t n = m2_tensor_count(&truth);
    if (m2_tensor_count(&reference) != n ||
        !(golden_relative_error(reference.data, M2_F64, truth.data, M2_F64, n) < 1e-5))
        golden_result(run, 0, name, "the recorded reference is not near its truth");
    else
        golden_judge(file, name, ours, name, truth_name, 2);
}

/* ---- trajectories ---- */

typedef struct velocity_field {
    double a, b, c, d;
} velocity_field;

static int read_field(golden_run *run, golden_file *file, velocity_field *field_out)
{
    const char *text = golden_metadata(file, "constants");
    json_t *json = text ? json_loads(text, 0, NULL) : NULL;
    const int is_good = json_unpack(json, "{s:F, s:F, s:F, s:F}", "a", &field_out->a, "b",
                                    &field_out->b, "c", &field_out->c, "d", &field_out->d) == 0;
    if (!is_good)
        golden_result(run, 0, "trajectories", "the constants of the velocity are not understood");
    json_decref(json);
    return is_good;
}

/* v = a x + b sin(t / 1000 c) + d, as the reference's f32 tensors take it. */
static void evaluate_field(const velocity_field *field, int timestep, const float *x, float *v,
                           int64_t n)
{
    const float wave = (float)(field->b * sin(timestep / 1000.0 * field->c));
    const float a = (float)field->a, d = (float)field->d;
    for (int64_t i = 0; i < n; i++) {
        const float product = a * x[i];
        const float sum = product + wave;
        v[i] = sum + d;
    }
}

/* Runs from row 0 of `path` [n_steps + 1, n]; fills the other rows. */
static m2_status run_trajectory(golden_run *run, const velocity_field *field, int n_steps,
                                double shift, float *path, int64_t n)
{
    m2_arena measure, arena;
    m2_sampler sampler;
    int32_t n_done = 0;
    m2_tensor counter = m2_tensor_over(&n_done, M2_I32, 1);
    const m2_ops *ops = golden_host_ops(run);
    const m2_sampler_params params = {
        .n_elems = n, .n_steps = n_steps, .shift = shift, .step = &counter
    };
    m2_arena_init_measuring(&measure, "sampler");
    M2_TRY(m2_sampler_init(&sampler, &measure, ops, &params));
    M2_TRY(m2_arena_create(&arena, "sampler", measure.peak));
    const m2_status status = m2_sampler_init(&sampler, &arena, ops, &params);
    float *v = golden_alloc(run, (size_t)n * sizeof *v);
    const m2_tensor velocity = m2_tensor_over(v, M2_F32, n);
    for (int step = 0; status == M2_OK && step < n_steps; step++) {
        const float *now = path + step * n;
        float *next = path + (step + 1) * n;
        evaluate_field(field, m2_schedule_timestep(n_steps, shift, step), now, v, n);
        memcpy(next, now, (size_t)n * sizeof *next);
        m2_tensor latent = m2_tensor_over(next, M2_F32, n);
        m2_sampler_step(&sampler, &latent, &velocity);
        ops->advance(ops, &(m2_advance_args){ .counter = &counter });
    }
    m2_arena_destroy(&arena);
    return status;
}

static void check_trajectories(golden_run *run, const char *file_path)
{
    golden_file *file = golden_open(run, file_path);
    velocity_field field;
    if (!file || !read_field(run, file, &field)) {
        golden_close(file);
        return;
    }
    for (int64_t i = 0; i < golden_n_entries(file); i++) {
        const m2_ckpt_tensor *entry = golden_entry(file, i);
        int n_steps;
        double shift;
        const char *name = entry->name;
        const char *schedule = strncmp(name, "audio.", 6) == 0 ? name + 6 : name;
        const char *rest = parse_schedule(schedule, &n_steps, &shift);
        if (!rest || strcmp(rest, "latents") != 0) continue;
        if (entry->n_dims < 1 || entry->shape[0] != n_steps + 1 || entry->count == 0) {
            golden_result(run, 0, name, "not %d latents", n_steps + 1);
            continue;
        }
        const m2_tensor given = golden_tensor(file, name, M2_F32);
        if (!given.data) continue;
        m2_tensor ours = given;
        ours.data = golden_alloc(run, m2_tensor_bytes(&given));
        const int64_t n = entry->count / (n_steps + 1);
        memcpy(ours.data, given.data, (size_t)n * sizeof(float));
        if (run_trajectory(run, &field, n_steps, shift, ours.data, n) != M2_OK) {
            golden_result(run, 0, name, "%s", m2_last_error());
            continue;
        }
        judge(run, file, name, &ours);
    }
    golden_close(file);
}

/* ---- guidance ---- */

static int set_number(const char *key, json_t *value, m2_guidance_params *params)
{
    const struct {
        const char *key;
        float *number;
        int *integer;
    } fields[] = {
        { "video_txt_guidance_scale", &params->video_scale, NULL },
        { "audio_txt_guidance_scale", &params->audio_scale, NULL },
        { "use_cfg_trick", NULL, &params->use_trick },
        { "cfg_trick_start_frame", NULL, &params->trick_n_frames },
        { "cfg_trick_value", &params->trick_scale, NULL },
        { "use_dynamic_cfg", NULL, &params->use_dynamic },
        { "dynamic_cfg_start_t", NULL, &params->dynamic_timestep },
        { "dynamic_cfg_cutoff_value", &params->dynamic_scale_max, NULL },
        { "use_skimmed_cfg_linear", NULL, &params->use_skimmed },
        { "skimmed_cfg_scale", &params->skimmed_scale, NULL },
        { "cfg_rescale", &params->rescale, NULL },
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (strcmp(key, fields[i].key) != 0) continue;
        const double number =
            json_is_boolean(value) ? json_boolean_value(value) : json_number_value(value);
        if (fields[i].number) *fields[i].number = (float)number;
        if (fields[i].integer) *fields[i].integer = (int)number;
        return json_is_boolean(value) || json_is_number(value);
    }
    return 0;
}

static int read_params(golden_run *run, golden_file *file, const char *case_name,
                       m2_guidance_params *params_out)
{
    m2_guidance_params_init(params_out);
    const char *text = golden_metadata(file, case_name);
    json_t *json = text ? json_loads(text, 0, NULL) : NULL;
    int is_good = json_is_object(json);
    const char *key;
    json_t *value;
    json_object_foreach(json, key, value)
    {
        if (set_number(key, value, params_out)) continue;
        golden_result(run, 0, case_name, "setting %s is not understood", key);
        is_good = 0;
    }
    if (!json) golden_result(run, 0, case_name, "has no settings in the metadata");
    json_decref(json);
    return is_good;
}

static void check_scales(golden_run *run, golden_file *file, const char *name,
                         const m2_guidance_params *params, int timestep, int64_t n_frames)
{
    const m2_tensor expected = golden_tensor(file, name, M2_F32);
    if (!expected.data) return;
    float *scales = golden_alloc(run, (size_t)n_frames * sizeof *scales);
    const int64_t n = m2_guidance_scales(params, M2_LATENT_VIDEO, timestep, n_frames, scales);
    if (n != m2_tensor_count(&expected)) {
        golden_result(run, 0, name, "%lld scales, %lld expected", (long long)n,
                      (long long)m2_tensor_count(&expected));
        return;
    }
    golden_exact(run, name, scales, expected.data, (size_t)n * sizeof *scales);
}

/* One modality of one case: `name` is "plain.t900.video". */
static void check_mix(golden_run *run, golden_file *file, const char *name,
                      const m2_guidance_params *params, int timestep, m2_modality_latent modality)
{
    const int is_audio = modality == M2_LATENT_AUDIO;
    const m2_tensor pair = golden_tensor(file, is_audio ? "model.audio" : "model.video", M2_F32);
    m2_tensor latent = golden_tensor(file, is_audio ? "audio_latent" : "latent", M2_F32);
    if (!pair.data || !latent.data) return;
    const int n_dims = is_audio ? 2 : 4;
    if (pair.n_dims != n_dims + 1 || pair.shape[0] != 2 || latent.n_dims != n_dims + 1) {
        golden_result(run, 0, name, "the predictions are not [2, ...]");
        return;
    }
    const int64_t n = m2_tensor_count(&pair) / 2;
    m2_tensor cond = m2_tensor_wrap(pair.data, M2_F32, n_dims, pair.shape + 1);
    m2_tensor uncond = cond, velocity = cond;
    latent = m2_tensor_wrap(latent.data, M2_F32, n_dims, pair.shape + 1);
    uncond.data = golden_alloc(run, (size_t)n * sizeof(float));
    velocity.data = golden_alloc(run, (size_t)n * sizeof(float));
    memcpy(uncond.data, (const float *)pair.data + n, (size_t)n * sizeof(float));

    _Alignas(M2_ARENA_ALIGN) unsigned char room[8192];
    m2_arena arena;
    m2_guidance guidance;
    m2_arena_init(&arena, "guidance", room, sizeof room);
    int32_t n_done = 0;
    const m2_tensor step = m2_tensor_over(&n_done, M2_I32, 1);
    const m2_guidance_run guided = { .modality = modality,
                                     .n_frames = cond.shape[1],
                                     .n_steps = 1,
                                     .timesteps = &timestep,
                                     .step = &step };
    if (m2_guidance_init(&guidance, &arena, golden_host_ops(run), params, &guided) != M2_OK) {
        golden_result(run, 0, name, "%s", m2_last_error());
        return;
    }
    m2_guidance_apply(&guidance, &latent, &cond, &uncond, &velocity);
    judge(run, file, name, &velocity);
}

static void check_guidance(golden_run *run, const char *path)
{
    golden_file *file = golden_open(run, path);
    for (int64_t i = 0; file && i < golden_n_entries(file); i++) {
        const char *name = golden_entry(file, i)->name;
        const int is_video = ends_with(name, ".video.truth");
        if (!is_video && !ends_with(name, ".audio.truth")) continue;
        const char *stem = golden_format(run, "%.*s", (int)(strlen(name) - 12), name);
        const char *mark = strrchr(stem, '.');
        if (!mark || mark[1] != 't' || !isdigit((unsigned char)mark[2])) continue;
        const int timestep = (int)strtol(mark + 2, NULL, 10);
        m2_guidance_params params;
        if (!read_params(run, file, golden_format(run, "%.*s", (int)(mark - stem), stem), &params))
            continue;
        check_mix(run, file, golden_format(run, "%s.%s", stem, is_video ? "video" : "audio"),
                  &params, timestep, is_video ? M2_LATENT_VIDEO : M2_LATENT_AUDIO);
        const char *scale = golden_format(run, "%s.scale", stem);
        const m2_ckpt_tensor *model = golden_take(file, "model.video");
        if (is_video && golden_has(file, scale) && model && model->n_dims == 5)
            check_scales(run, file, scale, &params, timestep, model->shape[2]);
    }
    golden_close(file);
}

/* ---- the folder ---- */

typedef struct recorded_error {
    double rel, max, scale; /* scale: the largest value of the truth */
} recorded_error;

static recorded_error error_in_files(golden_run *run, const char *dir, const char *case_name,
                                     const char *tensor)
{
    const int is_guidance = strcmp(case_name, "cfg") == 0;
    const char *path =
        golden_format(run, "%s/%s.safetensors", dir, is_guidance ? "cfg" : "trajectories");
    const char *name = golden_format(run, is_guidance ? "%s" : "%s.latents", tensor);
    recorded_error error = { NAN, NAN, 0 };
    golden_file *file = golden_open(run, path);
    if (!file) return error;
    for (int64_t i = 0; i < golden_n_entries(file); i++)
        golden_take(file, golden_entry(file, i)->name);
    const char *truth_name = golden_format(run, "%s.truth", name);
    if (golden_has(file, name) && golden_has(file, truth_name)) {
        const m2_tensor reference = golden_tensor(file, name, M2_F64);
        const m2_tensor truth = golden_tensor(file, truth_name, M2_F64);
        const int64_t count = m2_tensor_count(&truth);
        /* Of a trajectory, the report tells the error of the last latent. */
        const int64_t n = is_guidance ? count : count / truth.shape[0];
        if (m2_tensor_count(&reference) == count && n > 0) {
            const double *a = (const double *)reference.data + count - n;
            const double *b = (const double *)truth.data + count - n;
            error.rel = golden_relative_error(a, M2_F64, b, M2_F64, n);
            error.max = 0;
            for (int64_t i = 0; i < n; i++) {
                error.max = fmax(error.max, fabs(a[i] - b[i]));
                error.scale = fmax(error.scale, fabs(b[i]));
            }
        }
    }
    golden_close(file);
    return error;
}

/* The truths were rounded to f32 for the files. */
#define TRUTH_ROUNDING 6e-8

/* The reference's own errors, as its run wrote them down, must be those of the files. */
static void check_report(golden_run *run, const char *dir, const char *path)
{
    json_t *report = golden_json(run, path);
    json_t *errors = json_object_get(report, "errors_ref_vs_truth");
    size_t i;
    json_t *entry;
    int n_wrong = 0;
    json_array_foreach(errors, i, entry)
    {
        const char *case_name = json_string_value(json_object_get(entry, "case"));
        const char *tensor = json_string_value(json_object_get(entry, "tensor"));
        const double rel = json_number_value(json_object_get(entry, "rel"));
        const double max = json_number_value(json_object_get(entry, "max"));
        const recorded_error found = case_name && tensor
                                         ? error_in_files(run, dir, case_name, tensor)
                                         : (recorded_error){ NAN, NAN, 0 };
        if (fabs(found.rel - rel) <= 1e-3 * rel &&
            fabs(found.max - max) <= 1e-3 * max + TRUTH_ROUNDING * found.scale)
            continue;
        n_wrong++;
        golden_result(run, 0, golden_format(run, "report.json %s", tensor ? tensor : "?"),
                      "says %.3e, at most %.3e; the files say %.3e, %.3e", rel, max, found.rel,
                      found.max);
    }
    if (report && n_wrong == 0)
        golden_result(run, json_is_array(errors), "report.json", "%zu errors as recorded",
                      json_array_size(errors));
    json_decref(report);
}

void golden_check_sampler(golden_run *run, const char *dir)
{
    static const struct {
        const char *name;
        void (*check)(golden_run *run, const char *path);
    } files[] = {
        { "tables.safetensors", check_tables },
        { "trajectories.safetensors", check_trajectories },
        { "cfg.safetensors", check_guidance },
    };
    for (char **name = golden_list(run, dir, 0); *name; name++) {
        const char *path = golden_format(run, "%s/%s", dir, *name);
        int is_known = strcmp(*name, "report.json") == 0;
        if (is_known) check_report(run, dir, path);
        for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
            if (strcmp(*name, files[i].name) != 0) continue;
            files[i].check(run, path);
            is_known = 1;
        }
        if (!is_known) golden_result(run, 0, path, "not understood");
    }
    for (char **name = golden_list(run, dir, 1); *name; name++)
        golden_result(run, 0, golden_format(run, "%s/%s", dir, *name), "not understood");
}
