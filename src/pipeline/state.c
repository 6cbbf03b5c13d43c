#include "pipeline/state.h"

#include "core/log.h"
#include "io/checkpoint.h"
#include "io/safetensors_write.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STATE_VERSION "1"

/* ---- settings <-> JSON, by one table ---- */

typedef enum field_kind { FIELD_INT, FIELD_I64, FIELD_REAL } field_kind;

static const struct {
    const char *name;
    size_t offset;
    field_kind kind;
} fields[] = {
#define ROW(name, kind)                                                                            \
    {                                                                                              \
#name, offsetof(m2_settings, name), kind                                                   \
    }
    ROW(width, FIELD_INT),           ROW(height, FIELD_INT),
    ROW(output_width, FIELD_INT),    ROW(output_height, FIELD_INT),
    ROW(latent_channels, FIELD_INT), ROW(latent_frames, FIELD_INT),
    ROW(latent_height, FIELD_INT),   ROW(latent_width, FIELD_INT),
    ROW(n_audio, FIELD_INT),         ROW(audio_channels, FIELD_INT),
    ROW(n_frames, FIELD_INT),        ROW(fps_num, FIELD_INT),
    ROW(fps_den, FIELD_INT),         ROW(n_steps, FIELD_INT),
    ROW(shift, FIELD_REAL),          ROW(guidance_video, FIELD_REAL),
    ROW(guidance_audio, FIELD_REAL), ROW(guidance_rescale, FIELD_REAL),
    ROW(use_trick, FIELD_INT),       ROW(trick_frames, FIELD_INT),
    ROW(trick_value, FIELD_REAL),    ROW(use_dynamic, FIELD_INT),
    ROW(dynamic_start, FIELD_INT),   ROW(dynamic_cutoff, FIELD_REAL),
    ROW(use_skim, FIELD_INT),        ROW(skim_scale, FIELD_REAL),
    ROW(use_negative, FIELD_INT),    ROW(seed, FIELD_I64),
    ROW(noise_sms, FIELD_INT),       ROW(noise_threads, FIELD_INT),
    ROW(has_given_noise, FIELD_INT),
#undef ROW
};
#define N_FIELDS (int)(sizeof fields / sizeof fields[0])

