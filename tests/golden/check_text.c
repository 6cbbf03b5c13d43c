/* check_text.c - the text encoder: one folder a model, as it is saved, with the hidden states of
 * some lengths (hidden.safetensors) and of some prompts (prompts.jsonl, prompts.safetensors).
 *
 * Every length runs with all weights in f32 against `truth` (stored weights) and in bf16 against
 * `truth_bf16_weights`.
 */
#include "golden.h"

#include "backend/device.h"
#include "model/text/encoder.h"
#include "model/text/prompt.h"
#include "model/text/tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct text_model {
    golden_run *run;
    const char *name, *dir;
    m2_text_config config;
    m2_checkpoint *checkpoint;
    m2_tokenizer *tokenizer; /* for prompts */
    const json_t *report;    /* the reference's errors as recorded, or NULL */
    m2_ops measure;
} text_model;

/* One encoder over its own weights arena. */
typedef struct text_variant {
    m2_text_encoder_params params;
    const char *type, *truth; /* of the golden entries: "bf16", "truth_bf16_weights" */
    m2_arena weights;
    m2_text_encoder *encoder;
} text_variant;

static m2_status open_variant(const text_model *model, text_variant *variant)
{
    m2_arena plan;
    m2_arena_init_measuring(&plan, "weights");
    m2_text_encoder *planned = NULL;
    M2_TRY(m2_text_encoder_create(model->checkpoint, &model->config, &model->measure, &plan,
                                  &variant->params, &planned));
    m2_text_encoder_destroy(planned);
    M2_TRY(golden_arena(model->run, &variant->weights, "weights", plan.peak));
    return m2_text_encoder_create(model->checkpoint, &model->config, golden_ops(model->run),
                                  &variant->weights, &variant->params, &variant->encoder);
}

static void close_variant(const text_model *model, text_variant *variant)
{
    m2_text_encoder_destroy(variant->encoder);
    golden_arena_free(model->run, &variant->weights);
}

/* Features of `ids` in memory of the run; data NULL after a recorded failure. */
static m2_tensor encode(const text_model *model, const text_variant *variant, const m2_tensor *ids,
                        m2_text_tap *tap, void *tap_user)
{
    golden_run *run = model->run;
    const m2_ops *ops = golden_ops(run);
    const int64_t n = m2_tensor_count(ids), width = model->config.hidden_size;
    m2_tensor features = m2_tensor_over(NULL, variant->params.dtype, n, width);
    m2_arena plan, step = { 0 };
    m2_arena_init_measuring(&plan, "step");
    m2_status status = m2_text_encoder_run(variant->encoder, &model->measure, &plan, NULL, n,
                                           &features, NULL, NULL);
    if (status == M2_OK)
        status = golden_arena(run, &step, "step",
                              plan.peak + m2_tensor_bytes(&features) + M2_ARENA_ALIGN);
    if (status == M2_OK) {
        m2_tensor device = m2_tensor_make(&step, variant->params.dtype, n, width);
        status =
            m2_text_encoder_run(variant->encoder, ops, &step, ids->data, n, &device, tap, tap_user);
        features.data = golden_alloc(run, m2_tensor_bytes(&features));
        if (status == M2_OK) ops->download(ops, features.data, &device);
        if (status == M2_OK) status = m2_device_wait(ops);
    }
    golden_arena_free(run, &step);
    if (status != M2_OK) {
        golden_result(run, 0, model->name, "%s", m2_last_error());
        features.data = NULL;
    }
    return features;
}

/* ---- the reference's own errors ---- */

/* report.json holds them in full; the truths in the files are rounded to f32 (measured: 4e-7 of a
 * bf16 error, 6e-9 in f32).  A single damaged value of a recorded tensor changes its error by more. */
#define REPORT_SHARE    1e-3
#define REPORT_ROUNDING 6e-8

/* A failure if the recorded tensor is not as far from its truth as the report says: it would
 * loosen the limit that we are judged by. */
