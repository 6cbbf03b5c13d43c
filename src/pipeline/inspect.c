#include "pipeline/inspect.h"

#include "pipeline/engine.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static json_t *shape_json(const m2_ckpt_tensor *tensor)
{
    json_t *shape = json_array();
    for (int i = 0; i < tensor->n_dims; i++)
        json_array_append_new(shape, json_integer(tensor->shape[i]));
    return shape;
}

/* ---- one checkpoint ---- */

static void list_tensors(FILE *stream, const m2_checkpoint *checkpoint, int as_json)
{
    const int64_t n = m2_checkpoint_n_tensors(checkpoint);
    double bytes = 0;
    for (int64_t i = 0; i < n; i++) {
        const m2_ckpt_tensor *tensor = m2_checkpoint_at(checkpoint, i);
        const double own = (double)tensor->count * (double)m2_dtype_bytes(tensor->dtype);
        bytes += own;
        if (as_json) {
            json_t *line = json_pack("{s:s, s:s, s:o, s:s}", "name", tensor->name, "dtype",
                                     m2_dtype_name(tensor->dtype), "shape", shape_json(tensor),
                                     "file", tensor->file);
            char *text = json_dumps(line, JSON_COMPACT);
            fprintf(stream, "%s\n", text ? text : "{}");
            free(text);
            json_decref(line);
            continue;
        }
        const m2_tensor like = m2_tensor_wrap(NULL, tensor->dtype, tensor->n_dims, tensor->shape);
        char shape[128];
        fprintf(stream, "%-5s %-24s %s\n", m2_dtype_name(tensor->dtype),
                m2_tensor_shape_text(&like, shape, sizeof shape), tensor->name);
    }
    if (!as_json) fprintf(stream, "%lld tensors, %.2f MiB\n", (long long)n, bytes / 1048576.0);
}

/* ---- a model ---- */

typedef struct part {
    const char *name;
    const char *path;
    m2_status (*check)(const m2_engine *engine, const m2_model_paths *paths,
                       const m2_checkpoint *checkpoint, const m2_ops *ops, m2_arena *arena);
} part;

static m2_status check_text(const m2_engine *engine, const m2_model_paths *paths,
                            const m2_checkpoint *checkpoint, const m2_ops *ops, m2_arena *arena)
{
    (void)engine;
    m2_text_config config;
    m2_text_encoder_params params;
    m2_text_encoder *network = NULL;
    m2_tokenizer *tokenizer = NULL;
    m2_text_encoder_params_init(&params);
    M2_TRY(m2_tokenizer_open(paths->tokenizer, &tokenizer));
    m2_tokenizer_close(tokenizer);
    M2_TRY(m2_text_config_load(paths->text_config, &config));
    M2_TRY(m2_text_encoder_create(checkpoint, &config, ops, arena, &params, &network));
    m2_text_encoder_destroy(network);
    return M2_OK;
}

static m2_status check_preview(const m2_engine *engine, const m2_model_paths *paths,
                               const m2_checkpoint *checkpoint, const m2_ops *ops, m2_arena *arena)
{
    (void)paths;
    m2_preview *network = NULL;
    M2_TRY(m2_preview_open(checkpoint, &engine->config.arch, engine->config.eval.time_channel_dim,
                           ops, arena, &network));
    m2_preview_close(network);
    return M2_OK;
}

static m2_status check_video(const m2_engine *engine, const m2_model_paths *paths,
                             const m2_checkpoint *checkpoint, const m2_ops *ops, m2_arena *arena)
{
    (void)engine;
    m2_turbo_config config;
    m2_turbo *network = NULL;
    M2_TRY(m2_turbo_config_load(paths->video_config, &config));
    M2_TRY(m2_turbo_create(&config, checkpoint, M2_BF16, ops, arena, &network));
    m2_turbo_destroy(network);
    return M2_OK;
}

static m2_status check_audio(const m2_engine *engine, const m2_model_paths *paths,
                             const m2_checkpoint *checkpoint, const m2_ops *ops, m2_arena *arena)
{
    (void)engine;
    m2_oobleck_config config;
    m2_oobleck *network = NULL;
    M2_TRY(m2_oobleck_config_load(paths->audio_config, &config));
    M2_TRY(m2_oobleck_create(&config, checkpoint, ops, arena, &network));
    m2_oobleck_destroy(network);
    return M2_OK;
}

