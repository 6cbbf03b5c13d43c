/* check_e2e.c - the reference's `evaluate` on the tiny checkpoints of the other folders. */
#include "e2e.h"
#include "recorded_errors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void paths_of(golden_run *run, const char *dir, const json_t *parts, m2_model_paths *paths)
{
    const char *root = golden_format(run, "%s/..", dir);
    const char *text = json_string_value(json_object_get(parts, "text"));
    const char *dit = json_string_value(json_object_get(parts, "dit"));
    const char *turbo = json_string_value(json_object_get(parts, "turbo"));
    const char *audio = json_string_value(json_object_get(parts, "audio"));
    memset(paths, 0, sizeof *paths);
    snprintf(paths->config, sizeof paths->config, "%s/%s/config.json", root, dit ? dit : "");
    snprintf(paths->preview, sizeof paths->preview, "%s/%s/ckpt", root, dit ? dit : "");
    snprintf(paths->text, sizeof paths->text, "%s/%s", root, text ? text : "");
    snprintf(paths->text_config, sizeof paths->text_config, "%s/%s/config.json", root,
             text ? text : "");
    snprintf(paths->tokenizer, sizeof paths->tokenizer, "%s/%s/tokenizer.json", root,
             text ? text : "");
    snprintf(paths->video, sizeof paths->video, "%s/%s/checkpoint.ckpt", root, turbo ? turbo : "");
    snprintf(paths->video_config, sizeof paths->video_config, "%s/%s/config.json", root,
             turbo ? turbo : "");
    snprintf(paths->audio, sizeof paths->audio, "%s/%s/model.safetensors", root,
             audio ? audio : "");
    snprintf(paths->audio_config, sizeof paths->audio_config, "%s/%s/model_config.json", root,
             audio ? audio : "");
}

/* Ours and the recorded bf16 features, both against our f32 encoder, which the text component judges
 * against the truth. */
static void judge_features(e2e_case *it, const m2_model_paths *paths, const char *entry,
                           const char *prompt)
{
    const m2_tensor ours = e2e_features(it->run, it->engine, paths, prompt, M2_BF16);
    const char *truth_name = golden_format(it->run, "%s.truth", entry);
    if (!ours.data) return;
    if (golden_has(it->file, truth_name)) {
        const char *what = strcmp(entry, "text") == 0 ? "text" : "null text";
        golden_judge(it->file, entry, &ours, entry, truth_name, 2);
        recorded_errors_check(
            it->run, it->report, it->file, it->name,
            golden_format(it->run, "%s (%lld tokens)", what, (long long)ours.shape[0]), entry,
            truth_name);
        return;
    }
    const m2_tensor truth = e2e_features(it->run, it->engine, paths, prompt, M2_F32);
    const m2_tensor reference = golden_tensor(it->file, entry, M2_BF16);
    if (!truth.data || !reference.data) return;
    const int64_t n = m2_tensor_count(&truth);
    const char *name = golden_format(it->run, "%s %s", it->name, entry);
    if (m2_tensor_count(&reference) != n) {
        golden_result(it->run, 0, name, "another number of tokens than recorded");
        return;
    }
    const double error = golden_relative_error(reference.data, M2_BF16, truth.data, M2_F32, n);
    golden_judge_values(it->run, name, ours.data, M2_BF16, error, truth.data, M2_F32, n, 2,
                        GOLDEN_FLOOR_BF16);
}

/* The negative prompt's recorded features: of this file, or of another case with the same text. */
static m2_tensor null_features(e2e_case *it, const m2_model_paths *paths, const char *dir,
                               const json_t *cases, const char *null_prompt)
{
    if (golden_has(it->file, "null_text")) return golden_tensor(it->file, "null_text", M2_BF16);
    size_t i;
    json_t *other;
    json_array_foreach((json_t *)cases, i, other)
    {
        const char *text = json_string_value(json_object_get(other, "null_prompt"));
        const char *name = json_string_value(json_object_get(other, "name"));
        if (!text || !name || strcmp(text, null_prompt) != 0) continue;
        m2_checkpoint *file = NULL;
        m2_tensor values = { 0 };
        if (m2_checkpoint_open(golden_format(it->run, "%s/%s.safetensors", dir, name), &file) !=
            M2_OK)
            continue;
        const m2_ckpt_tensor *found = m2_checkpoint_find(file, "null_text");
        if (found) {
            values = m2_tensor_wrap(golden_alloc(it->run, (size_t)found->count * 2), M2_BF16,
                                    found->n_dims, found->shape);
            m2_checkpoint_read(found, M2_BF16, values.data);
        }
        m2_checkpoint_close(file);
        if (values.data) return values;
    }
    return e2e_features(it->run, it->engine, paths, null_prompt, M2_BF16);
}