static void check_report(const text_model *model, golden_file *file, const char *name,
                         const char *kind, const char *reference, const char *truth)
{
    golden_run *run = model->run;
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(model->report, "errors_ref_vs_truth"), i, row)
    {
        const char *row_name = json_string_value(json_object_get(row, "case"));
        const char *row_kind = json_string_value(json_object_get(row, "tensor"));
        if (!row_name || !row_kind || strcmp(row_name, name) != 0 || strcmp(row_kind, kind) != 0)
            continue;
        const m2_tensor x = golden_tensor(file, reference, M2_F64);
        const m2_tensor exact = golden_tensor(file, truth, M2_F64);
        const int64_t n = m2_tensor_count(&exact);
        if (!x.data || !exact.data || m2_tensor_count(&x) != n) return;
        const double found = golden_relative_error(x.data, M2_F64, exact.data, M2_F64, n);
        const double wanted = json_number_value(json_object_get(row, "rel"));
        if (!(fabs(found - wanted) <= REPORT_SHARE * wanted + REPORT_ROUNDING))
            golden_result(run, 0, golden_format(run, "%s %s", name, kind),
                          "the reference's error is %.6e, report.json says %.6e: damaged data",
                          found, wanted);
        const double most = json_number_value(json_object_get(row, "max"));
        double largest = 0, scale = 0;
        for (int64_t k = 0; k < n; k++) {
            const double value = ((const double *)exact.data)[k];
            largest = fmax(largest, fabs(((const double *)x.data)[k] - value));
            scale = fmax(scale, fabs(value));
        }
        if (!(fabs(largest - most) <= REPORT_SHARE * most + REPORT_ROUNDING * scale))
            golden_result(run, 0, golden_format(run, "%s %s", name, kind),
                          "its largest error is %.6e, report.json says %.6e: damaged data", largest,
                          most);
        return;
    }
}

/* ---- hidden.safetensors ---- */

typedef struct tap_context {
    const text_model *model;
    const text_variant *variant;
    golden_file *file;
    const char *prefix;
} tap_context;

/* Judge a hidden state if its length keeps all of them. */
static m2_status judge_hidden(void *user, int idx, const m2_tensor *hidden)
{
    const tap_context *context = user;
    golden_run *run = context->model->run;
    const m2_ops *ops = golden_ops(run);
    const char *reference =
        golden_format(run, "%s.h%d.%s", context->prefix, idx, context->variant->type);
    const char *truth =
        golden_format(run, "%s.h%d.%s", context->prefix, idx, context->variant->truth);
    if (!golden_has(context->file, reference) && !golden_has(context->file, truth)) return M2_OK;
    check_report(context->model, context->file,
                 golden_format(run, "%s/%s", context->model->name, context->prefix),
                 golden_format(run, "%s h%d", context->variant->type, idx), reference, truth);
    m2_tensor copy = *hidden;
    copy.data = golden_alloc(run, m2_tensor_bytes(hidden));
    ops->download(ops, copy.data, hidden);
    golden_judge(context->file,
                 golden_format(run, "%s %s.h%d %s", context->model->name, context->prefix, idx,
                               context->variant->type),
                 &copy, reference, truth, 2);
    return M2_OK;
}

static void check_length(const text_model *model, const text_variant *variant, golden_file *file,
                         const char *prefix)
{
    golden_run *run = model->run;
    const m2_tensor ids = golden_tensor(file, golden_format(run, "%s.ids", prefix), M2_I32);
    tap_context context = { model, variant, file, prefix };
    const m2_tensor features = encode(model, variant, &ids, judge_hidden, &context);
    if (!features.data) return;
    const char *reference = golden_format(run, "%s.%s", prefix, variant->type);
    const char *truth = golden_format(run, "%s.%s", prefix, variant->truth);
    check_report(model, file, golden_format(run, "%s/%s", model->name, prefix), variant->type,
                 reference, truth);
    golden_judge(file, golden_format(run, "%s %s %s", model->name, prefix, variant->type),
                 &features, reference, truth, 2);
}

/* "L7" of "L7.ids"; NULL for another entry. */
static const char *case_prefix(golden_run *run, const char *entry)
{
    const size_t bytes = strlen(entry);
    if (bytes < 5 || strcmp(entry + bytes - 4, ".ids") != 0) return NULL;
    return golden_format(run, "%.*s", (int)(bytes - 4), entry);
}