static void print_part(FILE *stream, int as_json, const part *it, int64_t n_tensors, double bytes,
                       const char *fault)
{
    if (as_json) {
        json_t *line =
            json_pack("{s:s, s:s, s:I, s:I, s:b}", "part", it->name, "path", it->path, "tensors",
                      (json_int_t)n_tensors, "bytes", (json_int_t)bytes, "fits", !fault);
        if (fault) json_object_set_new(line, "error", json_string(fault));
        char *text = json_dumps(line, JSON_COMPACT);
        fprintf(stream, "%s\n", text ? text : "{}");
        free(text);
        json_decref(line);
    } else {
        fprintf(stream, "%-14s %6lld tensors %10.2f MiB  %s\n", it->name, (long long)n_tensors,
                bytes / 1048576.0, fault ? "DOES NOT FIT" : "fits");
        /* A fault of several lines keeps its layout, below the part that it belongs to. */
        for (const char *line = fault; line && *line;) {
            const int n = (int)strcspn(line, "\n");
            fprintf(stream, "    %.*s\n", n, line);
            line += n + (line[n] == '\n');
        }
    }
}

/* Every part is looked at, also behind one that does not fit. */
static m2_status inspect_model(const char *dir, const m2_model_paths *paths, int as_json,
                               FILE *stream)
{
    const part parts[] = {
        { "text_encoder", paths->text, check_text },
        { "preview", paths->preview, check_preview },
        { "turbo_vae", paths->video, check_video },
        { "audio", paths->audio, check_audio },
    };
    m2_engine engine = { 0 };
    m2_ops measure;
    m2_arena arena;
    m2_ops_init_measure(&measure);
    m2_model_config_init(&engine.config);
    m2_status status =
        paths->config[0] ? m2_model_config_load(&engine.config, paths->config) : M2_OK;
    char faults[512] = "";
    for (size_t i = 0; status == M2_OK && i < sizeof parts / sizeof parts[0]; i++) {
        m2_checkpoint *checkpoint = NULL;
        m2_arena_init_measuring(&arena, "weights");
        m2_status fits = m2_checkpoint_open(parts[i].path, &checkpoint);
        if (fits == M2_OK) fits = parts[i].check(&engine, paths, checkpoint, &measure, &arena);
        double bytes = 0;
        const int64_t n = checkpoint ? m2_checkpoint_n_tensors(checkpoint) : 0;
        for (int64_t k = 0; k < n; k++) {
            const m2_ckpt_tensor *tensor = m2_checkpoint_at(checkpoint, k);
            bytes += (double)tensor->count * (double)m2_dtype_bytes(tensor->dtype);
        }
        print_part(stream, as_json, &parts[i], n, bytes, fits == M2_OK ? NULL : m2_last_error());
        if (fits != M2_OK)
            snprintf(faults + strlen(faults), sizeof faults - strlen(faults), "%s%s",
                     faults[0] ? ", " : "", parts[i].name);
        m2_checkpoint_close(checkpoint);
    }
    m2_model_config_free(&engine.config);
    if (status == M2_OK && faults[0])
        status = m2_fail(M2_ERR_MODEL, "%s: these parts do not fit the model: %s", dir, faults);
    return status;
}

static int is_model_dir(const char *path)
{
    char probe[4096];
    struct stat info;
    if (snprintf(probe, sizeof probe, "%s/preview", path) >= (int)sizeof probe) return 0;
    return stat(probe, &info) == 0 && S_ISDIR(info.st_mode);
}

m2_status m2_inspect(const char *path, int as_json, char **text_out)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    if (!stream) return m2_fail(M2_ERR_MEMORY, "no memory for the report");
    m2_status status;
    if (is_model_dir(path)) {
        m2_model_paths paths;
        status = m2_model_paths_find(path, &paths);
        if (status == M2_OK) status = inspect_model(path, &paths, as_json, stream);
    } else {
        m2_checkpoint *checkpoint = NULL;
        status = m2_checkpoint_open(path, &checkpoint);
        if (status == M2_OK) list_tensors(stream, checkpoint, as_json);
        m2_checkpoint_close(checkpoint);
    }
    if (fclose(stream) != 0) text = NULL;
    if (text && bytes > 0) {
        *text_out = text;
        return status;
    }
    free(text);
    return status;
}