/* Largest difference of 8-bit values: one wrong pixel hardly moves the relative error. */
#define PIXEL_OFF_MAX 64 /* measured: 35 between the reference and the float64 run */

static void check_pixels(e2e_case *it, const char *what, const m2_tensor *a, const m2_tensor *b)
{
    int largest = 0;
    for (int64_t i = 0; i < m2_tensor_count(a); i++) {
        const int off = abs(((const uint8_t *)a->data)[i] - ((const uint8_t *)b->data)[i]);
        largest = off > largest ? off : largest;
    }
    golden_result(it->run, largest <= PIXEL_OFF_MAX,
                  golden_format(it->run, "%s %s", it->name, what),
                  "largest difference %d grey levels (%d at most)", largest, PIXEL_OFF_MAX);
}

/* Pictures from the recorded last latents, against our f32 decoder, which the turbo component judges
 * against the truth. */
static void judge_recorded_frames(e2e_case *it, const m2_model_paths *paths, int n_steps)
{
    const m2_tensor video =
        golden_tensor(it->file, golden_format(it->run, "step%d.video", n_steps - 1), M2_F32);
    if (!video.data) return;
    const m2_tensor truth = e2e_frames(it->run, it->engine, paths, &video, M2_F32, M2_U8);
    const m2_tensor ours = e2e_frames(it->run, it->engine, paths, &video, M2_BF16, M2_U8);
    const m2_tensor reference = golden_tensor(it->file, "frames", M2_U8);
    if (!truth.data || !ours.data || !reference.data) return;
    const int64_t n = m2_tensor_count(&truth);
    const char *name = golden_format(it->run, "%s frames of the recorded latents", it->name);
    if (m2_tensor_count(&reference) != n) {
        golden_result(it->run, 0, name, "another number of pixels than recorded");
        return;
    }
    const double error = golden_relative_error(reference.data, M2_U8, truth.data, M2_U8, n);
    golden_judge_values(it->run, name, ours.data, M2_U8, error, truth.data, M2_U8, n, 2,
                        GOLDEN_FLOOR_BF16);
    /* The rule's factor leaves room; the reference's pictures themselves must be near. */
    golden_result(it->run, error < 0.05, golden_format(it->run, "%s frames as recorded", it->name),
                  "recorded pictures are %.3e from our f32 decoder's (below 0.05)", error);
    check_pixels(it, "frames, pixel by pixel", &reference, &truth);
    if (!golden_has(it->file, "decoded")) return;
    /* [1, 3, T, H, W] against our [T, H, W, 3]. */
    const m2_tensor decoded = golden_tensor(it->file, "decoded", M2_F32);
    const m2_tensor exact = e2e_frames(it->run, it->engine, paths, &video, M2_F32, M2_F32);
    const m2_tensor rounded = e2e_frames(it->run, it->engine, paths, &video, M2_BF16, M2_BF16);
    if (!exact.data || !rounded.data || m2_tensor_count(&decoded) != n) return;
    float *turned = golden_alloc(it->run, (size_t)n * sizeof *turned);
    const int64_t pixels = n / 3;
    for (int64_t i = 0; i < pixels; i++) {
        for (int c = 0; c < 3; c++) turned[3 * i + c] = ((float *)decoded.data)[c * pixels + i];
    }
    golden_judge_values(it->run, golden_format(it->run, "%s decoded", it->name), rounded.data,
                        M2_BF16, golden_relative_error(turned, M2_F32, exact.data, M2_F32, n),
                        exact.data, M2_F32, n, 2, GOLDEN_FLOOR_BF16);
}

