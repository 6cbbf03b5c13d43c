/* cmd_bench.c - measuring: which of the benches, and how. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

/* NULL: made-up weights, unless the CPU computes and no tier is asked for. */
static const char *made_up_or_model(const m2_options *options)
{
    return m2_options_has(options, M2_OPT_TIER) ? m2_cli_model_or_release(options)
                                                : m2_cli_given_model_dir(options);
}

static void say_line(void *user, const char *line)
{
    (void)user;
    fprintf(stderr, "%s\n", line);
}

static int bench_step(const m2_options *options)
{
    magi2_params params;
    int64_t steps, layers;
    const int code = m2_cli_engine_params(options, &params);
    if (code) return code;
    if (m2_options_int(options, M2_OPT_STEPS, 1, 1000, 0, &steps) != M2_OK ||
        m2_options_int(options, M2_OPT_LAYERS, 1, 256, 0, &layers) != M2_OK)
        return m2_cli_fail(options, M2_EXIT_USAGE);
    const magi2_bench_request request = { .tier = options->values[M2_OPT_TIER],
                                          .n_steps = (int)steps,
                                          .n_layers = (int)layers,
                                          .small_model_dir = params.model_dir,
                                          .cancel = m2_cli_cancel_flag(),
                                          .say = m2_options_has(options, M2_OPT_QUIET) ? NULL
                                                                                       : say_line };
    params.model_dir = made_up_or_model(options);
    if (params.model_dir && layers > 0)
        return m2_cli_usage(options, "--layers is for made-up weights; leave it or --model out");
    if (m2_options_has(options, M2_OPT_STAGE) || m2_options_has(options, M2_OPT_TOKENS))
        return m2_cli_usage(options, "--stage and --tokens are for `bench stage`");
    char *text = NULL;
    const magi2_status status =
        magi2_bench_step(&params, &request, m2_options_has(options, M2_OPT_JSON), &text);
    return m2_cli_print_text(options, status, text);
}

static int bench_stage(const m2_options *options)
{
    magi2_params params;
    int64_t runs, tokens;
    const int code = m2_cli_engine_params(options, &params);
    if (code) return code;
    if (m2_options_int(options, M2_OPT_STEPS, 1, 1000, 0, &runs) != M2_OK ||
        m2_options_int(options, M2_OPT_TOKENS, 1, 65536, 0, &tokens) != M2_OK)
        return m2_cli_fail(options, M2_EXIT_USAGE);
    if (m2_options_has(options, M2_OPT_LAYERS))
        return m2_cli_usage(options, "--layers is for `bench step`");
    const magi2_stage_bench_request request = { .tier = options->values[M2_OPT_TIER],
                                                .stage = options->values[M2_OPT_STAGE],
                                                .n_runs = (int)runs,
                                                .n_tokens = (int)tokens,
                                                .small_model_dir = params.model_dir,
                                                .cancel = m2_cli_cancel_flag() };
    params.model_dir = made_up_or_model(options);
    char *text = NULL;
    const magi2_status status =
        magi2_bench_stage(&params, &request, m2_options_has(options, M2_OPT_JSON), &text);
    return m2_cli_print_text(options, status, text);
}

#define BENCHES "`bench step` measures a denoising step, `bench stage` the stages beside it"

int m2_cmd_bench(const m2_options *options)
{
    static const char *const not_built[] = { "ops", "gate", "compare" };
    if (options->n_operands == 0) return m2_cli_usage(options, "bench what? " BENCHES);
    const char *what = options->operands[0];
    if (strcmp(what, "step") == 0) return bench_step(options);
    if (strcmp(what, "stage") == 0) return bench_stage(options);
    for (int i = 0; i < 3; i++)
        if (strcmp(what, not_built[i]) == 0)
            return m2_cli_usage(options, "bench %s is not built yet; bench step and stage are",
                                what);
    return m2_cli_usage(options, "bench %s: unknown; " BENCHES, what);
}
