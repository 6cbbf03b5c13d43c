/* check_demo_e2e.c - runs of the demo model: few steps by value, whole clips by what they show. */
#include "e2e.h"

#include "sample/schedule.h"
#include "support/clip_judge.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Few steps are compared by value. */
#define STEPS_BY_VALUE_MAX 8

typedef struct demo_case {
    e2e_case it;
    const json_t *entry;
    const char *dir, *prompt;
    int n_steps;
    int width, height, first, stride, n_shown; /* of the recorded sheet of frames */
    uint8_t *sheet; /* NULL in a build that reads no pictures: nothing is compared with it */
    int64_t sheet_width;
} demo_case;

static const char *text_of(const json_t *entry, const char *key)
{
    const char *text = json_string_value(json_object_get(entry, key));
    return text ? text : "";
}

static int read_sheet(demo_case *demo, const char *path)
{
#ifdef GOLDEN_WITH_MEDIA
    int64_t height = 0;
    demo->sheet = judge_sheet_read(path, &demo->sheet_width, &height);
    return demo->sheet != NULL;
#else
    golden_skip(demo->it.run, path, "pictures need a build with MAGI2_WITH_MEDIA");
    return 1;
#endif
}

static int load_sheet(demo_case *demo)
{
    golden_run *run = demo->it.run;
    const char *path = golden_format(run, "%s/%s", demo->dir, text_of(demo->entry, "frames"));
    const json_t *shown = json_object_get(demo->entry, "frames_shown");
    const int is_read = read_sheet(demo, path);
    int last = 0;
    demo->first = (int)json_integer_value(json_array_get(shown, 0));
    last = (int)json_integer_value(json_array_get(shown, 1));
    demo->stride = (int)json_integer_value(json_array_get(shown, 2));
    if (!is_read || demo->stride < 1 || last < demo->first ||
        sscanf(text_of(demo->entry, "frame_tiles"), "%*d a row, %dx%d each", &demo->width,
               &demo->height) != 2) {
        golden_result(run, 0, path, "the sheet of frames is not understood");
        return 0;
    }
    demo->n_shown = (last - demo->first) / demo->stride + 1;
    return 1;
}

/* The recorded pictures against those of our decoder from the recorded latents: one decoder in bf16
 * against another.  Measured 45 dB and more; a wrong channel order or window is below 25 dB. */
static void judge_recorded_frames(demo_case *demo, const m2_tensor *frames)
{
    golden_run *run = demo->it.run;
    const int64_t bytes = (int64_t)demo->width * demo->height * 3;
    uint8_t *tile = golden_alloc(run, (size_t)bytes);
    double worst = 99;
    int worst_frame = -1;
    if (frames->shape[1] != demo->height || frames->shape[2] != demo->width ||
        demo->first + (demo->n_shown - 1) * demo->stride >= frames->shape[0]) {
        golden_result(run, 0, demo->it.name, "the recorded frames have another size than ours");
        return;
    }
    for (int i = 0; i < demo->n_shown; i++) {
        const int frame = demo->first + i * demo->stride;
        judge_sheet_tile(demo->sheet, demo->sheet_width, demo->width, demo->height, i, tile);
        const uint8_t *ours = (const uint8_t *)frames->data + frame * bytes;
        const double psnr = judge_psnr(tile, ours, bytes);
        int most = 0;
        for (int64_t k = 0; k < bytes; k++)
            most = abs(tile[k] - ours[k]) > most ? abs(tile[k] - ours[k]) : most;
        /* One wrong pixel hardly moves the PSNR: the largest difference has a limit of its own. */
        if (most > 64) worst = fmin(worst, 0), worst_frame = frame;
        if (psnr < worst) worst = psnr, worst_frame = frame;
    }
    golden_result(run, worst >= 35,
                  golden_format(run, "%s frames of the recorded latents", demo->it.name),
                  "%d frames, the worst (%d) has %.1f dB (35 or more, no value off by over 64)",
                  demo->n_shown, worst_frame, worst);
}