/* Whether the file keeps states that only the last two layers give. */
static int holds_last_layers(const text_model *model, golden_file *file)
{
    for (int64_t i = 0; i < golden_n_entries(file); i++) {
        const char *state = strstr(golden_entry(file, i)->name, ".h");
        if (state && strtol(state + 2, NULL, 10) > model->config.n_layers - 2) return 1;
    }
    return 0;
}

static void check_hidden(text_model *model, golden_file *file)
{
    static const text_variant variants[] = {
        { .params = { .dtype = M2_BF16 }, .type = "bf16", .truth = "truth_bf16_weights" },
        { .params = { .dtype = M2_F32 }, .type = "f32", .truth = "truth" },
    };
    for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
        text_variant variant = variants[v];
        variant.params.want_all_layers = holds_last_layers(model, file);
        if (open_variant(model, &variant) != M2_OK) {
            golden_result(model->run, 0, model->name, "%s", m2_last_error());
            close_variant(model, &variant);
            return;
        }
        for (int64_t i = 0; i < golden_n_entries(file); i++) {
            const char *prefix = case_prefix(model->run, golden_entry(file, i)->name);
            if (prefix) check_length(model, &variant, file, prefix);
        }
        close_variant(model, &variant);
    }
}

/* ---- prompts ---- */

/* Rows of a figure's tokens, or none for null. */
static int32_t *figure_rows(golden_run *run, const char *name, const json_t *list, int64_t n_tokens,
                            int64_t *n_out)
{
    const size_t n = json_array_size(list); /* 0 for null */
    int32_t *rows = golden_alloc(run, (n + 1) * sizeof *rows);
    *n_out = (int64_t)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *entry = json_array_get(list, i);
        const json_int_t row = json_is_integer(entry) ? json_integer_value(entry) : -1;
        if (row < 0 || row >= n_tokens) {
            golden_result(run, 0, name, "token %lld of %lld", (long long)row, (long long)n_tokens);
            *n_out = -1;
            return rows;
        }
        rows[i] = (int32_t)row;
    }
    return rows;
}

static m2_tensor special_token(const text_model *model, const m2_tensor *features,
                               const int32_t *rows, int64_t n_rows)
{
    golden_run *run = model->run;
    m2_arena step;
    m2_tensor y = m2_tensor_over(NULL, features->dtype, features->shape[1]);
    y.data = golden_alloc(run, m2_tensor_bytes(&y));
    const size_t bytes = (size_t)(n_rows + 64) * sizeof *rows + 2 * M2_ARENA_ALIGN;
    if (m2_arena_create(&step, "step", bytes) != M2_OK) {
        golden_result(run, 0, model->name, "%s", m2_last_error());
        return y;
    }
    m2_text_special_token(golden_host_ops(run), &step, features, rows, n_rows, &y);
    m2_arena_destroy(&step);
    return y;
}

/* The prompt's text and tokens as we make them. */
typedef struct prompt_front {
    char *text;
    size_t bytes;
    m2_tokens tokens;
} prompt_front;

static void close_front(prompt_front *front)
{
    m2_tokens_free(&front->tokens);
    free(front->text);
}

/* Text and ids must be the recorded ones. */
static m2_status check_front(const text_model *model, const char *name, const json_t *line,
                             const m2_tensor *ids, prompt_front *front)
{
    golden_run *run = model->run;
    const json_t *prompt = json_object_get(line, "prompt");
    const json_t *wanted = json_object_get(line, "normalized");
    if (!json_is_string(prompt) || !json_is_string(wanted))
        return m2_fail(M2_ERR_FORMAT, "no prompt or no normalized text");
    M2_TRY(m2_prompt_normalise(json_string_value(prompt), json_string_length(prompt), &front->text,
                               &front->bytes));
    const int is_same = front->bytes == json_string_length(wanted) &&
                        memcmp(front->text, json_string_value(wanted), front->bytes) == 0;
    golden_result(run, is_same, golden_format(run, "%s text", name), "%zu bytes, %zu expected",
                  front->bytes, json_string_length(wanted));
    M2_TRY(m2_tokenizer_encode(model->tokenizer, front->text, front->bytes, NULL, &front->tokens));
    const int64_t n = m2_tensor_count(ids);
    const int are_same = front->tokens.n == n &&
                         memcmp(front->tokens.id, ids->data, (size_t)n * sizeof(int32_t)) == 0;
    golden_result(run, are_same, golden_format(run, "%s ids", name), "%lld ids, %lld expected",
                  (long long)front->tokens.n, (long long)n);
    return M2_OK;
}

