#include "pipeline/plan.h"

#include "pipeline/clip.h"
#include "pipeline/memory.h"
#include "pipeline/synthetic_fit.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB            1048576.0
#define LONGEST_PROMPT 7000 /* tokens that are read of one */

/* Arenas for prompts of one length. */
typedef struct prompt_need {
    int n_tokens[2]; /* prompt, negative prompt */
    size_t request_bytes, step_bytes;
    m2_step_need denoise;
} prompt_need;

typedef struct plan {
    m2_engine *engine;
    m2_settings settings;
    int is_for_device;
    const char *backend;
    char machine[400]; /* what it is held against */
    size_t allowed;    /* bytes; 0: not known     */
    size_t weights_bytes;
    size_t left_out_bytes; /* of the whole model's, where a limit holds only part */
    m2_synthetic_fit fit;  /* without a model: of its weights, made up */
    prompt_need usual, longest;
} plan;

static const char *const network_names[M2_NETWORKS] = { "text encoder", "preview transformer",
                                                        "video decoder", "audio decoder" };

/* ---- counting ------------------------------------------------------------------------------------ */

static m2_status count_prompts(plan *it, prompt_need *need)
{
    m2_engine *engine = it->engine;
    const int64_t text_len[2] = { need->n_tokens[0], need->n_tokens[1] };
    M2_TRY(m2_step_need_count(engine->preview, &engine->config, &it->settings, text_len,
                              engine->ops.device_api, &need->denoise));
    need->request_bytes = need->denoise.request_bytes;
    need->step_bytes = need->denoise.step_bytes;
    if (!engine->text) return M2_OK; /* the transformer alone */
    m2_clip clip = { .engine = engine, .settings = it->settings, .n_ids = { 0 } };
    for (int i = 0; i < 2; i++) clip.n_ids[i] = need->n_tokens[i];
    return m2_clip_plan(&clip, 1, &need->request_bytes, &need->step_bytes);
}

static size_t overhead_bytes(const plan *it)
{
    return it->is_for_device ? M2_GPU_OWN_BYTES + M2_GPU_DRIVER_BYTES : M2_MEMORY_PROGRAM_BYTES;
}

/* The released transformer: against a limit as `bench step` makes it up, else all of it. */
static m2_status count_made_up(plan *it, size_t limit)
{
    m2_engine *engine = it->engine;
    const size_t beside = overhead_bytes(it), room = limit > beside ? limit - beside : 0;
    M2_TRY(m2_synthetic_fit_make(&engine->config, &engine->ops, &it->usual.denoise, M2_LAYERS_MAX,
                                 room, &it->fit));
    const size_t whole_bytes = it->fit.weights_bytes;
    engine->copied_bytes[M2_NETWORK_PREVIEW] = whole_bytes;
    if (!limit) return M2_OK;
    M2_TRY(m2_synthetic_fit_make(&engine->config, &engine->ops, &it->usual.denoise, 0, room,
                                 &it->fit));
    engine->copied_bytes[M2_NETWORK_PREVIEW] = it->fit.weights_bytes;
    it->left_out_bytes = whole_bytes - it->fit.weights_bytes;
    it->usual.step_bytes = it->fit.step_bytes;
    if (it->longest.step_bytes < it->fit.step_bytes) it->longest.step_bytes = it->fit.step_bytes;
    return M2_OK;
}

static size_t limit_of(const plan *it, const magi2_params *params)
{
    return it->is_for_device ? params->vram_limit : params->ram_limit;
}

static m2_status count(plan *it, const magi2_params *params)
{
    m2_engine *engine = it->engine;
    it->usual = (prompt_need){ .n_tokens = { M2_NEED_PROMPT_TOKENS, M2_NEED_NEGATIVE_TOKENS } };
    it->longest = (prompt_need){ .n_tokens = { LONGEST_PROMPT, M2_NEED_NEGATIVE_TOKENS } };
    M2_TRY(count_prompts(it, &it->usual));
    M2_TRY(count_prompts(it, &it->longest));
    if (!params->model_dir) M2_TRY(count_made_up(it, limit_of(it, params)));
    it->weights_bytes = engine->mapped_bytes;
    for (int i = 0; i < M2_NETWORKS; i++) it->weights_bytes += engine->copied_bytes[i];
    return M2_OK;
}