/* The first samples as f32, or all as 16-bit: the f32 decoder's error is far below both limits. */
static void judge_recorded_sound(demo_case *demo, const m2_tensor *sound)
{
    golden_run *run = demo->it.run;
    const float *ours = sound->data;
    const int64_t n = m2_tensor_count(sound);
    if (json_integer_value(json_object_get(demo->entry, "audio_samples")) != sound->shape[0])
        golden_result(run, 0, demo->it.name, "audio_samples is not %lld",
                      (long long)sound->shape[0]);
    if (golden_has(demo->it.file, "audio.head")) {
        const m2_tensor head = golden_tensor(demo->it.file, "audio.head", M2_F32);
        const int64_t n_head = m2_tensor_count(&head);
        double most = 0;
        for (int64_t i = 0; i < n_head && i < n; i++)
            most = fmax(most, fabs((double)ours[i] - ((float *)head.data)[i]));
        golden_result(run, n_head <= n && most < 2e-5,
                      golden_format(run, "%s audio.head", demo->it.name),
                      "largest difference %.2e (below 2e-5)", most);
    }
    if (golden_has(demo->it.file, "audio.int16")) {
        const m2_tensor all = golden_tensor(demo->it.file, "audio.int16", M2_I16);
        double most = 0;
        for (int64_t i = 0; i < n && i < m2_tensor_count(&all); i++) {
            const double clipped = fmax(-1, fmin(1, ours[i])) * 32767;
            most = fmax(most, fabs(clipped - ((int16_t *)all.data)[i]));
        }
        golden_result(run, m2_tensor_count(&all) == n && most <= 1.5,
                      golden_format(run, "%s audio.int16", demo->it.name),
                      "%lld samples, largest difference %.2f steps (1.5 at most)", (long long)n / 2,
                      most);
    }
    double rms[2] = { 0 };
    for (int64_t i = 0; i < n; i++) rms[i % 2] += (double)ours[i] * ours[i];
    const json_t *wanted = json_object_get(demo->entry, "audio_rms");
    for (int c = 0; c < 2; c++) {
        const double ours_rms = sqrt(rms[c] / ((double)n / 2));
        const double reference = json_number_value(json_array_get(wanted, (size_t)c));
        golden_result(run, fabs(ours_rms - reference) < 1e-4 * reference,
                      golden_format(run, "%s audio_rms[%d]", demo->it.name, c),
                      "%.6f, recorded %.6f", ours_rms, reference);
    }
}

static double colour_distance(const double a[3], const double b[3])
{
    return sqrt((a[0] - b[0]) * (a[0] - b[0]) + (a[1] - b[1]) * (a[1] - b[1]) +
                (a[2] - b[2]) * (a[2] - b[2]));
}

/* Our own clip from the same noise shows what the recorded one shows: background, colour, motion;
 * and its sound sets in when its picture bounces. */
