/* cmd_report.c - the commands that print a text: inspect, tokenize, plan, doctor. */
#include "cli/cli.h"
#include "core/log.h"

#include <stdlib.h>

int m2_cmd_inspect(const m2_options *options)
{
    if (options->n_operands && m2_options_has(options, M2_OPT_MODEL))
        return m2_cli_usage(options, "inspect: --model and a path are both given; use one");
    const char *path = options->n_operands ? options->operands[0] : m2_cli_model_dir(options);
    char *text = NULL;
    const magi2_status status = magi2_inspect(path, m2_options_has(options, M2_OPT_JSON), &text);
    return m2_cli_print_text(options, status, text);
}

static void show_log(void *user, m2_log_level level, const char *component, const char *text)
{
    m2_cli_log(user, (magi2_log_level)level, component, text);
}

/* What `generate` would warn of is warned of here: it is the place to look for it. */
int m2_cmd_tokenize(const m2_options *options)
{
    int code;
    char *prompt = m2_cli_prompt(options, &code);
    if (!prompt) return code;
    char *text = NULL;
    const m2_log log = { .write = show_log, .level = (m2_log_level)m2_cli_log_level(options) };
    const m2_log *log_before = m2_log_bind(&log);
    const magi2_status status = magi2_tokenize(m2_cli_model_dir(options), prompt,
                                               m2_options_has(options, M2_OPT_JSON), &text);
    m2_log_bind(log_before);
    free(prompt);
    return m2_cli_print_text(options, status, text);
}

int m2_cmd_doctor(const m2_options *options)
{
    char *text = NULL;
    const magi2_status status = magi2_doctor(m2_options_has(options, M2_OPT_JSON), &text);
    return m2_cli_print_text(options, status, text);
}

/* Without a model: the bundled one, or by its tables the released one if a tier of it is asked for. */
int m2_cmd_plan(const m2_options *options)
{
    magi2_params params;
    const char *tier = options->values[M2_OPT_TIER];
    const int code = m2_cli_engine_params(options, &params);
    if (code) return code;
    params.model_dir = m2_cli_model_or_release(options);
    char *text = NULL;
    const magi2_status status =
        magi2_plan(&params, tier, m2_options_has(options, M2_OPT_JSON), &text);
    return m2_cli_print_text(options, status, text);
}