/* Pictures and sound from our own latents against those of the float64 run. */
static void judge_own_clip(e2e_case *it, const m2_model_paths *paths)
{
    const m2_tensor audio = e2e_fetch(it->run, it->engine, &it->clip.audio);
    const m2_tensor video = e2e_fetch(it->run, it->engine, &it->clip.video);
    const m2_tensor sound = e2e_sound(it->run, it->engine, &audio);
    if (sound.data && golden_has(it->file, "audio.truth")) {
        golden_judge(it->file, "audio", &sound, "audio", "audio.truth", 3);
        recorded_errors_check(it->run, it->report, it->file, it->name,
                              golden_format(it->run, "audio (%lld, 2)", (long long)sound.shape[0]),
                              "audio", "audio.truth");
    }
    if (!golden_has(it->file, "frames.truth")) return;
    const m2_tensor ours = e2e_frames(it->run, it->engine, paths, &video, M2_BF16, M2_U8);
    if (ours.data) golden_judge(it->file, "frames", &ours, "frames", "frames.truth", 3);
    const m2_tensor reference = golden_tensor(it->file, "frames", M2_U8);
    const m2_tensor exact = golden_tensor(it->file, "frames.truth", M2_U8);
    if (reference.data && exact.data && m2_tensor_count(&reference) == m2_tensor_count(&exact))
        check_pixels(it, "frames against the truth's", &reference, &exact);
}

static void check_case(golden_run *run, const char *dir, const json_t *cases, const json_t *entry,
                       const json_t *report)
{
    const char *name = json_string_value(json_object_get(entry, "name"));
    const char *prompt = json_string_value(json_object_get(entry, "prompt_used"));
    const char *null_prompt = json_string_value(json_object_get(entry, "null_prompt"));
    const int n_steps = (int)json_integer_value(json_object_get(entry, "steps"));
    if (!name || !prompt || !null_prompt || n_steps < 1) {
        golden_result(run, 0, dir, "cases.json: an entry is not understood");
        return;
    }
    if (json_is_string(json_object_get(entry, "image"))) {
        golden_skip(run, name, "needs the image encoder, which is not built yet");
        return;
    }
    m2_model_paths paths;
    paths_of(run, dir, json_object_get(entry, "checkpoints"), &paths);
    e2e_case it = { .run = run,
                    .name = name,
                    .later_factor = 3,
                    .report = report,
                    .path = golden_format(run, "%s/%s.safetensors", dir, name) };
    it.file = golden_open(run, it.path);
    it.engine = it.file ? e2e_engine(run, &paths) : NULL;
    if (it.engine) {
        judge_features(&it, &paths, "text", prompt);
        if (golden_has(it.file, "null_text")) judge_features(&it, &paths, "null_text", null_prompt);
        const m2_tensor text = golden_tensor(it.file, "text", M2_BF16);
        const m2_tensor null_text = null_features(&it, &paths, dir, cases, null_prompt);
        if (text.data && null_text.data && e2e_begin(&it, &text, &null_text, n_steps)) {
            e2e_denoise(&it);
            judge_own_clip(&it, &paths);
            judge_recorded_frames(&it, &paths, n_steps);
        }
        e2e_end(&it);
    }
    m2_engine_close(it.engine);
    golden_close(it.file);
}

void golden_check_e2e(golden_run *run, const char *dir)
{
    if (!golden_engine_backend(run)) {
        golden_skip(run, dir, "an engine opens no guarded device");
        return;
    }
    json_t *cases = golden_json(run, golden_format(run, "%s/cases.json", dir));
    size_t i;
    json_t *entry;
    json_t *report = recorded_errors_load(run, dir);
    json_array_foreach(cases, i, entry) check_case(run, dir, cases, entry, report);
    /* A file that no case names is not understood. */
    for (char **name = golden_list(run, dir, 0); *name; name++) {
        const char *dot = strstr(*name, ".safetensors");
        int is_named = strcmp(*name, "cases.json") == 0 || strcmp(*name, "report.json") == 0;
        json_array_foreach(cases, i, entry)
        {
            const char *known = json_string_value(json_object_get(entry, "name"));
            if (dot && known && strlen(known) == (size_t)(dot - *name) &&
                strncmp(known, *name, strlen(known)) == 0)
                is_named = 1;
        }
        if (!is_named) golden_result(run, 0, *name, "not understood: no case of this name");
    }
    json_decref(report);
    json_decref(cases);
}