static void judge_own_clip(demo_case *demo, const m2_model_paths *paths)
{
    golden_run *run = demo->it.run;
    const char *name = demo->it.name;
    const double fps = 12.5;
    const m2_engine *engine = demo->it.engine;
    const m2_tensor video = e2e_fetch(run, engine, &demo->it.clip.video);
    const m2_tensor audio = e2e_fetch(run, engine, &demo->it.clip.audio);
    const m2_tensor frames = e2e_frames(run, engine, paths, &video, M2_BF16, M2_U8);
    const m2_tensor sound = e2e_sound(run, engine, &audio);
    if (!frames.data || !sound.data) return;
    judge_picture *ours = golden_alloc(run, sizeof *ours),
                  *theirs = golden_alloc(run, sizeof *theirs);
    uint8_t *recorded =
        golden_alloc(run, (size_t)demo->n_shown * (size_t)(demo->width * demo->height * 3));
    for (int i = 0; i < demo->n_shown; i++)
        judge_sheet_tile(demo->sheet, demo->sheet_width, demo->width, demo->height, i,
                         recorded + (int64_t)i * demo->width * demo->height * 3);
    judge_frames(frames.data, (int)frames.shape[0], demo->width, demo->height, ours);
    judge_frames(recorded, demo->n_shown, demo->width, demo->height, theirs);
    golden_result(run, colour_distance(ours->background, theirs->background) < 25,
                  golden_format(run, "%s own background", name), "%s, recorded %s",
                  judge_colour_name(ours->background), judge_colour_name(theirs->background));
    golden_result(run, colour_distance(ours->colour, theirs->colour) < 60,
                  golden_format(run, "%s own colour", name), "%s, recorded %s",
                  judge_colour_name(ours->colour), judge_colour_name(theirs->colour));
    double dx, dy, dx_recorded, dy_recorded;
    judge_motion(ours, &dx, &dy);
    judge_motion(theirs, &dx_recorded, &dy_recorded);
    golden_result(run, fabs(dx - dx_recorded) < 0.5 && fabs(dy - dy_recorded) < 0.5,
                  golden_format(run, "%s own motion", name),
                  "%.2f, %.2f pixels a frame, recorded %.2f, %.2f", dx, dy, dx_recorded,
                  dy_recorded);
    if (!strstr(demo->prompt, "bounc")) return;
    double bounces[JUDGE_EVENTS_MAX], onsets[JUDGE_EVENTS_MAX], wanted[JUDGE_EVENTS_MAX];
    const int n_bounces = judge_bounces(ours, fps, bounces);
    const int n_wanted = judge_bounces(theirs, fps, wanted);
    const int n_onsets = judge_onsets(sound.data, sound.shape[0], 44100, onsets);
    const double median = judge_nearest_median(bounces, n_bounces, onsets, n_onsets);
    golden_result(run, n_bounces >= 3 && abs(n_bounces - n_wanted) <= 1,
                  golden_format(run, "%s own bounces", name), "%d, recorded %d", n_bounces,
                  n_wanted);
    golden_result(run, median <= 0.12, golden_format(run, "%s own sound", name),
                  "%d onsets; a bounce is %.3f s from the nearest, median (0.12 at most)", n_onsets,
                  median);
}

/* Noise and features of a case that holds none are those of one with the same seed and prompt. */
static const char *source_of(demo_case *demo, const json_t *cases)
{
    size_t i;
    json_t *other;
    if (golden_has(demo->it.file, "noise.video")) return demo->it.path;
    json_array_foreach((json_t *)cases, i, other)
    {
        if (!json_equal(json_object_get(other, "seed"), json_object_get(demo->entry, "seed")) ||
            strcmp(text_of(other, "prompt"), demo->prompt) != 0)
            continue;
        const char *path =
            golden_format(demo->it.run, "%s/%s.safetensors", demo->dir, text_of(other, "name"));
        m2_checkpoint *file = NULL;
        if (m2_checkpoint_open(path, &file) != M2_OK) continue;
        const int has_noise = m2_checkpoint_find(file, "noise.video") != NULL;
        m2_checkpoint_close(file);
        if (has_noise) return path;
    }
    return NULL;
}