static size_t planned_bytes(const plan *it, const prompt_need *need)
{
    return it->weights_bytes + need->request_bytes + need->step_bytes;
}

static size_t total_bytes(const plan *it, const prompt_need *need)
{
    return planned_bytes(it, need) + overhead_bytes(it);
}

/* ---- the machine ----------------------------------------------------------------------------------- */

static m2_status pick_backend(plan *it, const magi2_params *params)
{
    char why[256];
    const char *backend = params->backend ? params->backend : "auto";
    const int is_gpu = strcmp(backend, "cuda") == 0 || strcmp(backend, "musa") == 0;
    if (!is_gpu && strcmp(backend, "auto") != 0 && strcmp(backend, "cpu") != 0)
        return m2_fail(M2_ERR_ARG, "--backend %s: use auto, cpu, cuda or musa", backend);
    if (strcmp(backend, "musa") == 0 && strcmp(backend, m2_gpu_vendor()) != 0)
        return m2_fail(
            M2_ERR_UNSUPPORTED,
            "--backend musa: programs for MUSA are not built yet; use auto, cpu or cuda");
    it->is_for_device =
        is_gpu || (strcmp(backend, "auto") == 0 && m2_gpu_count(why, sizeof why) > 0);
    if (it->is_for_device && params->ram_limit)
        return m2_fail(M2_ERR_ARG, "--ram-limit is of the CPU, this is a plan for a GPU: use "
                                   "--vram-limit, or add --backend cpu");
    if (!it->is_for_device && (params->vram_limit || params->device || params->needs_gpu))
        return m2_fail(M2_ERR_ARG, "--vram-limit and --device are of a GPU, this is a plan for the "
                                   "CPU: add --backend cuda, or leave them out");
    it->backend = is_gpu ? backend : it->is_for_device ? m2_gpu_vendor() : "cpu";
    return M2_OK;
}

/* The device that is here, if this build can use it, is asked what it has. */
static void look_at_device(plan *it, const magi2_params *params)
{
    char why[256];
    m2_gpu *gpu = NULL;
    const m2_gpu_params gpu_params = { .device = params->device };
    snprintf(it->machine, sizeof it->machine, "no such device here; --vram-limit names a size");
    if (strcmp(it->backend, m2_gpu_vendor()) != 0 || m2_gpu_count(why, sizeof why) == 0) return;
    if (m2_gpu_open(&gpu_params, &gpu) != M2_OK) return;
    m2_ops ops;
    size_t free_bytes = 0;
    m2_ops_init_gpu(&ops, gpu);
    ops.device_api->memory(&ops, &free_bytes, &it->allowed);
    snprintf(it->machine, sizeof it->machine, "%s", m2_gpu_banner(gpu));
    m2_gpu_close(gpu);
}

static void look_at_machine(plan *it, const magi2_params *params)
{
    const size_t limit = limit_of(it, params);
    if (limit) {
        it->allowed = limit;
        snprintf(it->machine, sizeof it->machine, "--%s-limit", it->is_for_device ? "vram" : "ram");
    } else if (it->is_for_device) {
        look_at_device(it, params);
    } else {
        it->allowed = m2_memory_available();
        snprintf(it->machine, sizeof it->machine, "free memory of this machine");
    }
}

/* Of the whole model, whatever of it `bench step` would make up. */
static size_t whole_bytes(const plan *it, const prompt_need *need)
{
    return total_bytes(it, need) + it->left_out_bytes;
}

/* Mapped weights may be dropped and read again, so on the host only the rest must have room; a limit
 * counts everything. */
static int fits(const plan *it, const magi2_params *params, const prompt_need *need)
{
    size_t total = whole_bytes(it, need);
    if (!it->is_for_device && !params->ram_limit) total -= it->engine->mapped_bytes;
    return total <= it->allowed;
}

