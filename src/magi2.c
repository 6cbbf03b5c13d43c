/* magi2.c - the public functions: each hands over to the pipeline. */
#include "magi2.h"

#include "core/temp_file.h"
#include "io/map.h"
#include "pipeline/bench.h"
#include "pipeline/bench_stage.h"
#include "pipeline/clip.h"
#include "pipeline/doctor.h"
#include "pipeline/engine.h"
#include "pipeline/inspect.h"
#include "pipeline/plan.h"
#include "pipeline/tokenize.h"

#include <stdlib.h>

/* The statuses are the same numbers under public names. */
_Static_assert((int)MAGI2_OK == (int)M2_OK, "status");
_Static_assert((int)MAGI2_ERR_ARG == (int)M2_ERR_ARG, "status");
_Static_assert((int)MAGI2_ERR_IO == (int)M2_ERR_IO, "status");
_Static_assert((int)MAGI2_ERR_FORMAT == (int)M2_ERR_FORMAT, "status");
_Static_assert((int)MAGI2_ERR_MODEL == (int)M2_ERR_MODEL, "status");
_Static_assert((int)MAGI2_ERR_MEMORY == (int)M2_ERR_MEMORY, "status");
_Static_assert((int)MAGI2_ERR_NUMERIC == (int)M2_ERR_NUMERIC, "status");
_Static_assert((int)MAGI2_ERR_UNSUPPORTED == (int)M2_ERR_UNSUPPORTED, "status");
_Static_assert((int)MAGI2_ERR_INTERRUPTED == (int)M2_ERR_INTERRUPTED, "status");
_Static_assert((int)MAGI2_ERR_INTERNAL == (int)M2_ERR_INTERNAL, "status");
_Static_assert((int)MAGI2_LOG_ERROR == (int)M2_LOG_ERROR, "log level");
_Static_assert((int)MAGI2_LOG_DEBUG == (int)M2_LOG_DEBUG, "log level");

struct magi2_engine {
    m2_engine *inner;
};

static magi2_status public_status(m2_status status)
{
    return (magi2_status)status;
}

const char *magi2_version(void)
{
    return MAGI2_VERSION;
}

const char *magi2_last_error(void)
{
    return m2_last_error();
}

void magi2_params_init(magi2_params *params)
{
    *params = (magi2_params){ .backend = "auto", .log_level = MAGI2_LOG_WARNING };
}

void magi2_request_init(magi2_request *request)
{
    m2_clip_request_init(request);
}

static magi2_status fail_null(const char *function)
{
    return public_status(m2_fail(M2_ERR_ARG, "%s: a pointer that must be given is NULL", function));
}

magi2_status magi2_open(const magi2_params *params, magi2_engine **engine_out)
{
    if (!params || !engine_out) return fail_null("magi2_open");
    magi2_engine *engine = calloc(1, sizeof *engine);
    if (!engine) return public_status(m2_fail(M2_ERR_MEMORY, "no memory for an engine"));
    const m2_status status = m2_engine_open(params, &engine->inner);
    if (status != M2_OK) {
        free(engine);
        return public_status(status);
    }
    *engine_out = engine;
    return MAGI2_OK;
}

void magi2_close(magi2_engine *engine)
{
    if (!engine) return;
    m2_engine_close(engine->inner);
    free(engine);
}

magi2_status magi2_check_request(const magi2_request *request)
{
    if (!request) return fail_null("magi2_check_request");
    return public_status(m2_clip_check_request(request));
}

magi2_status magi2_generate(magi2_engine *engine, const magi2_request *request,
                            magi2_result *result_out)
{
    if (!engine || !request) return fail_null("magi2_generate");
    return public_status(m2_clip_generate(engine->inner, request, result_out));
}

magi2_status magi2_decode(magi2_engine *engine, const char *latent_path,
                          const magi2_request *request, magi2_result *result_out)
{
    if (!engine || !request || !latent_path) return fail_null("magi2_decode");
    return public_status(m2_clip_decode_file(engine->inner, latent_path, request, result_out));
}

magi2_status magi2_tokenize(const char *model_dir, const char *prompt, int as_json, char **text_out)
{
    if (!model_dir || !prompt || !text_out) return fail_null("magi2_tokenize");
    return public_status(m2_tokenize_for_model(model_dir, prompt, as_json, text_out));
}

magi2_status magi2_inspect(const char *path, int as_json, char **text_out)
{
    if (!path || !text_out) return fail_null("magi2_inspect");
    return public_status(m2_inspect(path, as_json, text_out));
}

magi2_status magi2_doctor(int as_json, char **text_out)
{
    if (!text_out) return fail_null("magi2_doctor");
    return public_status(m2_doctor(as_json, text_out));
}

magi2_status magi2_plan(const magi2_params *params, const char *tier, int as_json, char **text_out)
{
    if (!params || !text_out) return fail_null("magi2_plan");
    return public_status(m2_plan(params, tier, as_json, text_out));
}

magi2_status magi2_bench_step(const magi2_params *params, const magi2_bench_request *request,
                              int as_json, char **text_out)
{
    if (!params || !request || !text_out) return fail_null("magi2_bench_step");
    return public_status(m2_bench_step(params, request, as_json, text_out));
}

magi2_status magi2_bench_stage(const magi2_params *params, const magi2_stage_bench_request *request,
                               int as_json, char **text_out)
{
    if (!params || !request || !text_out) return fail_null("magi2_bench_stage");
    return public_status(m2_bench_stage(params, request, NULL, as_json, text_out));
}

void magi2_free(char *text)
{
    free(text);
}

void magi2_remove_temp_files(void)
{
    m2_temp_remove_all();
}

void magi2_install_map_guard(void)
{
    m2_map_guard_install();
}