static void run_case(demo_case *demo, const m2_model_paths *paths, const json_t *cases)
{
    e2e_case *it = &demo->it;
    const char *source = source_of(demo, cases);
    if (!source) {
        golden_result(it->run, 0, it->name, "no file holds its noise");
        return;
    }
    /* The noise may lie in a sibling; this file's entries are judged either way. */
    golden_file *own = it->file, *from = own;
    if (strcmp(source, it->path) != 0) {
        from = golden_open(it->run, source);
        if (!from) return;
        for (int64_t i = 0; i < golden_n_entries(from); i++)
            golden_ignore(from, golden_entry(from, i)->name); /* judged by its own case */
    }
    const m2_tensor text = golden_tensor(from, "text", M2_BF16);
    const m2_tensor null_text = golden_tensor(from, "null_text", M2_BF16);
    it->file = from;
    it->path = source;
    if (text.data && null_text.data && e2e_begin(it, &text, &null_text, demo->n_steps)) {
        it->file = own;
        if (demo->n_steps > STEPS_BY_VALUE_MAX) it->clip.trace = NULL;
        e2e_denoise(it);
        if (demo->n_steps > STEPS_BY_VALUE_MAX && demo->sheet) judge_own_clip(demo, paths);
    }
    it->file = own;
    e2e_end(it);
    if (from != own) golden_close(from);
    const m2_tensor video =
        golden_tensor(own, golden_format(it->run, "step%d.video", demo->n_steps - 1), M2_F32);
    const m2_tensor audio =
        golden_tensor(own, golden_format(it->run, "step%d.audio", demo->n_steps - 1), M2_F32);
    if (!video.data || !audio.data) return;
    const m2_tensor frames = e2e_frames(it->run, it->engine, paths, &video, M2_BF16, M2_U8);
    const m2_tensor sound = e2e_sound(it->run, it->engine, &audio);
    if (frames.data && demo->sheet) judge_recorded_frames(demo, &frames);
    if (sound.data) judge_recorded_sound(demo, &sound);
}

static void check_features(demo_case *demo, const m2_model_paths *paths, const char *entry,
                           const char *prompt, const char *n_tokens)
{
    e2e_case *it = &demo->it;
    if (!golden_has(it->file, entry)) return;
    const m2_tensor ours = e2e_features(it->run, it->engine, paths, prompt, M2_BF16);
    const m2_tensor exact = e2e_features(it->run, it->engine, paths, prompt, M2_F32);
    const m2_tensor reference = golden_tensor(it->file, entry, M2_BF16);
    if (!ours.data || !exact.data || !reference.data) return;
    const int64_t n = m2_tensor_count(&exact);
    const char *name = golden_format(it->run, "%s %s", it->name, entry);
    if (m2_tensor_count(&reference) != n ||
        exact.shape[0] != json_integer_value(json_object_get(demo->entry, n_tokens))) {
        golden_result(it->run, 0, name, "another number of tokens than recorded");
        return;
    }
    /* Recorded are float features rounded once, 1.7e-3 from the truth; a bf16 encoder is at 7e-3. */
    const double recorded = golden_relative_error(reference.data, M2_BF16, exact.data, M2_F32, n);
    golden_result(it->run, recorded < 4e-3, name,
                  "recorded features are %.2e from our f32 encoder's "
                  "(below 4e-3)",
                  recorded);
    golden_judge_values(it->run, golden_format(it->run, "%s in bf16", name), ours.data, M2_BF16,
                        7e-3, exact.data, M2_F32, n, 2, GOLDEN_FLOOR_BF16);
}

/* The manifest's numbers are those of the run that it describes. */
static void check_numbers(demo_case *demo)
{
    golden_run *run = demo->it.run;
    const json_t *timesteps = json_object_get(demo->entry, "timesteps");
    const json_t *kept = json_object_get(demo->entry, "kept_steps");
    const m2_eval_config *eval = &demo->it.engine->config.eval;
    int n_wrong = (int)json_array_size(timesteps) != demo->n_steps, n_kept = 0;
    for (int i = 0; i < demo->n_steps && n_wrong == 0; i++)
        n_wrong += json_integer_value(json_array_get(timesteps, (size_t)i)) !=
                   m2_schedule_timestep(demo->n_steps, eval->shift, i);
    golden_result(run, n_wrong == 0, golden_format(run, "%s timesteps", demo->it.name),
                  "%d are not the schedule's", n_wrong);
    for (int i = 0; i < demo->n_steps; i++) {
        const int has = golden_has(demo->it.file, golden_format(run, "step%d.video", i));
        size_t k = 0;
        while (k < json_array_size(kept) && json_integer_value(json_array_get(kept, k)) != i) k++;
        n_kept += has != (k < json_array_size(kept));
    }
    golden_result(run, n_kept == 0, golden_format(run, "%s kept_steps", demo->it.name),
                  "%d steps are kept and not listed, or listed and not kept", n_kept);
}