/* ---- the page -------------------------------------------------------------------------------------- */

static size_t network_bytes(const plan *it, int network)
{
    const m2_engine *engine = it->engine;
    return engine->copied_bytes[network] + m2_engine_mapped_bytes(engine, network);
}

static void print_networks(FILE *out, const plan *it)
{
    const m2_engine *engine = it->engine;
    for (int i = 0; i < M2_NETWORKS; i++) {
        if (network_bytes(it, i) == 0) continue;
        fprintf(out, "  %-28s %12.1f MiB%s\n", network_names[i], (double)network_bytes(it, i) / MIB,
                m2_engine_mapped_bytes(engine, i) ? ", most of it read where the files are mapped"
                                                  : "");
    }
    const m2_synthetic_fit *fit = &it->fit;
    if (fit->n_resident < fit->n_moe_layers)
        fprintf(out,
                "  %d of %d MoE layers have experts of their own, the others share them: made-up "
                "weights, as bench step\n",
                fit->n_resident, fit->n_moe_layers);
}

static void print_need(FILE *out, const plan *it, const prompt_need *need)
{
    fprintf(out, "prompts of %d and %d tokens\n", need->n_tokens[0], need->n_tokens[1]);
    fprintf(out, "  %-28s %12.1f MiB\n", "request", (double)need->request_bytes / MIB);
    fprintf(out, "  %-28s %12.1f MiB, of which denoising takes %.1f\n", "step arena",
            (double)need->step_bytes / MIB, (double)need->denoise.step_bytes / MIB);
    fprintf(out, "  %-28s %12.1f MiB, of which weights, request and step %.1f\n", "all",
            (double)total_bytes(it, need) / MIB, (double)planned_bytes(it, need) / MIB);
    fprintf(out, "  %-28s %lld tokens, at least %.4g TFLOP and %.4g GB\n", "a denoising step",
            (long long)need->denoise.n_tokens, need->denoise.flop / 1e12,
            need->denoise.bytes / 1e9);
}

static void print_verdict(FILE *out, const plan *it, const magi2_params *params)
{
    fprintf(out, "against  %s", it->machine);
    if (!it->allowed) {
        fputc('\n', out);
        return;
    }
    fprintf(out, ": %.1f MiB\n", (double)it->allowed / MIB);
    if (it->left_out_bytes)
        fprintf(out, "what bench step takes %s; the whole model needs %.1f MiB: ",
                total_bytes(it, &it->usual) <= it->allowed ? "fits" : "does not fit",
                (double)whole_bytes(it, &it->usual) / MIB);
    fprintf(out, "%s\n",
            fits(it, params, &it->longest) ? "it fits"
            : fits(it, params, &it->usual) ? "it fits with short prompts, not with the longest"
                                           : "it does not fit");
}

static void print_plan(FILE *out, const plan *it, const magi2_params *params)
{
    fprintf(out, "plan  %s, tier %s (%dx%d), backend %s\n",
            params->model_dir ? params->model_dir
                              : "the released transformer, by its tables (no other network)",
            it->settings.tier, it->settings.width, it->settings.height, it->backend);
    fprintf(out, "weights\n");
    print_networks(out, it);
    if (it->is_for_device)
        fprintf(out, "device\n  %-28s %12.1f MiB\n  %-28s %12.1f MiB, an estimate\n", "workspace",
                M2_GPU_OWN_BYTES / MIB, "driver's context, recording", M2_GPU_DRIVER_BYTES / MIB);
    else
        fprintf(out, "program and encoder\n  %-28s %12.1f MiB\n", "at most",
                M2_MEMORY_PROGRAM_BYTES / MIB);
    print_need(out, it, &it->usual);
    print_need(out, it, &it->longest);
    print_verdict(out, it, params);
}