/* The figure's tokens must be the recorded ones, null being none. */
static void check_figure_tokens(golden_run *run, const char *name, const char *key,
                                const prompt_front *front, const int32_t *rows, int64_t n_rows)
{
    int number = 0;
    int64_t *indices = NULL, n = 0;
    if (sscanf(key, "<Figure %d>", &number) != 1 || number < 1) {
        golden_result(run, 0, name, "not understood: figure \"%s\"", key);
        return;
    }
    if (m2_prompt_figure_tokens(&front->tokens, front->text, front->bytes, number, &indices, &n) !=
        M2_OK) {
        golden_result(run, 0, name, "%s", m2_last_error());
        return;
    }
    int are_same = n == n_rows;
    for (int64_t i = 0; are_same && i < n; i++) are_same = indices[i] == rows[i];
    golden_result(run, are_same, golden_format(run, "%s tokens", name), "%lld, %lld expected",
                  (long long)n, (long long)n_rows);
    free(indices);
}

/* The mean of the recorded features must have the recorded bits; that of ours obeys the error rule
 * against the mean of the truth. */
static void check_figure(const text_model *model, golden_file *file, int prompt, int figure,
                         const char *key, const json_t *list, const prompt_front *front,
                         const m2_tensor *ours)
{
    golden_run *run = model->run;
    const char *name = golden_format(run, "%s prompt %d %s", model->name, prompt, key);
    const m2_tensor wanted =
        golden_tensor(file, golden_format(run, "%d.special%d", prompt, figure), M2_BF16);
    const m2_tensor recorded =
        golden_tensor(file, golden_format(run, "%d.hidden", prompt), M2_BF16);
    const m2_tensor truth = golden_tensor(file, golden_format(run, "%d.truth", prompt), M2_F32);
    if (!wanted.data || !recorded.data || !truth.data) return;
    int64_t n_rows;
    const int32_t *rows = figure_rows(run, name, list, recorded.shape[0], &n_rows);
    if (n_rows < 0) return;
    check_figure_tokens(run, name, key, front, rows, n_rows);
    const int64_t width = recorded.shape[1];
    if (m2_tensor_count(&wanted) != width ||
        m2_tensor_count(&truth) != m2_tensor_count(&recorded)) {
        golden_result(run, 0, name, "tensors of different widths");
        return;
    }
    const m2_tensor mean = special_token(model, &recorded, rows, n_rows);
    golden_exact(run, name, mean.data, wanted.data, m2_tensor_bytes(&wanted));
    if (n_rows == 0) return;
    double *exact = golden_alloc(run, (size_t)width * sizeof *exact);
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t i = 0; i < width; i++)
            exact[i] += (double)((float *)truth.data)[rows[r] * width + i] / (double)n_rows;
    const double reference = golden_relative_error(wanted.data, M2_BF16, exact, M2_F64, width);
    const m2_tensor of_ours = special_token(model, ours, rows, n_rows);
    golden_judge_values(run, golden_format(run, "%s of ours", name), of_ours.data, M2_BF16,
                        reference, exact, M2_F64, width, 2, GOLDEN_FLOOR_BF16);
}