static void check_case(golden_run *run, const char *dir, const json_t *cases, const json_t *entry)
{
    demo_case demo = { .entry = entry,
                       .dir = dir,
                       .prompt = text_of(entry, "prompt"),
                       .n_steps = (int)json_integer_value(json_object_get(entry, "steps")) };
    const char *name = text_of(entry, "name");
    if (json_is_string(json_object_get(entry, "image"))) {
        golden_skip(run, name, "needs the image encoder, which is not built yet");
        return;
    }
    demo.it = (e2e_case){ .run = run,
                          .name = name,
                          .later_factor = 3,
                          .path = golden_format(run, "%s/%s.safetensors", dir, name) };
    m2_model_paths paths;
    if (demo.n_steps < 1 || m2_model_paths_find(M2_DEMO_DIR, &paths) != M2_OK) {
        golden_result(run, 0, name, "%s", demo.n_steps < 1 ? "no steps" : m2_last_error());
        return;
    }
    demo.it.file = golden_open(run, demo.it.path);
    demo.it.engine = demo.it.file ? e2e_engine(run, &paths) : NULL;
    if (demo.it.engine && load_sheet(&demo)) {
        check_numbers(&demo);
        check_features(&demo, &paths, "text", text_of(entry, "prompt_used"), "tokens");
        check_features(&demo, &paths, "null_text", text_of(entry, "negative_prompt"),
                       "negative_tokens");
        run_case(&demo, &paths, cases);
    }
    free(demo.sheet);
    m2_engine_close(demo.it.engine);
    golden_close(demo.it.file);
}

/* A file that neither is always there nor belongs to a case is not understood. */
static void check_files(golden_run *run, const char *dir, const json_t *cases)
{
    for (char **name = golden_list(run, dir, 0); *name; name++) {
        int is_known = strcmp(*name, "manifest.json") == 0 || strcmp(*name, "README.md") == 0;
        size_t i;
        json_t *entry;
        json_array_foreach((json_t *)cases, i, entry)
        {
            is_known |= strcmp(*name, text_of(entry, "frames")) == 0;
            is_known |= strcmp(*name, text_of(entry, "image")) == 0;
            is_known |=
                strcmp(*name, golden_format(run, "%s.safetensors", text_of(entry, "name"))) == 0;
        }
        if (!is_known)
            golden_result(run, 0, golden_format(run, "%s/%s", dir, *name), "not understood");
    }
    for (char **name = golden_list(run, dir, 1); *name; name++)
        golden_result(run, 0, golden_format(run, "%s/%s", dir, *name), "not understood");
}

/* The settings of the runs are those of the demo model. */
static void check_settings(golden_run *run, const json_t *manifest)
{
    json_t *config = golden_json(run, M2_DEMO_DIR "/magi2.json");
    const json_t *own = json_object_get(config, "evaluation_config");
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(manifest, "settings"), key, value)
    {
        if (!json_equal(value, json_object_get(own, key)))
            golden_result(run, 0, golden_format(run, "manifest.json settings.%s", key),
                          "is not that of the demo model's magi2.json");
    }
    json_decref(config);
}

void golden_check_demo_e2e(golden_run *run, const char *dir)
{
    if (!golden_engine_backend(run)) {
        golden_skip(run, dir, "an engine opens no guarded device");
        return;
    }
    json_t *manifest = golden_json(run, golden_format(run, "%s/manifest.json", dir));
    const json_t *cases = json_object_get(manifest, "cases");
    size_t i;
    json_t *entry;
    json_array_foreach((json_t *)cases, i, entry) check_case(run, dir, cases, entry);
    if (manifest) check_files(run, dir, cases);
    if (manifest) check_settings(run, manifest);
    json_decref(manifest);
}