static json_t *need_json(const plan *it, const prompt_need *need)
{
    return json_pack(
        "{s:[i,i],s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:f}", "prompt_tokens", need->n_tokens[0],
        need->n_tokens[1], "request_bytes", (json_int_t)need->request_bytes, "step_bytes",
        (json_int_t)need->step_bytes, "denoise_step_bytes", (json_int_t)need->denoise.step_bytes,
        "planned_bytes", (json_int_t)planned_bytes(it, need), "all_bytes",
        (json_int_t)total_bytes(it, need), "tokens", (json_int_t)need->denoise.n_tokens,
        "step_flop", need->denoise.flop, "step_min_bytes", need->denoise.bytes);
}

static int put_plan(FILE *out, const plan *it, const magi2_params *params)
{
    json_t *networks = json_object();
    for (int i = 0; i < M2_NETWORKS; i++)
        json_object_set_new(networks, network_names[i],
                            json_integer((json_int_t)network_bytes(it, i)));
    json_t *root = json_pack(
        "{s:s,s:s?,s:s,s:i,s:i,s:s,s:o,s:I,s:I,s:o,s:o,s:s,s:I}", "event", "plan", "model",
        params->model_dir, "tier", it->settings.tier, "width", it->settings.width, "height",
        it->settings.height, "backend", it->backend, "weights", networks, "mapped_bytes",
        (json_int_t)it->engine->mapped_bytes, "overhead_bytes", (json_int_t)overhead_bytes(it),
        "usual", need_json(it, &it->usual), "longest", need_json(it, &it->longest), "against",
        it->machine, "allowed_bytes", (json_int_t)it->allowed);
    if (root && !params->model_dir) {
        json_object_set_new(root, "moe_layers", json_integer(it->fit.n_moe_layers));
        json_object_set_new(root, "resident_moe_layers", json_integer(it->fit.n_resident));
        json_object_set_new(root, "whole_model_bytes",
                            json_integer((json_int_t)whole_bytes(it, &it->usual)));
    }
    if (root && it->allowed) {
        json_object_set_new(root, "fits", json_boolean(fits(it, params, &it->longest)));
        json_object_set_new(root, "fits_usual", json_boolean(fits(it, params, &it->usual)));
    }
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    if (text) fprintf(out, "%s\n", text);
    free(text);
    json_decref(root);
    return text != NULL;
}

static m2_status report(const plan *it, const magi2_params *params, int as_json, char **text_out)
{
    char *text = NULL;
    size_t bytes = 0;
    int is_whole = 1;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return m2_fail(M2_ERR_INTERNAL, "no memory for the report");
    if (as_json)
        is_whole = put_plan(out, it, params);
    else
        print_plan(out, it, params);
    if (fclose(out) != 0 || !is_whole) {
        free(text);
        return m2_fail(M2_ERR_INTERNAL, "no memory for the report");
    }
    *text_out = text;
    if (!it->allowed || fits(it, params, &it->usual)) return M2_OK;
    return m2_fail(
        M2_ERR_MEMORY, "%.0f MiB are needed, %.0f MiB are there (%s); try a smaller --tier, %s",
        (double)whole_bytes(it, &it->usual) / MIB, (double)it->allowed / MIB, it->machine,
        it->is_for_device   ? "a card with more memory (--vram-limit SIZE plans for one) "
                              "or --backend cpu"
        : params->ram_limit ? "or raise --ram-limit"
                            : "or a machine with more memory (--ram-limit SIZE plans "
                              "for one)");
}

m2_status m2_plan(const magi2_params *params, const char *tier, int as_json, char **text_out)
{
    plan it = { 0 };
    magi2_request defaults;
    m2_clip_request_init(&defaults);
    defaults.tier = tier;
    M2_TRY(pick_backend(&it, params));
    M2_TRY(m2_engine_open_plan(params, it.is_for_device, &it.engine));
    const m2_log *log_before = m2_log_bind(&it.engine->log);
    m2_status status = m2_settings_resolve(&it.engine->config, &defaults, &it.settings);
    if (status == M2_OK) status = count(&it, params);
    if (status == M2_OK) {
        look_at_machine(&it, params);
        status = report(&it, params, as_json, text_out);
    }
    m2_log_bind(log_before);
    m2_engine_close(it.engine);
    return status;
}
