/* cmd_report.c - the commands that print a text: inspect, tokenize, doctor. */
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int print_text(const m2_options *options, magi2_status status, char *text)
{
    const int has_failed = text && (fputs(text, stdout) < 0 || fflush(stdout) != 0);
    magi2_free(text);
    if (has_failed) {
        fprintf(stderr, "magi2: stdout cannot be written: %s\n", strerror(errno));
        return M2_EXIT_FAILED;
    }
    return status == MAGI2_OK ? M2_EXIT_DONE : m2_cli_fail(options, m2_cli_exit_code(status));
}

int m2_cmd_inspect(const m2_options *options)
{
    if (options->n_operands && m2_options_has(options, M2_OPT_MODEL))
        return m2_cli_usage(options, "inspect: --model and a path are both given; use one");
    const char *path = options->n_operands ? options->operands[0] : m2_cli_model_dir(options);
    char *text = NULL;
    const magi2_status status = magi2_inspect(path, m2_options_has(options, M2_OPT_JSON), &text);
    return print_text(options, status, text);
}

int m2_cmd_tokenize(const m2_options *options)
{
    int code;
    char *prompt = m2_cli_prompt(options, &code);
    if (!prompt) return code;
    char *text = NULL;
    const magi2_status status = magi2_tokenize(m2_cli_model_dir(options), prompt,
                                               m2_options_has(options, M2_OPT_JSON), &text);
    free(prompt);
    return print_text(options, status, text);
}

int m2_cmd_doctor(const m2_options *options)
{
    char *text = NULL;
    const magi2_status status = magi2_doctor(m2_options_has(options, M2_OPT_JSON), &text);
    return print_text(options, status, text);
}