static void check_prompt(const text_model *model, const text_variant *variant, golden_file *file,
                         int idx, json_t *line)
{
    golden_run *run = model->run;
    const char *name = golden_format(run, "%s prompt %d", model->name, idx);
    const m2_tensor ids = golden_tensor(file, golden_format(run, "%d.ids", idx), M2_I32);
    if (!ids.data) return;
    const m2_tensor features = encode(model, variant, &ids, NULL, NULL);
    if (!features.data) return;
    const char *reference = golden_format(run, "%d.hidden", idx);
    const char *truth = golden_format(run, "%d.truth", idx);
    check_report(model, file, golden_format(run, "%s/prompt%d", model->name, idx),
                 golden_format(run, "%lld tokens", (long long)m2_tensor_count(&ids)), reference,
                 truth);
    golden_judge(file, name, &features, reference, truth, 2);
    prompt_front front = { 0 };
    if (check_front(model, name, line, &ids, &front) != M2_OK)
        golden_result(run, 0, name, "%s", m2_last_error());
    const char *key;
    json_t *value;
    int figure = 0;
    json_object_foreach(json_object_get(line, "figures"), key, value)
        check_figure(model, file, idx, figure++, key, value, &front, &features);
    json_object_foreach(line, key, value)
    {
        if (strcmp(key, "prompt") != 0 && strcmp(key, "normalized") != 0 &&
            strcmp(key, "figures") != 0)
            golden_result(run, 0, name, "not understood: \"%s\"", key);
    }
    close_front(&front);
}

static void check_prompts(text_model *model, golden_file *file, const json_t *lines)
{
    text_variant variant = { .params = { .dtype = M2_BF16 } };
    if (m2_tokenizer_open(golden_format(model->run, "%s/tokenizer.json", model->dir),
                          &model->tokenizer) != M2_OK ||
        open_variant(model, &variant) != M2_OK) {
        golden_result(model->run, 0, model->name, "%s", m2_last_error());
    } else {
        for (size_t i = 0; i < json_array_size(lines); i++)
            check_prompt(model, &variant, file, (int)i, json_array_get(lines, i));
    }
    m2_tokenizer_close(model->tokenizer);
    close_variant(model, &variant);
}

/* ---- a folder ---- */

static void check_files(const text_model *model)
{
    static const char *const known[] = { "config.json",
                                         "hidden.safetensors",
                                         "prompts.jsonl",
                                         "prompts.safetensors",
                                         "tokenizer.json",
                                         "tokenizer_config.json",
                                         "model.safetensors.index.json" };
    for (char **file = golden_list(model->run, model->dir, 0); *file; file++) {
        int is_known = strncmp(*file, "model", 5) == 0 && strstr(*file, ".safetensors") != NULL;
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            is_known |= strcmp(*file, known[i]) == 0;
        if (!is_known)
            golden_result(model->run, 0, golden_format(model->run, "%s/%s", model->name, *file),
                          "not understood");
    }
}

static void check_model(golden_run *run, const char *name, const char *dir, const json_t *report)
{
    text_model model = { .run = run, .name = name, .dir = dir, .report = report };
    golden_init_measure(run, &model.measure);
    check_files(&model);
    if (m2_text_config_load(golden_format(run, "%s/config.json", dir), &model.config) != M2_OK ||
        m2_checkpoint_open(dir, &model.checkpoint) != M2_OK) {
        golden_result(run, 0, name, "%s", m2_last_error());
        return;
    }
    int n_files = 0;
    const char *path = golden_format(run, "%s/hidden.safetensors", dir);
    if (golden_is_file(path)) {
        golden_file *file = golden_open(run, path);
        if (file) check_hidden(&model, file);
        golden_close(file);
        n_files++;
    }
    path = golden_format(run, "%s/prompts.safetensors", dir);
    if (golden_is_file(path)) {
        golden_file *file = golden_open(run, path);
        json_t *lines = golden_json_lines(run, golden_format(run, "%s/prompts.jsonl", dir));
        if (file && lines) check_prompts(&model, file, lines);
        json_decref(lines);
        golden_close(file);
        n_files++;
    }
    if (n_files == 0) golden_result(run, 0, name, "no case in this folder");
    m2_checkpoint_close(model.checkpoint);
}

void golden_check_text(golden_run *run, const char *dir)
{
    for (char **file = golden_list(run, dir, 0); *file; file++) {
        if (strcmp(*file, "report.json") != 0) golden_result(run, 0, *file, "not understood");
    }
    const char *path = golden_format(run, "%s/report.json", dir);
    json_t *report = golden_is_file(path) ? golden_json(run, path) : NULL;
    for (char **name = golden_list(run, dir, 1); *name; name++)
        check_model(run, *name, golden_format(run, "%s/%s", dir, *name), report);
    json_decref(report);
}