static char *settings_dump(const m2_settings *settings)
{
    json_t *root = json_object();
    json_object_set_new(root, "tier", json_string(settings->tier));
    for (int i = 0; i < N_FIELDS; i++) {
        const char *at = (const char *)settings + fields[i].offset;
        json_t *value = NULL;
        if (fields[i].kind == FIELD_INT)
            value = json_integer(*(const int *)at);
        else if (fields[i].kind == FIELD_I64)
            value = json_integer(*(const int64_t *)at);
        else
            value = json_real(*(const double *)at);
        json_object_set_new(root, fields[i].name, value);
    }
    char *text = json_dumps(root, JSON_SORT_KEYS | JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(root);
    return text;
}

static m2_status settings_load(const char *path, const char *text, m2_settings *settings)
{
    json_error_t error;
    json_t *root = json_loads(text ? text : "", JSON_REJECT_DUPLICATES, &error);
    const char *tier = json_string_value(json_object_get(root, "tier"));
    m2_status status = M2_OK;
    *settings = (m2_settings){ 0 };
    if (!tier || strlen(tier) >= sizeof settings->tier)
        status = m2_fail(M2_ERR_FORMAT, "%s: its settings cannot be read; not a state file?", path);
    else
        strcpy(settings->tier, tier);
    for (int i = 0; i < N_FIELDS && status == M2_OK; i++) {
        char *at = (char *)settings + fields[i].offset;
        const json_t *value = json_object_get(root, fields[i].name);
        const int is_real = fields[i].kind == FIELD_REAL;
        if (is_real ? !json_is_number(value) : !json_is_integer(value)) {
            status = m2_fail(M2_ERR_FORMAT, "%s: the setting '%s' is missing or no number", path,
                             fields[i].name);
        } else if (is_real) {
            *(double *)at = json_number_value(value);
        } else if (fields[i].kind == FIELD_I64) {
            *(int64_t *)at = json_integer_value(value);
        } else if (json_integer_value(value) < 0 || json_integer_value(value) > 100000000) {
            status = m2_fail(M2_ERR_FORMAT, "%s: the setting '%s' is out of range", path,
                             fields[i].name);
        } else {
            *(int *)at = (int)json_integer_value(value);
        }
    }
    json_decref(root);
    return status;
}

/* ---- the file ---- */

static const char *const history_names[2][M2_SAMPLER_N_HISTORY] = {
    { "video.history0", "video.history1", "video.history2" },
    { "audio.history0", "audio.history1", "audio.history2" },
};

m2_status m2_state_write(const char *path, const m2_clip_state *state, m2_file_id *id_out)
{
    m2_file_id id;
    m2_named_tensor tensors[2 + 2 * M2_SAMPLER_N_HISTORY] = {
        { .name = "video.latent", .tensor = state->video },
        { .name = "audio.latent", .tensor = state->audio },
    };
    int n_tensors = 2;
    if (state->n_done < state->settings.n_steps) {
        for (int i = 0; i < M2_SAMPLER_N_HISTORY; i++) {
            tensors[n_tensors++] =
                (m2_named_tensor){ .name = history_names[0][i], .tensor = state->video_history[i] };
            tensors[n_tensors++] =
                (m2_named_tensor){ .name = history_names[1][i], .tensor = state->audio_history[i] };
        }
    }
    char n_done[16];
    snprintf(n_done, sizeof n_done, "%d", state->n_done);
    char *settings = settings_dump(&state->settings);
    if (!settings) return m2_fail(M2_ERR_MEMORY, "%s: no memory for the settings", path);
    m2_metadata_entry metadata[] = {
        { "magi2_state", STATE_VERSION }, { "build", MAGI2_VERSION },
        { "settings", settings },         { "steps_done", n_done },
        { "prompt", state->prompt },      { "negative", state->negative },
    };
    const m2_status status =
        m2_safetensors_write_id(path, tensors, n_tensors, metadata, state->negative ? 6 : 5, &id);
    free(settings);
    if (status == M2_OK && id_out) *id_out = id;
    return status;
}

/* "magi2_state" is the second key of the header, before any text of the user's.  -1: errno is why it is
 * not known. */
static int has_mark(const char *path)
{
    static const char mark[] = "magi2_state";
    char head[4096];
    struct stat info;
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t n = fstat(fd, &info);
    if (n == 0 && S_ISREG(info.st_mode)) n = read(fd, head, sizeof head);
    const int why = errno;
    close(fd);
    errno = why;
    return n < 0 ? -1 : n > 0 && memmem(head, (size_t)n, mark, sizeof mark - 1) != NULL;
}

static void read_progress(const char *path, int *n_done_out, int *n_steps_out)
{
    m2_checkpoint *checkpoint = NULL;
    m2_settings settings;
    if (m2_checkpoint_open(path, &checkpoint) != M2_OK) return;
    const char *n_done = m2_checkpoint_metadata(checkpoint, "steps_done");
    const char *text = m2_checkpoint_metadata(checkpoint, "settings");
    if (n_done && text && settings_load(path, text, &settings) == M2_OK) {
        *n_done_out = atoi(n_done);
        *n_steps_out = settings.n_steps;
    }
    m2_checkpoint_close(checkpoint);
}

m2_state_kind m2_state_look(const char *path, int *n_done_out, int *n_steps_out)
{
    struct stat info;
    *n_done_out = *n_steps_out = 0;
    if (stat(path, &info) != 0) return M2_STATE_NONE;
    if (!S_ISREG(info.st_mode)) return M2_STATE_OTHER;
    if (info.st_size == 0) return M2_STATE_NONE;
    const int is_marked = has_mark(path);
    if (is_marked <= 0) return is_marked ? M2_STATE_CLOSED : M2_STATE_OTHER;
    /* How far it is need not be known: what is damaged is no fault of this run. */
    const m2_log *log = m2_log_bind(NULL);
    read_progress(path, n_done_out, n_steps_out);
    m2_log_bind(log);
    return M2_STATE_KEPT;
}

static m2_status read_tensor(const m2_checkpoint *checkpoint, const char *name, int n_dims,
                             const int64_t *shape, m2_tensor *tensor_out)
{
    const char *path = m2_checkpoint_path(checkpoint);
    const m2_ckpt_tensor *found = m2_checkpoint_find(checkpoint, name);
    if (!found) return m2_fail(M2_ERR_FORMAT, "%s: '%s' is missing; not a state file?", path, name);
    int fits = found->n_dims == n_dims && found->dtype == M2_F32;
    for (int i = 0; fits && i < n_dims; i++) fits = found->shape[i] == shape[i];
    if (!fits)
        return m2_fail(M2_ERR_FORMAT, "%s: '%s' does not have the shape that its settings say",
                       path, name);
    m2_checkpoint_read(found, M2_F32, tensor_out->data);
    const float *values = tensor_out->data;
    for (int64_t i = 0; i < found->count; i++) {
        if (!isfinite(values[i]))
            return m2_fail(M2_ERR_NUMERIC, "%s: '%s' holds values that are not finite", path, name);
    }
    return M2_OK;
}

/* The shapes that the settings say, checked so that their product is harmless. */
static m2_status check_sizes(const char *path, const m2_settings *s, int n_done)
{
    const int is_sane = s->latent_channels >= 1 && s->latent_channels <= 4096 &&
                        s->latent_frames >= 1 && s->latent_frames <= 4096 &&
                        s->latent_height >= 1 && s->latent_height <= 4096 && s->latent_width >= 1 &&
                        s->latent_width <= 4096 && s->n_audio >= 1 && s->n_audio <= 1000000 &&
                        s->audio_channels >= 1 && s->audio_channels <= 4096 && s->n_steps >= 1 &&
                        s->n_steps <= 1000 && n_done >= 0 && n_done <= s->n_steps &&
                        s->fps_num >= 1 && s->fps_den >= 1 && s->width >= 1 && s->height >= 1;
    if (!is_sane)
        return m2_fail(M2_ERR_FORMAT, "%s: its settings are out of range; not a state file?", path);
    return M2_OK;
}

static m2_status read_tensors(const m2_checkpoint *checkpoint, m2_clip_state *state)
{
    const m2_settings *s = &state->settings;
    const int64_t video[] = { s->latent_channels, s->latent_frames, s->latent_height,
                              s->latent_width };
    const int64_t audio[] = { s->n_audio, s->audio_channels };
    const int n_each = state->n_done < s->n_steps ? 1 + M2_SAMPLER_N_HISTORY : 1;
    const m2_tensor like_video = m2_tensor_wrap(NULL, M2_F32, 4, video);
    const m2_tensor like_audio = m2_tensor_wrap(NULL, M2_F32, 2, audio);
    const size_t video_bytes = m2_tensor_bytes(&like_video),
                 audio_bytes = m2_tensor_bytes(&like_audio);
    /* What a file cannot hold it need not be given memory for. */
    const m2_ckpt_tensor *found = m2_checkpoint_find(checkpoint, "video.latent");
    if (!found || (size_t)found->count * sizeof(float) != video_bytes)
        return m2_fail(M2_ERR_FORMAT, "%s: no 'video.latent' of the size that its settings say",
                       m2_checkpoint_path(checkpoint));
    char *memory = calloc((size_t)n_each, video_bytes + audio_bytes);
    if (!memory)
        return m2_fail(M2_ERR_MEMORY, "%s: no memory to read it", m2_checkpoint_path(checkpoint));
    state->memory = memory;
    for (int i = 0; i < n_each; i++) {
        m2_tensor *to_video = i == 0 ? &state->video : &state->video_history[i - 1];
        m2_tensor *to_audio = i == 0 ? &state->audio : &state->audio_history[i - 1];
        *to_video = m2_tensor_wrap(memory, M2_F32, 4, video);
        memory += video_bytes;
        *to_audio = m2_tensor_wrap(memory, M2_F32, 2, audio);
        memory += audio_bytes;
        M2_TRY(read_tensor(checkpoint, i == 0 ? "video.latent" : history_names[0][i - 1], 4, video,
                           to_video));
        M2_TRY(read_tensor(checkpoint, i == 0 ? "audio.latent" : history_names[1][i - 1], 2, audio,
                           to_audio));
    }
    return M2_OK;
}

static m2_status read_all(const m2_checkpoint *checkpoint, m2_clip_state *state)
{
    const char *path = m2_checkpoint_path(checkpoint);
    const char *version = m2_checkpoint_metadata(checkpoint, "magi2_state");
    if (!version)
        return m2_fail(M2_ERR_FORMAT,
                       "%s: not a state file of magi2 (no magi2_state in its metadata); give the "
                       "file of --save-latent, or OUTPUT.state of an unfinished run",
                       path);
    if (strcmp(version, STATE_VERSION) != 0)
        return m2_fail(M2_ERR_FORMAT, "%s: a state file of version %s; this build reads version %s",
                       path, version, STATE_VERSION);
    M2_TRY(settings_load(path, m2_checkpoint_metadata(checkpoint, "settings"), &state->settings));
    const char *prompt = m2_checkpoint_metadata(checkpoint, "prompt");
    const char *negative = m2_checkpoint_metadata(checkpoint, "negative");
    const char *n_done = m2_checkpoint_metadata(checkpoint, "steps_done");
    if (!prompt || !n_done)
        return m2_fail(M2_ERR_FORMAT, "%s: prompt or steps_done is missing in its metadata", path);
    char *end = NULL;
    const long steps_done = strtol(n_done, &end, 10);
    if (end == n_done || *end || steps_done < 0 || steps_done > 1000)
        return m2_fail(M2_ERR_FORMAT, "%s: its steps_done is '%.20s', not a number of steps", path,
                       n_done);
    state->n_done = (int)steps_done;
    state->prompt = strdup(prompt);
    state->negative = negative ? strdup(negative) : NULL;
    if (!state->prompt || (negative && !state->negative))
        return m2_fail(M2_ERR_MEMORY, "%s: no memory to read it", path);
    M2_TRY(check_sizes(path, &state->settings, state->n_done));
    return read_tensors(checkpoint, state);
}

m2_status m2_state_read(const char *path, m2_clip_state *state_out)
{
    m2_checkpoint *checkpoint = NULL;
    M2_TRY(m2_checkpoint_open(path, &checkpoint));
    m2_clip_state state = { 0 };
    const m2_status status = read_all(checkpoint, &state);
    m2_checkpoint_close(checkpoint);
    if (status != M2_OK) {
        m2_state_free(&state);
        return status;
    }
    *state_out = state;
    return M2_OK;
}

void m2_state_free(m2_clip_state *state)
{
    if (!state) return;
    free(state->prompt);
    free(state->negative);
    free(state->memory);
    *state = (m2_clip_state){ 0 };
}

/* ---- a resumed run keeps its settings ---- */

typedef struct differences {
    char text[900];
    int n;
} differences;

__attribute__((format(printf, 2, 3))) static void add(differences *found, const char *format, ...)
{
    const size_t used = strlen(found->text);
    const size_t left = sizeof found->text - used;
    const int n = snprintf(found->text + used, left, "%s", found->n++ ? "; " : "");
    if (n < 0 || (size_t)n >= left) return;
    va_list args;
    va_start(args, format);
    vsnprintf(found->text + used + n, left - (size_t)n, format, args);
    va_end(args);
}

static void compare(differences *found, const char *name, double asked, double has)
{
    if (asked != MAGI2_DEFAULT && asked != has)
        add(found, "%s %g (asked for %g)", name, has, asked);
}

/* A variant of guidance: its switch, and its two numbers where it is on in both. */
static void compare_variant(differences *found, const char *name, int asked, int has,
                            double asked_first, double has_first, double asked_second,
                            double has_second)
{
    if (asked == MAGI2_DEFAULT) return;
    if (asked != has)
        add(found, "%s %s", name, has ? "on" : "off");
    else if (asked && (asked_first != has_first || asked_second != has_second))
        add(found, "%s %g:%g (asked for %g:%g)", name, has_first, has_second, asked_first,
            asked_second);
}

static void compare_guidance(differences *found, const m2_settings *s, const magi2_request *request)
{
    compare(found, "video guidance", request->guidance_video, s->guidance_video);
    compare(found, "sound guidance", request->guidance_audio, s->guidance_audio);
    compare(found, "guidance rescale", request->guidance_rescale, s->guidance_rescale);
    compare_variant(found, "guidance trick", request->guidance_trick, s->use_trick,
                    request->guidance_trick_frames, s->trick_frames, request->guidance_trick_value,
                    s->trick_value);
    compare_variant(found, "dynamic guidance", request->guidance_dynamic, s->use_dynamic,
                    request->guidance_dynamic_start, s->dynamic_start,
                    request->guidance_dynamic_cutoff, s->dynamic_cutoff);
    compare_variant(found, "skimmed guidance", request->guidance_skim, s->use_skim,
                    request->guidance_skim_scale, s->skim_scale, 0, 0);
}

m2_status m2_state_check_request(const m2_clip_state *state, const magi2_request *request)
{
    const m2_settings *s = &state->settings;
    differences found = { "", 0 };
    if (request->tier && strcmp(request->tier, s->tier) != 0)
        add(&found, "tier %s (asked for %s)", s->tier, request->tier);
    compare(&found, "steps", request->n_steps, s->n_steps);
    compare(&found, "shift", request->shift, s->shift);
    compare_guidance(&found, s, request);
    if (!request->use_negative && s->use_negative) add(&found, "a negative prompt");
    if (request->seed != MAGI2_SEED_DEFAULT && (s->has_given_noise || request->seed != s->seed))
        add(&found, "seed %lld (asked for %lld)", (long long)s->seed, (long long)request->seed);
    if (request->noise) add(&found, "its own noise (asked for %s)", request->noise);
    /* 132 x 2048 is what a request has that asks for nothing. */
    if ((request->noise_sms != 132 || request->noise_threads != 2048) &&
        (request->noise_sms != s->noise_sms || request->noise_threads != s->noise_threads))
        add(&found, "noise grid %dx%d", s->noise_sms, s->noise_threads);
    if (request->prompt && strcmp(request->prompt, state->prompt) != 0)
        add(&found, "another prompt, \"%.80s\"", state->prompt);
    if (request->negative && (!state->negative || strcmp(request->negative, state->negative) != 0))
        add(&found, "another negative prompt");
    if (found.n == 0) return M2_OK;
    return m2_fail(
        M2_ERR_ARG,
        "a resumed run keeps its settings, and the state file has: %s; leave these options "
        "out",
        found.text);
}
